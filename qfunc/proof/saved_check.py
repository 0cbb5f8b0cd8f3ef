"""Checks of a saved directory, without the model that it was saved from."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from attrs import astuple, frozen

from qfunc.errors import QfuncError, SpecError, VerifyError, first_line
from qfunc.files.bit_planes import require_planes
from qfunc.files.folder import read_file, read_folder
from qfunc.files.json_text import parse
from qfunc.files.tensors import read_tensors
from qfunc.lowering.artifact import REPORT, Artifact, digests
from qfunc.lowering.report_fields import ARTIFACT, DTYPES, SAVED_MODEL, lacks_classes, read_report, read_target
from qfunc.specs import Scheme, Target
from qfunc.specs.protocols import InspectableRunner, OptionalRunner, Runner
from qfunc.targets.compressed_tensors.runner import TransformersRunner
from qfunc.targets.onnxruntime.runner import OnnxRuntimeRunner
from qfunc.targets.openvino.runner import OpenVinoRunner

_INNER = "inner"
_MODEL, _TENSORS, _CONFIG = "model.onnx", "model.safetensors", "config.json"
_MOST = 1 << 28  # elements of inputs that are drawn


@frozen
class Check:
    """One check: its outcome, "ok", "failed" or "skipped", and a description of what it found."""

    name: str
    outcome: str
    seen: str


@frozen
class SavedReport:
    """The checks of one directory."""

    kind: str
    target: str
    rows: tuple[Check, ...]

    @property
    def good(self) -> bool:
        """True if no check failed."""
        return all(r.outcome != "failed" for r in self.rows)


def check_saved(directory: str | os.PathLike[str], classes: Iterable[Any] = ()) -> SavedReport:
    """Check a directory that `artifact.save` or `qfunc.save` wrote.

    Of an artifact: its report and target can be read; each file has the SHA-256 in the report, else a runtime that reads
    another format than ONNX is not started; model.onnx, if the target's runtime reads that, passes the ONNX
    checker, and each scale and zero point in it is the report's; it runs where that runtime is installed, on random inputs
    of the report's shapes, to finite values, twice the same; and if the runtime shows its units, those on integers are the ones
    that the report predicts.  (`qfunc.verify`, with the model, compares the values with the emulation.)  Of a quantized model:
    report, target and tensors can be read, every quantizer of the graph has its tensors, and each scale is finite and
    positive (not 0, if the target has signed scales), if it was calibrated.

    Args:
        directory: The directory.
        classes: User-defined classes and functions in the target.
    Raises:
        VerifyError: no such directory, or nothing that qfunc wrote.
        FileError: a damaged report, or a link in place of a file.
    """
    place = Path(directory)
    found = "no such directory" if not os.path.isdir(place) else f"no {REPORT}" if not os.path.isfile(place / REPORT) else ""
    if found:
        wanted, do = f"a directory with {REPORT}", "Pass what artifact.save or qfunc.save wrote."
        raise VerifyError(where=f"verify({str(place)!r})", found=found, wanted=wanted, do=do)
    content, file = read_file(place / REPORT), str(place / REPORT)
    artifact = isinstance(document := parse(content, file), dict) and "files" in document
    saved = os.path.isfile(place / _TENSORS) and not artifact  # artifacts have files of this name, too
    report = read_report(content, SAVED_MODEL if saved else ARTIFACT, file)
    target, row = _target(report, classes)
    rows = _model_checks(place, report, target) if saved else _artifact_checks(place, report, target)
    name = target.name if target is not None else _name(report["target"].get("spec"))
    return SavedReport("quantized model" if saved else "artifact", name, (row, *rows))


def _name(spec: Any) -> str:
    # The name of a target that holds classes of the user's own.
    name = spec.get("name") if isinstance(spec, dict) else None
    return name if isinstance(name, str) and name.isprintable() else "?"


def _check(name: str, action: Callable[[], str]) -> Check:
    try:
        return Check(name, "ok", action())
    except Exception as e:
        return Check(name, "failed", first_line(e))


def _target(report: dict[str, Any], classes: Iterable[Any]) -> tuple[Target | None, Check]:
    try:
        target = read_target(report["target"], REPORT, "target", classes, "check_saved(directory")
    except SpecError as e:
        if not lacks_classes(e):
            return None, Check("target", "failed", str(e))
        do = "Give the command verify --target module:attribute, a target of a module that holds them."
        return None, Check("target", "skipped", f"{e.where}: found {e.found}, wanted {e.wanted}. {do}")
    except QfuncError as e:
        return None, Check("target", "failed", str(e))
    return target, Check("target", "ok", target.name)


def _model_checks(place: Path, report: dict[str, Any], target: Target | None) -> Iterator[Check]:
    tensors: dict[str, torch.Tensor] = {}

    def read() -> str:
        found, coded = read_tensors(place / _TENSORS), report.get("codes", {})
        require_planes(found, coded, str(place / _TENSORS))
        tensors.update(found)
        return f"{len(tensors)} tensors" + (f", {len(coded)} as codes" if coded else "")

    yield _check(_TENSORS, read)
    sites = {key.rpartition(".")[0] for key in tensors if key.startswith("quantizers.")}
    calls = [line.partition("(")[0].partition(" = ")[2] for line in report["graph"]]
    named = [c for c in calls if c.startswith("quantizers.")]
    missing = [c for c in named if not any(s == c or s.startswith(f"{c}.") for s in sites)]
    text = f"{len(named)} quantizers" + (
        f", {len(missing)} without tensors, as of dynamic scales: {missing[0]}" if missing else ""
    )
    yield Check("graph", "ok" if calls else "failed", text)
    scales = {k: v for k, v in tensors.items() if k.startswith("quantizers.") and k.endswith(("scale", "log2_t"))}
    scales = {k: v.exp2() if k.endswith("log2_t") else v for k, v in scales.items()}
    wanted, sizes = (
        ("finite and not 0", torch.abs) if target is None or _signed(target) else ("finite and positive", torch.clone)
    )
    bad = [k for k, v in scales.items() if not bool((v.isfinite() & (sizes(v) > 0)).all())]
    text = f"{len(scales)} scales" + (f", {len(bad)} not {wanted}: {bad[0]}" if bad else "")
    yield Check("scales", "failed" if bad and report.get("stage") == "calibrated" else "ok", text)


def _signed(target: Target) -> bool:
    # Whether scales may be negative, so that the extreme of a block has the lowest code.
    return any(isinstance(s, Scheme) and s.scale.signed for rule in target.rules for s in astuple(rule, recurse=False))


def _artifact_checks(place: Path, report: dict[str, Any], target: Target | None) -> Iterator[Check]:
    artifact = Artifact(read_folder(place))
    changed = _changed(artifact, report)
    if changed:
        yield Check("files", "failed", ", ".join(changed))
    runner_of_target: Any = target.runtime.runner if target is not None else None
    if _MODEL not in artifact.files:
        read = OnnxRuntimeRunner | OpenVinoRunner
        own = target is None or (isinstance(runner_of_target, Runner) and not isinstance(runner_of_target, read))
        own = own or (runner_of_target is None and _MODEL not in report["files"])
        others = [name for name in artifact.files if name != REPORT] if own else []
        if changed:  # a runtime may crash on a damaged file
            yield Check("run", "skipped", "the files are not those that were deployed")
            return
        yield Check("files" if own else _MODEL, "ok" if others else "failed", ", ".join(others) or "no such file")
        if others and runner_of_target is not None:
            yield from _runs(artifact, report, runner_of_target)
        elif others and target is not None:
            yield Check("run", "skipped", "the target has no runner")
        return
    # onnx is imported here, where it is first needed.
    import onnx

    from qfunc.files.onnx_model import read_model

    graph: list[Any] = []

    def parsed() -> str:
        graph.append(read_model(artifact.files[_MODEL], str(place / _MODEL)))
        onnx.checker.check_model(graph[0])
        return f"{len(graph[0].graph.node)} nodes, the ONNX checker agrees"

    checked = _check(_MODEL, parsed)
    yield checked
    if checked.outcome == "ok":
        yield _qparams(graph[0], report)
        yield from _runs(artifact, report, runner_of_target, _foreign(graph[0]))


def _changed(artifact: Artifact, report: dict[str, Any]) -> list[str]:
    # Reports of earlier releases have no digests.
    found = digests(artifact.files)
    expected = report.get("files", {})
    return [f"{n}: {'changed' if n in found else 'no such file'}" for n in sorted(expected) if found.get(n) != expected[n]]


def _foreign(model: Any) -> str:
    # The domains of the ops that ONNX Runtime does not have, or "".
    own = {"", "ai.onnx", "com.microsoft"} | {f.domain for f in model.functions}
    return ", ".join(sorted({n.domain for n in model.graph.node} - own))


def _qparams(model: Any, report: dict[str, Any]) -> Check:
    import numpy as np
    import onnx

    constants = {i.name: i for i in model.graph.initializer}
    same, wrong = 0, list[str]()
    for entry in report.get("tensors", ()):
        for name in entry["tensors"]:
            pairs = [(f"{name}.scale", entry["scale"]), (f"{name}.zero_point", entry["zero_point"])]
            for tensor, values in pairs:
                if tensor in constants and values is not None:  # None of blocks
                    stored = onnx.numpy_helper.to_array(constants[tensor]).ravel().astype(np.float32)
                    equal = len(values) in (1, stored.size) and bool((np.float32(values) == stored).all())
                    same += equal
                    wrong += [] if equal else [tensor]
    if wrong:
        return Check("qparams", "failed", f"{len(wrong)} differ from the report: {', '.join(wrong[:3])}")
    where = "" if same else ": this artifact holds its qparams in other files or nodes"
    return Check("qparams", "ok" if same else "skipped", f"{same} constants equal the report's{where}")


def _runs(artifact: Artifact, report: dict[str, Any], runner_of_target: Any, foreign: str = "") -> Iterator[Check]:
    runner: Any = runner_of_target if isinstance(runner_of_target, Runner) else OnnxRuntimeRunner(optimise=False)
    optional: Any = runner  # checkers narrow the name that isinstance tests
    missing = optional.missing() if isinstance(optional, OptionalRunner) else ""
    if foreign and isinstance(runner, OnnxRuntimeRunner):
        missing = f"ops of {foreign}, which ONNX Runtime does not have"
    if isinstance(runner, TransformersRunner) and b'"architectures"' not in artifact.files.get(_CONFIG, b""):
        missing = missing or f"{_CONFIG} has no architectures, by which transformers finds the model"
    if missing:
        yield Check("run", "skipped", missing)
        return
    if (elements := sum(math.prod(i["shape"]) for i in report["inputs"])) > _MOST:
        yield Check("run", "skipped", f"inputs of {elements:,} elements, more than {_MOST:,}")
        return
    generator = torch.Generator().manual_seed(0)

    def run() -> str:
        inputs = [_sample(i, generator) for i in report["inputs"]]
        first, second = (runner.run(artifact, inputs) for _ in range(2))
        for a, b in zip(first, second, strict=True):
            if not bool(torch.as_tensor(a).isfinite().all()) or not bool((torch.as_tensor(a) == torch.as_tensor(b)).all()):
                raise ValueError("outputs that are not finite, or not the same twice")
        return f"{len(first)} outputs, finite, twice the same, by {runner!r}"

    check = _check("run", run)
    yield check
    if check.outcome != "ok" or not isinstance(runner_of_target, InspectableRunner):
        return
    try:
        units = runner_of_target.inside(artifact).units
    except Exception as e:
        yield Check("units", "failed", first_line(e))
        return
    if units is not None:  # else the runner does not report its integer units
        yield _units(units, report) if "units" in report else Check("units", "failed", "none in the report")


def _units(shown: dict[str, str], report: dict[str, Any]) -> Check:
    seen, wrong = 0, list[str]()
    for unit in report["units"]:
        names = (f"{unit['tensor']}.{_INNER}.codes", f"{unit['tensor']}.codes")
        actual = next((shown[n] for n in names if n in shown), "gone")
        if actual != "gone":  # ops that move codes only may leave the graph
            seen += 1
            wrong += [f"{unit['path']} runs as {actual}"] if unit["integer"] != (actual == "integer") else []
    if wrong:
        return Check("units", "failed", f"{len(wrong)} of {seen} not as predicted: {wrong[0]}")
    return Check("units", "ok", f"{seen} integer or float as predicted")


def _sample(spec: dict[str, Any], generator: torch.Generator) -> torch.Tensor:
    dtype = DTYPES[spec["dtype"]]
    if dtype.is_floating_point:
        return torch.randn(spec["shape"], generator=generator).to(dtype)
    return torch.ones(spec["shape"], dtype=dtype)
