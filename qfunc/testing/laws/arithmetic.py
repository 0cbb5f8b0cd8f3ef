"""Laws of a target's arithmetic on one model: simulation, emulation and runtime.

The message has the first unit whose codes are not the runtime's: what it computes there, and how its codes differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from qfunc.analysis.verification_report import Report
from qfunc.errors import EmulationError, QfuncError
from qfunc.graph.interpreter import ObservingInterpreter
from qfunc.graph.sites import quantizer_nodes
from qfunc.lowering.runner_support import raised
from qfunc.ops.node import is_constant
from qfunc.placement.encoding import Encoding
from qfunc.placement.partition import Partition
from qfunc.placement.units import Unit
from qfunc.specs import AveragePool, Log
from qfunc.specs.protocols import FlippingRunner, InspectableRunner
from qfunc.testing.laws.unit_elements import elements_of, summary
from qfunc.testing.pipeline import Pipeline
from qfunc.transforms.emulate import emulate
from qfunc.transforms.verification.check import Verification
from qfunc.transforms.verification.outputs import outputs_of
from qfunc.transforms.verify import compared


def unknown_arithmetic_is_refused(trial: Pipeline) -> None:
    """Check that emulate raises if some arithmetic is not public."""
    if trial.public:
        return
    try:
        emulate(trial.target)(trial.calibrated)
    except EmulationError:
        return
    raise AssertionError("emulate accepts a target without public arithmetic")


def emulates(trial: Pipeline) -> None:
    """Check that emulate accepts the arithmetic of every unit."""
    if trial.public:
        _ = trial.emulation


def simulation_is_within_one_code(trial: Pipeline) -> None:
    """Check that each unit of the simulation, given the emulation's codes, is within one code of the emulation."""
    if trial.public:
        _TeacherForced(trial.calibrated, trial.partition, trial.emulation).check(trial.leaves)


def emulation_matches_the_runtime(trial: Pipeline) -> None:
    """Check that the emulation equals the runtime at the outputs and at every integer tensor that the runner exposes.

    A runner may have `flips`, the share of codes that its order of float sums may change by one.
    """
    if not trial.public or trial.run is None:
        return
    try:
        report = compared(trial.target, trial.run)(trial.calibrated, trial.batches)
    except (QfuncError, AssertionError):
        raise
    except Exception as e:
        text = "The file has the ops that the target leaves in float, too: run them, or give models= of the chip's own ops."
        raise AssertionError(f"the runner raised {raised(e)}. {text}") from e
    exact = report.agreement.startswith("bit-exact") or report.outside_float_units
    good = exact or report.within_bounds or bool(report.incomparable)
    if report.float_units and not isinstance(trial.run, InspectableRunner):
        # Without inner tensors, the freedom of float units cannot be delimited, so only coarse errors fail.
        trial.float_kinds = {trial.partition.kinds[u.group.root] for u in trial.partition.float_units}
        good = not report.agreement.startswith("mismatch")
    flips = trial.run.flips if isinstance(trial.run, FlippingRunner) else 0.0
    good = good or within_flips(report, flips)
    assert good, f"emulation and runtime disagree: {report.verdict}\n{_first_difference(report, trial)}"


def within_flips(report: Report, flips: float) -> bool:
    """Return True if, with the runner's inputs for each unit, at most a share `flips` of the exact codes is off by one.

    One of fewer than 1,000 codes may be.
    """
    alone = report.of("alone")
    exact = [r for r in alone if r.exact]
    few = sum(r.mismatches for r in exact) <= flips * max(sum(r.elements for r in exact), 1000)
    return bool(flips and alone and few and not report.disagreements) and all(r.within_one for r in alone)


ARITHMETIC_LAWS: tuple[Callable[[Pipeline], None], ...] = (
    unknown_arithmetic_is_refused,
    emulates,
    simulation_is_within_one_code,
    emulation_matches_the_runtime,
)


