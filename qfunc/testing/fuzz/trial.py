"""One network on one target, from capture to the real runtime, as an outcome."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

from qfunc.analysis.verification_report import Report
from qfunc.errors import CaptureError, QfuncError, VerifyError
from qfunc.execution.batches import tensors_of
from qfunc.numerics.qparams import Affine
from qfunc.placement.without_effect.required_units import without_required_units
from qfunc.quantizers.fake_quantize import FakeQuantize
from qfunc.specs import FixedQParams, Target, Unknown
from qfunc.specs.protocols import FlippingRunner, Runner
from qfunc.testing.fuzz import outcome as kinds
from qfunc.testing.fuzz.outcome import Outcome, refused_op
from qfunc.testing.grammar.program import Program
from qfunc.testing.laws.arithmetic import within_flips
from qfunc.transforms.calibrate import calibrate
from qfunc.transforms.deploy import deploy
from qfunc.transforms.emulate import emulate
from qfunc.transforms.quantize import quantize
from qfunc.transforms.verification.check import NUMBERS
from qfunc.transforms.verify import compared

ROUNDING = 1e-3
"""The part of an LSB below which a difference of real outputs is the rounding of float32, for runners with float sums."""
Watch = Callable[[str], None]
"""Called with the name of each stage before it starts."""
REORDERED = 4 * 2**-23
"""The relative difference of two scales from one equation: a matmul of strided tensors sums in another order than one of
contiguous tensors, and each sum has a rounding of float32, of at most 2^-23 of a scale, before and after it."""


class Trial:
    """A program on a target; `stage` is the step that runs.

    Args:
        runner: What runs artifacts, in place of the target's own runner.
        watch: Called with each stage.
    """

    def __init__(self, program: Program, target: Target, runner: Any = None, watch: Watch = lambda stage: None) -> None:
        self.program, self.watch = program, watch
        self.runner = target.runtime.runner if runner is None else runner
        self.target, self.stage = target, ""

    def outcome(self) -> Outcome:
        """Run every stage; no exception leaves this function."""
        try:
            return self._outcome()
        except QfuncError as e:
            if self.stage != "quantize" and _wraps_another(e):
                return Outcome(kinds.RAW_ERROR, self.stage, type(e).__name__, str(e))
            if e.do.startswith("Report "):  # deploy compared the ONNX model with the simulation
                return Outcome(kinds.MISMATCH, self.stage, type(e).__name__, str(e))
            return Outcome(kinds.REFUSED, self.stage, type(e).__name__, str(e), refused_op(e))
        except Exception as e:
            return _raw(e, self.stage)

    def _enter(self, stage: str) -> None:
        self.stage = stage
        self.watch(stage)

    def _outcome(self) -> Outcome:
        self._enter("the float network")
        made = self.program.build()
        if not all(bool(v.isfinite().all()) for b in made["probes"] for v in _values(made["model"], b)):
            return Outcome(kinds.UNDEFINED)
        self._enter("quantize")
        self.target = without_required_units(self.program.with_edits(self.target))
        export = self.program.export
        try:
            calibrated = self._calibrated(made, export)
        except CaptureError:
            if export:
                raise
            export = True  # the error's own advice
            calibrated = self._calibrated(made, export)
        self._enter("emulate")
        scales, codes = _activation_scales(calibrated), self._emulated(calibrated, made["probes"])
        self._enter("deploy")
        artifact = deploy(self.target)(calibrated)
        self._enter("run")
        try:
            for batch in made["probes"][:1]:
                self._run(artifact, list(batch))
        except Exception as e:
            return Outcome(kinds.WRONG_FILE, "run", type(e).__name__, str(e))
        self._enter("verify")
        found = self._verified(calibrated, made["probes"])
        return found if found.bad else self._roads(made, export, codes, scales) or found

    def _run(self, artifact: Any, inputs: list[Any]) -> Any:
        run: Any = self.runner.run if isinstance(self.runner, Runner) else self.runner
        return run(artifact, inputs)

    def _calibrated(self, made: dict[str, Any], export: bool) -> fx.GraphModule:
        self._enter("quantize")
        quantized = quantize(self.target, made["batches"][0] if export else None)(made["model"])
        self._enter("calibrate")
        return calibrate(made["batches"], progress=False)(quantized)

    def _emulated(self, calibrated: fx.GraphModule, probes: list[Any]) -> list[Tensor]:
        # The outputs of the emulation; of the simulation where the arithmetic is not public.
        public = not any(isinstance(k.arithmetic, Unknown) for k in self.target.kernels)
        network = emulate(self.target)(calibrated) if public else calibrated
        return [v for batch in probes for v in _values(network, batch)]

    def _verified(self, calibrated: fx.GraphModule, probes: list[Any]) -> Outcome:
        try:
            report = compared(self.target, self.runner)(calibrated, probes)
        except VerifyError as e:
            if e.wanted == NUMBERS:
                raise
            unrunnable = e.wanted == f"an artifact that {type(self.runner).__name__} runs"
            kind = kinds.WRONG_FILE if unrunnable else kinds.MISMATCH
            return Outcome(kind, "verify", type(e).__name__, str(e))
        except QfuncError:
            raise
        except Exception as e:
            if _inside_runner(e):
                return Outcome(kinds.WRONG_FILE, "verify", type(e).__name__, str(e))
            raise
        return Outcome(kind_of(report, self.runner), "verify", message=report.verdict)

    def _roads(self, made: dict[str, Any], export: bool, codes: list[Tensor], scales: list[Affine]) -> Outcome | None:
        # None if the other way to capture refuses the network, or gives the same codes, with the same scales where those that
        # it calibrates differ by the rounding of float32 only.
        road = "torch.fx" if export else "torch.export"
        try:
            calibrated = self._calibrated(made, not export)
            other = self._emulated(calibrated, made["probes"])
            if not all(map(_equal, other, codes)) and _take_scales(calibrated, scales):
                other = self._emulated(calibrated, made["probes"])
        except QfuncError:
            return None
        except Exception as e:
            return _raw(e, f"{self.stage}, by {road}")
        if len(other) == len(codes) and all(map(_equal, other, codes)):
            return None
        different = [_difference(a, b) for a, b in zip(codes, other, strict=False) if not _equal(a, b)]
        return Outcome(kinds.CAPTURES_DIFFER, "emulate", message="; ".join(different) or "another number of outputs")


def kind_of(report: Report, runner: Any) -> str:
    """Return the kind of outcome of a report of `verify`."""
    verdict = report.agreement
    if report.outside_float_units:
        return kinds.FLOAT_UNITS
    if verdict.startswith("bit-exact"):
        return kinds.EXACT
    if verdict.startswith("not comparable"):
        return kinds.INCOMPARABLE
    if report.within_bounds:
        return kinds.FLOAT_UNITS
    flips = runner.flips if isinstance(runner, FlippingRunner) else 0.0
    rounding = bool(flips) and not report.disagreements and all(r.largest_lsb < ROUNDING for r in report.rows)
    return kinds.FLOAT_UNITS if rounding or within_flips(report, flips) else kinds.MISMATCH


def _wraps_another(error: QfuncError) -> bool:
    # True if the error reports an exception of Python or PyTorch, although the network itself runs.
    cause = error.__cause__
    return cause is not None and not isinstance(cause, QfuncError) and error.found.startswith(f"{type(cause).__name__}: ")


def _raw(error: Exception, stage: str) -> Outcome:
    last = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{Path(last.filename).name}, {last.name}"
    return Outcome(kinds.RAW_ERROR, stage, type(error).__name__, f"{error}\nin {place}")


def _inside_runner(error: Exception) -> bool:
    # True if the exception was raised by a runtime or by the runner that calls it.
    files = [Path(f.filename) for f in traceback.extract_tb(error.__traceback__)]
    return any(f.parent.parent.name == "lowering" and f.stem in ("runner", "session") for f in files)


def _values(network: torch.nn.Module, batch: tuple[Any, ...]) -> list[Tensor]:
    with torch.no_grad():
        return tensors_of(network(*batch))


def _activation_scales(calibrated: fx.GraphModule) -> list[Affine]:
    return [q.qparams() for q in _activation_quantizers(calibrated)]


def _activation_quantizers(calibrated: fx.GraphModule) -> list[FakeQuantize]:
    found = (m for m in calibrated.modules() if isinstance(m, FakeQuantize))
    return [q for q in found if not q.site.constant and not q.dynamic and not isinstance(q.site.value, FixedQParams)]


def _take_scales(calibrated: fx.GraphModule, scales: list[Affine]) -> bool:
    # Give each activation the first scale that differs from its own by a reordered sum; False if none differs so.
    changed = False
    for quantizer in _activation_quantizers(calibrated):
        own = quantizer.qparams()
        near = next((s for s in scales if _is_reordered(s, own)), own)
        if not torch.equal(near.scale, own.scale):
            quantizer.set_qparams(near)
            changed = True
    return changed


def _is_reordered(a: Affine, b: Affine) -> bool:
    if a.scale.shape != b.scale.shape or not torch.equal(a.zero_point, b.zero_point):
        return False
    return bool(((a.scale - b.scale).abs() <= REORDERED * b.scale.abs()).all())


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())


def _difference(a: Tensor, b: Tensor) -> str:
    if a.shape != b.shape:
        return f"shapes {list(a.shape)} and {list(b.shape)}"
    return f"{int((a != b).sum())} of {a.numel()} elements, by {float((a.double() - b.double()).abs().max()):.3g}"
