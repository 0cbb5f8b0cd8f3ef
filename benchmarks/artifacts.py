"""Read back, run and compare with the emulation every artifact of every target for one trained network.

fidelity.py calls this module.  Q/DQ and QLinear models run in ONNX Runtime, and FakeQuantize models in OpenVINO.  A float
model with a file of ranges runs in ONNX Runtime, with nodes that round each tensor as specified in the file.  Where the
arithmetic is not public, the simulation replaces the emulation, as in `qfunc.verify`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import onnx
import torch
from artifact_readers import log_clips, quantizers, read_back, readers_of, vendor
from attrs import evolve, field, frozen
from onnx import helper
from torch import Tensor, fx
from tqdm import tqdm

import qfunc
from qfunc import targets
from qfunc.errors import EmulationError, SpecError
from qfunc.lowering.onnxruntime.session import Session
from qfunc.specs import Int, Scheme, Target, edit
from qfunc.targets.runtimes import (
    NcnnLowering,
    OnnxRuntimeRunner,
    OpenVinoRunner,
    QnnHtpRunner,
    TfliteLowering,
    TosaLowering,
    XnnpackLowering,
)

SIZED = {"academic": (4, 4), "academic_nlp": (8, 8)}
EACH = (getattr(targets, n)(*SIZED[n]) if n in SIZED else getattr(targets, n) for n in targets.__all__)
UNREAD = TfliteLowering | XnnpackLowering | TosaLowering | NcnnLowering
TARGETS = tuple(t for t in EACH if isinstance(t, Target) and not isinstance(t.lowering, UNREAD))  # no families of blocks
EXACT = ("onnxruntime", "onnx_qnn")
HEAD = (
    "target", "float", "simulated", "emulated", "run", "by", "outputs", "off", "LSB", "tensors", "codes", "differ", "LSB",
    "alone", "LSB",
)  # fmt: skip
FILES = ("target", "files, KiB", "ranges of activations read back, and others")


class Row(NamedTuple):
    """A row of HEAD and a row of FILES (each may be empty), and complaints."""

    figures: list[str]
    files: list[str]
    complaints: list[str]


@frozen(eq=False)
class Loaded:
    """A model that is loaded once and ignores the artifact passed to `run`."""

    name: str
    call: Any = field(repr=False)

    def run(self, artifact: Any, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs."""
        return list(self.call(inputs))


def runners_of(target: Target, files: Any) -> Iterator[tuple[Any, str]]:
    """Yield (runner, description) for each way to run the artifact."""
    (reader,) = readers_of(files, "model.onnx") or (None,)
    own = target.runtime.runner
    if isinstance(own, OpenVinoRunner):
        if not own.missing():
            yield own, f"OpenVINO, {_integer_layers(own.compiled(files['model.onnx']))}"
    elif isinstance(own, QnnHtpRunner):
        runner = OnnxRuntimeRunner(optimise=False) if own.missing() else own
        yield runner, "ONNX Runtime, as written" if own.missing() else "HTP emulator"
    elif own is not None or reader is quantizers:
        runner = own or OnnxRuntimeRunner(optimise=False)
        yield runner, "ONNX Runtime" if runner.optimise else "ONNX Runtime, as written"
    for name in files:
        for found in readers_of(files, name):
            if not name.endswith(".onnx") and found is not log_clips:
                model = vendor.obeying(files, found)
                rounding(model, next((r.input.rounding for r in target.rules if isinstance(r.input, Scheme)), "half_even"))
                yield Loaded(name, Session(model.SerializeToString(), optimise=False, threads=1).run), f"by {name}"
            elif found is log_clips:
                yield Loaded(name, Session(files["model.onnx"], optimise=False, threads=1).run), "ONNX Runtime, weights only"


def _integer_layers(compiled: Any) -> str:
    infos = [op.get_rt_info() for op in compiled.get_runtime_model().get_ops()]
    layers = [i["runtimePrecision"].value for i in infos if i["layerType"].value in ("Convolution", "FullyConnected")]
    return f"{sum(p in ('u8', 'i8') for p in layers)} of {len(layers)} layers int8"


def rounding(model: onnx.ModelProto, mode: str) -> None:
    """Replace the rounding of a model by floor(x + 1/2), or by sign(x) floor(|x| + 1/2)."""
    if mode not in ("half_up", "half_away"):
        return
    half = onnx.numpy_helper.from_array(np.array(0.5, np.float32), "half")
    model.graph.initializer.append(half)
    nodes = list(model.graph.node)
    del model.graph.node[:]
    for node in nodes:
        if node.op_type == "Round":
            (x,), (y,) = node.input, node.output
            size = x if mode == "half_up" else f"{y}.size"
            floor = y if mode == "half_up" else f"{y}.floor"
            away = [("Abs", [x], size), ("Sign", [x], f"{y}.sign"), ("Mul", [f"{y}.sign", floor], y)]
            steps = [("Add", [size, "half"], f"{y}.above"), ("Floor", [f"{y}.above"], floor)]
            steps = steps if mode == "half_up" else [*away[:2], *steps, away[2]]
            model.graph.node.extend(helper.make_node(op, inputs, [out]) for op, inputs, out in steps)
        else:
            model.graph.node.append(node)


