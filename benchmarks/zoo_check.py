"""Capture, quantize, calibrate, deploy and run one network of the zoo; record where and why it fails."""

from __future__ import annotations

import contextlib
import math
import resource
import time
from collections.abc import Callable
from typing import Any

import torch
from artifacts import runnable
from torch import Tensor, fx
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from torchvision_ops import shim
from zoo_models import Entry

import qfunc
from qfunc import targets
from qfunc.errors import CaptureError
from qfunc.graph.arguments import flatten
from qfunc.graph.view import QuantizedModel
from qfunc.ops.node import slots
from qfunc.placement.partition import Partition
from qfunc.specs import edit
from qfunc.targets.onnxruntime.target import ACTIVATION, WEIGHT
from qfunc.targets.runtimes import OnnxRuntimeRunner

with contextlib.suppress(ImportError):  # once, before processes are forked
    shim()
    import timm  # noqa: F401

Row = dict[str, Any]
QUANTIZED, COSINE = 0.99, 0.9999
WITH_TRANSPOSED = edit.add(edit.op("conv_transpose"), input=ACTIVATION, weight=WEIGHT, output=ACTIVATION)
"""Transposed convolutions.  ONNX Runtime has no integer kernel for them, but its own quantizer quantizes them."""


class Macs(fx.Interpreter):
    """Run a network and count the multiply-accumulates of each node.  Attention counts as two products."""

    def __init__(self, network: fx.GraphModule) -> None:
        super().__init__(network)
        self.of: dict[fx.Node, int] = {}
        self.counter = FlopCounterMode(display=False)

    def run_node(self, n: fx.Node) -> Any:
        """Return the node's value."""
        before = self.counter.get_total_flops()
        value = super().run_node(n)
        found = (self.counter.get_total_flops() - before) // 2
        if found:
            self.of[n] = found
        return value

    def count(self, inputs: tuple[Tensor, ...]) -> dict[fx.Node, int]:
        """Map nodes to their multiply-accumulates, if they have any."""
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), self.counter:
            self.run(*inputs, enable_io_processing=False)
        return self.of


def shares(partition: Partition, inputs: tuple[Tensor, ...]) -> tuple[int, float, float, list[str]]:
    """Return (MACs, share with quantized operands, share in integer units, float ops with the largest first)."""
    integer = {n for u in partition.units if u.integer for n in u.group.nodes}
    reasons = {u.group.root: u.reason for u in partition.units}
    found = Macs(partition.network).count(inputs)
    operands = {n: [p for s, p in slots(n) if s != "bias"] for n in found}
    quantized = {n for n in found if operands[n] and all(partition.encoding(p, n) is not None for p in operands[n])}
    total = sum(found.values())
    rest = sorted((n for n in found if n not in quantized), key=lambda n: -found[n])
    left = [f"{partition.paths[n]} ({partition.kinds[n]}, {found[n] / total:.1%}): "
            f"{reasons.get(n, 'not an op of its own')}" for n in rest]  # fmt: skip
    share = [sum(found[n] for n in found if n in chosen) / max(total, 1) for chosen in (quantized, integer)]
    return total, share[0], share[1], left


def cosine(a: Tensor, b: Tensor) -> float:
    """Return the cosine of the angle between two tensors; 1 for two zeros."""
    a, b = a.double().flatten(), b.double().flatten()
    if not bool((a.isfinite() & b.isfinite()).all()):
        return 1.0 if torch.equal(a, b) else math.nan
    norms = float(a.norm() * b.norm())
    return float(a @ b) / norms if norms else float(torch.equal(a, b))


def tensors(value: Any) -> list[Tensor]:
    """Return the tensors of an output, in order."""
    return [v for v in flatten(value) if isinstance(v, Tensor)]


def check(entry: Entry) -> Row:
    """Return the figures of one network, with `stage` and `reason` of the first failure, or `passed`."""
    row: Row = {"name": entry.name, "passed": False, "stage": "make", "reason": "", "seconds": {}}
    began = time.monotonic()
    try:
        _checked(entry, row)
    except Exception as e:
        row["reason"] = f"{type(e).__name__}: {' | '.join(str(e).strip().splitlines())[:600]}"
    row["total_seconds"], row["cpu_seconds"] = time.monotonic() - began, time.process_time()
    row["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return row


def _checked(entry: Entry, row: Row) -> None:
    def stage(name: str, function: Callable[[], Any]) -> Any:
        row["stage"], start = name, time.monotonic()
        value = function()
        row["seconds"][name] = round(time.monotonic() - start, 1)
        return value

    torch.set_num_threads(1)  # waiting threads take the core from computing ones
    runner = OnnxRuntimeRunner(threads=1)
    target = WITH_TRANSPOSED(runnable(targets.onnxruntime))
    model = stage("make", entry.make)
    calib, held = [entry.inputs(4, 3)], [entry.inputs(2, 4)]
    quantized, row["road"] = stage("quantize", lambda: _quantized(target, model, entry.inputs(2, 3)))
    calibrated = stage("calibrate", lambda: qfunc.calibrate(calib, progress=False)(quantized))
    artifact = stage("deploy", lambda: qfunc.deploy(target)(calibrated))
    runtime = stage("run", lambda: [torch.as_tensor(v) for v in runner.run(artifact, held[0])])
    with torch.no_grad():
        real, simulated = (tensors(m(*held[0])) for m in (model, calibrated))
    row["cosine"] = min(cosine(a, b) for a, b in zip(runtime, simulated, strict=True))
    if row["cosine"] < COSINE or not entry.convolutional:  # in a convolutional network, `verify` compares all codes
        with torch.no_grad():
            exact = tensors(qfunc.emulate(target)(calibrated)(*held[0]))
        row["emulation"] = min(cosine(a, b) for a, b in zip(runtime, exact, strict=True))
    row["cosine_float"] = min(cosine(a, b) for a, b in zip(real, simulated, strict=False))
    row["alike"] = min((cosine(v[0], v[1]) for v in real if v.ndim and len(v) == 2), default=1.0)
    partition = Partition(QuantizedModel(calibrated), target)
    row["macs"], row["quantized"], row["integer"], row["left"] = stage("count", lambda: shares(partition, held[0]))
    row["units"] = sum(u.integer for u in partition.units)
    row["float_units"] = [f"{u.path} ({u.kind}): {u.reason}" for u in partition.float_units]
    if entry.convolutional:
        report = stage("verify", lambda: qfunc.verify(target, runner)(calibrated, [tuple(t[:1] for t in held[0])]))
        row["disagreements"], row["verdict"] = list(report.disagreements), report.verdict
    row["reason"] = _failure(row)
    row["passed"], row["stage"] = not row["reason"], "compare" if row["reason"] else ""


def _quantized(target: Any, model: Any, inputs: tuple[Tensor, ...]) -> tuple[Any, str]:
    try:
        return qfunc.quantize(target)(model), "fx"
    except CaptureError:
        return qfunc.quantize(target, inputs)(model), "export"


def _failure(row: Row) -> str:
    found = []
    if row["quantized"] < QUANTIZED:
        found.append(f"{row['quantized']:.2%} of the MACs quantized; {'; '.join(row['left'][:3])}")
    if not max(row["cosine"], row.get("emulation", 0.0)) >= COSINE:
        exact = f", artifact-emulation {row['emulation']:.6f}" if "emulation" in row else ""
        found.append(f"cosine artifact-simulation {row['cosine']:.6f}{exact}")
    found += row.get("disagreements", [])[:2]
    return " || ".join(found)


__all__ = ["check", "cosine", "shares"]