class _TeacherForced(fx.Interpreter):
    """Runs the simulation; each quantizer's codes are compared with the emulation's, then replaced by them."""

    def __init__(self, simulation: fx.GraphModule, partition: Partition, emulation: fx.GraphModule) -> None:
        super().__init__(simulation)
        self.partition, self.emulation = partition, emulation
        self.codes: dict[str, Tensor] = {}
        self.stored = {n.name: n for n in emulation.graph.nodes}
        self.beside = {u.group.output.name: side_by_side(u, partition.output_encoding(u.group.output)) for u in partition.units}
        outputs = {u.group.output for u in partition.units if u.integer}
        self.integer = {n.name for n in outputs if partition.output_encoding(n) is not None}
        self.at = {str(n.target): n.name for n in simulation.graph.nodes if n.op == "call_module"}
        self.quantizer = {self.at[s.path]: s for s in quantizer_nodes(simulation)}

    def check(self, leaves: list[Tensor]) -> None:
        """Check every unit of the simulation against the emulation.

        Raises:
            AssertionError: the first unit that differs by more than one code.
        """
        with torch.inference_mode():
            ObservingInterpreter(self.emulation, self.codes.__setitem__).run(*leaves, enable_io_processing=False)
            self.run(*leaves, enable_io_processing=False)

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        quantizer = self.quantizer.get(n.name)
        if quantizer is None or quantizer.module.dynamic or is_constant(n):
            return value
        encoding, fmt = self.partition.at_path[quantizer.path], quantizer.module.site.scheme.format
        if isinstance(fmt, Log):
            return value  # both encode and decode it in the same way, and compute in float between
        name = quantizer.tensor if quantizer.tensor in self.integer else self._quantizing(quantizer.tensor, encoding)
        if name not in self.codes:
            return value
        emulated = self.codes[name]
        simulated = torch.round(value.double() / encoding.scale) + encoding.zero_point
        far = (simulated - emulated).abs() > 1 + self.beside.get(quantizer.tensor, 0.0)
        far &= ~self._overflowed(name, far)
        if bool(far.any()):
            at = tuple(int(i) for i in far.nonzero()[0])
            raise AssertionError(
                f"simulation and emulation differ by more than 1 LSB at {quantizer.module.site.name!r}{list(at)}: codes "
                f"{simulated[at]:g} and {emulated[at]:g} ({_qparams_text(encoding)}); "
                f"{int(far.sum())} of {far.numel()} elements"
            )
        return (emulated - encoding.zero_point) * encoding.qparams.scale

    def _overflowed(self, name: str, like: Tensor) -> Tensor:
        # The elements whose accumulators do not hold the exact sum, which the simulation does not compute.
        node = self.stored.get(f"{name}_stored")
        return torch.zeros_like(like) if node is None else self.codes[node.name] != self.codes[node.all_input_nodes[0].name]

    def _quantizing(self, tensor: str, encoding: Encoding) -> str:
        # Readers that need different codes of one tensor have separate quantizers, named in graph order.
        mine = (encoding.scale, encoding.zero_point, encoding.format.qmin, encoding.format.qmax)
        nodes = (n for n in self.emulation.graph.nodes if n.name.startswith(f"{tensor}_codes"))
        return next((n.name for n in nodes if n.args[1:5] == mine), "")


def side_by_side(unit: Unit, output: Encoding | None) -> float:
    """Return the error of an arithmetic in codes, besides one rounding: that of the reciprocals of average pools.

    A pool that multiplies by k / 2^n has the relative error |count * k / 2^n - 1|; the best reciprocal of b bits has
    at most 2^-b.  The error applies to codes minus their zero point.
    """
    arithmetic = unit.kernel.arithmetic if unit.kernel is not None else None
    if not isinstance(arithmetic, AveragePool) or output is None:
        return 0.0
    listed = [abs(h * w * k / 2.0**n - 1) for (h, w), k, n in arithmetic.reciprocals]
    searched = 0.0 if arithmetic.reciprocal_bits is None else 2.0**-arithmetic.reciprocal_bits
    return max([searched, *listed]) * max(output.format.qmax - output.zero_point, output.zero_point - output.format.qmin)


def _first_difference(report: Report, trial: Pipeline) -> str:
    """Return lines about the first unit that differs, or about the units that the runtime decided otherwise.

    With a runner that shows inner tensors, that is the first unit that differs on the runtime's own inputs.
    """
    if report.disagreements:
        return "\n".join(report.disagreements)
    alone = [r for r in report.of("alone") if r.mismatches and r.exact]
    first = alone[0] if alone else report.first
    if first is None:
        return ""
    lines = [
        f"The first to differ: {first.name}, {first.mismatches} of {first.elements} elements, by {first.largest_lsb:.3g} LSB"
    ]
    if first.first is not None:
        lines.append(f"Its first element: {first.first}")
    check = Verification(trial.calibrated, trial.target, trial.run)
    unit = _unit_of(first.name, check.partition)
    if unit is None:
        return "\n".join(lines)
    batches = elements_of(check, unit, trial.batches)
    if first.first is not None and batches:
        lines.append(f"There in the emulation: {batches[first.first.batch].described(first.first.at)}")
    lines += summary(batches)
    lines.append(f"Its unit: {unit.path}, {unit.kernel!r}")
    lines += [f"  {name}: {_qparams_text(encoding)}" for name, encoding in _encodings(check.partition, unit)]
    return "\n".join(lines)


def _qparams_text(encoding: Encoding) -> str:
    """Return the qparams of a tensor as text."""
    scale, zero = encoding.qparams.scale.flatten().tolist(), encoding.qparams.zero_point.flatten().tolist()
    shown = (
        f"{scale[0]!r}"
        if len(scale) == 1
        else f"[{', '.join(f'{s:.9g}' for s in scale[:4])}{', ...' if len(scale) > 4 else ''}]"
    )
    return f"scale {shown}, zero point {int(zero[0])}, codes {encoding.format.qmin}..{encoding.format.qmax}"


def _encodings(partition: Partition, unit: Unit) -> list[tuple[str, Encoding]]:
    inside = unit.group.nodes
    edges = [(p.name, partition.encoding(p, n)) for n in inside for p in n.all_input_nodes if p not in inside]
    edges.append(("output", partition.output_encoding(unit.group.output)))
    return [(name, encoding) for name, encoding in edges if encoding is not None]


def _unit_of(name: str, partition: Partition) -> Unit | None:
    # The unit that computes a tensor of codes, or an output.
    if not name.startswith("output "):
        return next((u for u in partition.units if name in (u.tensor, u.path)), None)
    leaves, index = outputs_of(partition)[1], int(name.removeprefix("output "))
    return next((u for u in partition.units if index < len(leaves) and u.group.output is leaves[index]), None)