def runnable(target: Target) -> Target:
    """Return the target, with 7-bit weights where this CPU's int8 kernels would saturate."""
    if not OnnxRuntimeRunner().comparable() or target.name not in ("onnxruntime", "openvino"):
        return target
    if target.name == "onnxruntime":
        return edit.weights(bits=7)(target)
    halved = [r.weight and evolve(r.weight, format=Int(8, low=-64, high=63)) for r in target.rules]
    return evolve(target, rules=tuple(evolve(r, weight=w) for r, w in zip(target.rules, halved, strict=True)))


def outputs(model: Any, x: Tensor, size: int) -> Tensor:
    """Return the outputs for all inputs."""
    with torch.inference_mode():
        return torch.cat([torch.as_tensor(model(p)) for p in x.split(size)])


def rows(model: Any, calib: Tensor, x: Tensor, y: Tensor, size: int) -> Iterator[Row]:
    """Yield the rows of each target, one for each way to run its artifact."""
    real = outputs(model, x, size)
    for target in tqdm([runnable(t) for t in TARGETS], "targets", leave=False, disable=not sys.stderr.isatty()):
        try:
            placed = qfunc.quantize(target)(model)
        except SpecError as e:  # the chip lacks an op
            yield Row([target.name, *["-"] * 4, f"refused: {e.found}", *["-"] * 9], [target.name, "none", f"{e.where}"], [])
            continue
        quantized = qfunc.calibrate(calib.split(50), progress=False)(placed)
        assert isinstance(quantized, fx.GraphModule)
        artifact = qfunc.deploy(target)(quantized)
        read, complaints = read_back(artifact.files)
        simulated, emulated = outputs(quantized, x, size), None
        with contextlib.suppress(EmulationError):
            emulated = outputs(qfunc.emulate(target)(quantized), x, size)
        accuracies = [_accuracy(o, y) for o in (real, simulated, emulated)]
        ran = False
        for runner, by in runners_of(target, artifact.files):
            run = outputs(partial(_first, runner, artifact), x, size)
            at_end, wrong = _at_the_outputs(target, by, artifact, simulated if emulated is None else emulated, run)
            inside, wrong_inside = ["-"] * 6, []
            if emulated is not None and hasattr(runner, "inside"):
                inside, wrong_inside = _inside(target, qfunc.verify(target, runner)(quantized, x.split(size)))
            complaints += wrong + wrong_inside
            yield Row([target.name, *accuracies, _accuracy(run, y), by, *at_end, *inside], [], [])
            ran = True
        sizes = ", ".join(f"{name} {len(content) / 1024:,.0f}" for name, content in artifact.files.items())
        missing = [] if ran else [target.name, *accuracies, "-", "nothing", *["-"] * 9]
        yield Row(missing, [target.name, sizes, "; ".join(read)], [f"{target.name}: {c}" for c in complaints])


def _first(runner: Any, artifact: Any, part: Tensor) -> Any:
    return runner.run(artifact, [part])[0]


def _accuracy(found: Tensor | None, y: Tensor) -> str:
    return "-" if found is None else f"{100 * float((found.argmax(1) == y).double().mean()):.2f}"


def _at_the_outputs(target: Target, by: str, artifact: Any, want: Tensor, run: Tensor) -> tuple[list[str], list[str]]:
    """Return (elements, number that differ by half an LSB or more, largest difference in LSB), and complaints."""
    models = [c for name, c in artifact.files.items() if name.endswith(".onnx")]
    names = {o.name.removesuffix(".real") for c in models for o in onnx.load_from_string(c).graph.output}
    scales = [s["scale"][0] for s in artifact.report["tensors"] if names.intersection(s["tensors"])]
    lsb = scales[0] if scales else float(want.max() - want.min()) / 255
    difference = (want - run).abs() / lsb
    off = int((difference >= 0.5).sum())
    exact = target.name.split("+")[0] in EXACT and off
    wrong = [f"{off} outputs of an exact target differ from what {by} computes"] if exact else []
    return [f"{run.numel():,}", f"{off:,}", f"{float(difference.max()):.2g}"], wrong


def _inside(target: Target, report: Any) -> tuple[list[str], list[str]]:
    """Return (tensors, codes, number and size of differences; the same for units given the runner's inputs), complaints."""
    codes, alone = report.of("codes"), [r for r in report.of("alone") if not r.name.startswith("output ")]
    figures = [
        [f"{sum(r.elements for r in found):,}", f"{sum(r.mismatches for r in found):,}",
         f"{max((r.largest_lsb for r in found), default=0.0):.2g}"]
        for found in (codes, alone)
    ]  # fmt: skip
    wrong = [f"{r.name} alone is off by {r.largest_lsb:g} LSB in {r.mismatches} of {r.elements}" for r in alone
             if r.largest_lsb > 1]  # fmt: skip
    if target.name.split("+")[0] in EXACT:
        wrong += [f"{r.name} differs in {r.mismatches} of {r.elements}" for r in codes if r.mismatches][:1]
    return [str(len(codes)), *figures[0], *figures[1][1:]], wrong


__all__ = ["FILES", "HEAD", "TARGETS", "Row", "rows", "runnable"]
