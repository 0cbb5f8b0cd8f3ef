"""Checks of a saved directory, without the model that it was saved from."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from attrs import frozen

from qfunc import specs
from qfunc.errors import QfuncError, VerifyError, first_line
from qfunc.lowering.artifact import REPORT, Artifact
from qfunc.lowering.onnxruntime.runner import OnnxRuntimeRunner
from qfunc.lowering.openvino.runner import OpenVinoRunner
from qfunc.specs import Target
from qfunc.specs.protocols import InspectableRunner, OptionalRunner, Runner

_INNER = "inner"
_MODEL, _TENSORS = "model.onnx", "model.safetensors"


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


def check_saved(directory: str | os.PathLike[str]) -> SavedReport:
    """Check a directory that `artifact.save` or `qfunc.save` wrote.

    Of an artifact: its report and target can be read; model.onnx, if the target's runtime reads that, passes the ONNX
    checker, and each scale and zero point in it is the report's; it runs where that runtime is installed, on random inputs
    of the report's shapes, to finite values, twice the same; and if the runtime shows its units, those on integers are the ones
    that the report predicts.  (`qfunc.verify`, with the model, compares the values with the emulation.)  Of a quantized model:
    report, target and tensors can be read, every quantizer of the graph has its tensors, and each scale is finite and
    positive, if it was calibrated.

    Raises:
        VerifyError: no such directory, or nothing that qfunc wrote.
    """
    place = Path(directory)
    report = _report(place)
    checks = _model_checks if (place / _TENSORS).is_file() else _artifact_checks
    rows = list(checks(place, report))
    kind = "quantized model" if checks is _model_checks else "artifact"
    return SavedReport(kind, str(report["target"].get("spec", {}).get("name", "?")), tuple(rows))


def _report(place: Path) -> dict[str, Any]:
    wanted, do = f"a directory with {REPORT}", "Pass what artifact.save or qfunc.save wrote."
    found = "no such directory" if not place.is_dir() else f"no {REPORT}" if not (place / REPORT).is_file() else ""
    report: Any = None
    if not found:
        try:
            report = json.loads((place / REPORT).read_text(encoding="utf-8"))
        except ValueError:
            found = f"a {REPORT} that is no JSON"
    if not found and not (isinstance(report, dict) and isinstance(report.get("target"), dict)):
        found = f"a {REPORT} without a target"
    if found:
        raise VerifyError(where=f"verify({str(place)!r})", found=found, wanted=wanted, do=do)
    return dict(report)


def _check(name: str, action: Callable[[], str]) -> Check:
    try:
        return Check(name, "ok", action())
    except Exception as e:
        return Check(name, "failed", first_line(e))


def _target(report: dict[str, Any]) -> tuple[Target | None, Check]:
    try:
        target = specs.from_json(json.dumps(report["target"]))
    except QfuncError as e:
        own = "class" in e.where or "class" in e.found  # the user's own are known to their program only
        return None, Check("target", "skipped" if own else "failed", str(e))
    return target, Check("target", "ok", target.name)


def _model_checks(place: Path, report: dict[str, Any]) -> Iterator[Check]:
    from safetensors.torch import load_file

    yield _target(report)[1]
    tensors: dict[str, torch.Tensor] = {}

    def read() -> str:
        tensors.update(load_file(place / _TENSORS))
        return f"{len(tensors)} tensors"

    yield _check(_TENSORS, read)
    sites = {key.rpartition(".")[0] for key in tensors if key.startswith("quantizers.")}
    calls = [line.partition("(")[0].partition(" = ")[2] for line in report.get("graph", ())]
    wanted = [c for c in calls if c.startswith("quantizers.")]
    missing = [c for c in wanted if not any(s == c or s.startswith(f"{c}.") for s in sites)]
    text = f"{len(wanted)} quantizers" + (
        f", {len(missing)} without tensors, as of dynamic scales: {missing[0]}" if missing else ""
    )
    yield Check("graph", "ok" if calls else "failed", text)
    scales = {k: v for k, v in tensors.items() if k.startswith("quantizers.") and k.endswith(("scale", "log2_t"))}
    scales = {k: v.exp2() if k.endswith("log2_t") else v for k, v in scales.items()}
    bad = [k for k, v in scales.items() if not bool((v.isfinite() & (v > 0)).all())]
    text = f"{len(scales)} scales" + (f", {len(bad)} not finite and positive: {bad[0]}" if bad else "")
    yield Check("scales", "failed" if bad and report.get("stage") == "calibrated" else "ok", text)


def _artifact_checks(place: Path, report: dict[str, Any]) -> Iterator[Check]:
    target, check = _target(report)
    yield check
    artifact = Artifact({p.name: p.read_bytes() for p in sorted(place.iterdir()) if p.is_file()})
    runner_of_target: Any = target.runtime.runner if target is not None else None
    if _MODEL not in artifact.files:
        own = target is None or (
            isinstance(runner_of_target, Runner) and not isinstance(runner_of_target, OnnxRuntimeRunner | OpenVinoRunner)
        )
        others = [name for name in artifact.files if name != REPORT] if own else []
        yield Check("files" if own else _MODEL, "ok" if others else "failed", ", ".join(others) or "no such file")
        if others and target is not None:
            yield from _runs(artifact, report, runner_of_target)
        return
    import onnx

    graph: list[Any] = []

    def parsed() -> str:
        graph.append(onnx.load_from_string(artifact.files[_MODEL]))
        onnx.checker.check_model(graph[0])
        return f"{len(graph[0].graph.node)} nodes, the ONNX checker agrees"

    checked = _check(_MODEL, parsed)
    yield checked
    if checked.outcome == "ok":
        yield _qparams(graph[0], report)
        yield from _runs(artifact, report, runner_of_target, _foreign(graph[0]))


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
                if tensor in constants:
                    stored = onnx.numpy_helper.to_array(constants[tensor]).ravel().astype(np.float32)
                    equal = np.array_equal(np.broadcast_to(np.float32(values), stored.shape), stored)
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
    if missing:
        yield Check("run", "skipped", missing)
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
    shown = check.outcome == "ok" and isinstance(runner_of_target, InspectableRunner)
    units = getattr(runner.inside(artifact), "units", None) if shown else None
    if units is not None:  # else the runtime does not tell what it computes on integers
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
    dtype = getattr(torch, spec["dtype"].removeprefix("torch."))
    if dtype.is_floating_point:
        return torch.randn(spec["shape"], generator=generator).to(dtype)
    return torch.ones(spec["shape"], dtype=dtype)
