"""measure_placement: which units the runtime of this machine computes faster in float than on integers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from attrs import evolve
from torch import nn
from torch.export import ExportedProgram

from qfunc._transform import Transform
from qfunc.analysis.integer_share import integer_share
from qfunc.diagnosis.cheapest_placement import cheapest
from qfunc.diagnosis.latency import Latency, RunTime
from qfunc.diagnosis.measured_placement import MeasuredPlacement, PlacementTime
from qfunc.diagnosis.plan import Plan
from qfunc.diagnosis.report import ALIKE
from qfunc.diagnosis.unit_times import calibrated_on, deployed, measure_units
from qfunc.errors import SpecError
from qfunc.execution.batches import tensors_of
from qfunc.execution.progress import track
from qfunc.graph.view import QuantizedModel
from qfunc.lowering.artifact import Artifact
from qfunc.placement.partition import Partition
from qfunc.specs import Everything, Target, edit
from qfunc.specs.protocols import LoadingRunner
from qfunc.transforms.deploy import deploy
from qfunc.transforms.validate import describe, require_target_value

CHANGES = 8
"""The number of classes of units that are moved one after another, the costliest first."""


def measure_placement(
    target: Target, example_inputs: tuple[Any, ...], progress: bool = True, *, latency: Latency | None = None
) -> Callable[[nn.Module | ExportedProgram], MeasuredPlacement]:
    """Return a function from a float model to a `MeasuredPlacement`: the edit with which the model is fastest, and a table.

    Each unit that the rules of the target put on integers is deployed alone, on integers and in float, and measured with the
    values that it reads; equal units are measured once. So are pairs of neighbours, from which the time of a conversion
    follows. A minimum cut is then the placement of least

        sum t_int(u) over units on integers + sum t_float(u) over units in float + sum of the conversions between them.

    Units alone do not show what a runtime does with several, such as layouts of memory that it keeps. So the whole network
    is deployed as given, with all rules and with this placement, and measured in turns; from the fastest that has products
    on integers, the eight classes that cost most are moved one after another, and a move that gains 5 % is kept. Where the
    target as given is within 5 % of the result, the edit changes nothing.

    Args:
        target: The hardware, with a runner of this machine, unless `latency` measures elsewhere.
        example_inputs: The inputs of one run, in their real sizes: a tuple, as for `quantize`. The edit names ops as
            `quantize(target)(model)` does, or `quantize(target, example_inputs)(model)` if the model needs these.
        progress: Show a progress bar on a terminal, else a line every 30 seconds.
        latency: A function (artifacts, inputs) -> seconds of each, which may run them on a board; None for
            `RunTime(target.runtime.runner)`.
    Raises:
        SpecError: the target refuses the model or has no runner of this machine; `latency` is not a function.

    >>> import qfunc
    >>> from qfunc import targets
    >>> model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    >>> found = measure_placement(targets.onnxruntime, (torch.randn(1, 64),), progress=False)(model)
    >>> [row.kind for row in found.rows], found.ratio > 0
    (['linear', 'linear'], True)
    >>> quantized = qfunc.quantize(found.edit(targets.onnxruntime))(model)
    """
    require_target_value(target, "measure_placement")
    if not isinstance(example_inputs, tuple):
        do = "Write (x,) for one tensor."
        raise SpecError(where="measure_placement", found=describe(example_inputs), wanted="a tuple of example inputs", do=do)
    if latency is not None and not callable(latency):
        wanted, do = "a function (artifacts, inputs) -> seconds of each", "Leave it out for the runner of the target."
        raise SpecError(where="measure_placement, latency", found=describe(latency), wanted=wanted, do=do)
    clock = _own_clock(target) if latency is None else latency

    def transform(model: nn.Module | ExportedProgram) -> MeasuredPlacement:
        with torch.inference_mode(False):
            return _measured(target, model, example_inputs, clock, progress)

    arguments = {"target": target, "example_inputs": example_inputs, "progress": progress, "latency": latency}
    return Transform(measure_placement, arguments, transform)


def _own_clock(target: Target) -> Latency:
    runner, where = target.runtime.runner, f"measure_placement({target.name})"
    do = "Pass latency=, a function that measures files where the chip is."
    wanted = "a runner of this machine that loads a file once"
    if not isinstance(runner, LoadingRunner):
        raise SpecError(where=where, found="no runner" if runner is None else repr(runner), wanted=wanted, do=do)
    if getattr(runner, "machine", None) is not None:
        raise SpecError(where=where, found=f"the runner of another machine, {runner!r}", wanted=wanted, do=do)
    if missing := getattr(runner, "missing", str)():
        raise SpecError(where=where, found=missing, wanted="the runtime on this machine", do="Install it, or pass latency=.")
    return RunTime(runner)


def _measured(target: Target, model: Any, inputs: tuple[Any, ...], latency: Latency, progress: bool) -> MeasuredPlacement:
    ready, unplaced, every = calibrated_on(inputs, target, model), Plan(), target
    if target.runtime.slower:
        whole_rules = edit.slower()(target)
        placed = calibrated_on(inputs, whole_rules, model)
        if _integers(placed, whole_rules) != _integers(ready, target):
            ready, unplaced, every = placed, Plan(edits=(("edit.slower()", edit.slower()),)), whole_rules
    units = measure_units(ready, every, inputs, latency, progress)
    integers = cheapest(units.seconds, units.tensors)
    floats = units.slower_than(integers)
    whole = _Whole(target, model, inputs, latency)
    best = whole.fastest([Plan(), unplaced, unplaced.joined(Plan(floats=floats))])
    for row in track(units.by_weight()[:CHANGES], "measure_placement", "change", progress):
        changed = evolve(best, floats=best.floats ^ frozenset(row.paths))
        before, after = whole.seconds([best, changed])
        best = changed if ALIKE * after < before else best
    plans = list(dict.fromkeys([Plan(), unplaced, best, None]))
    seconds = dict(zip(plans, whole.seconds(plans), strict=True))
    plan = Plan() if seconds[Plan()] <= ALIKE * seconds[best] else best
    names = {best: "measured", unplaced: "all rules", Plan(): "as given", None: "in float"}
    times = sorted((PlacementTime(names[p], p, s, whole.shares[p]) for p, s in seconds.items()), key=lambda t: t.seconds)
    return MeasuredPlacement(target.name, units.rows, tuple(times), plan)


def _integers(calibrated: Any, target: Target) -> set[str]:
    return {unit.path for unit in Partition(QuantizedModel(calibrated), target).units if unit.integer}


class _Whole:
    """The network by several plans, each deployed once; None is the network in float."""

    def __init__(self, target: Target, model: Any, inputs: tuple[Any, ...], latency: Latency) -> None:
        self.target, self.model, self.inputs, self.latency = target, model, inputs, latency
        self.files: dict[Plan | None, Artifact | None] = {}
        self.shares: dict[Plan | None, float] = {None: 0.0}

    def seconds(self, plans: Sequence[Plan | None]) -> list[float]:
        """Return the time of each plan, measured in turns; infinity for a plan without products on integers."""
        for plan in plans:
            if plan not in self.files:
                self.files[plan] = self._file(plan)
        files = [self.files[plan] for plan in plans]
        found = iter(self.latency([file for file in files if file is not None], tensors_of(self.inputs)))
        return [math.inf if file is None else float(next(found)) for file in files]

    def fastest(self, plans: Sequence[Plan]) -> Plan:
        """Return the plan of the least time."""
        distinct = list(dict.fromkeys(plans))
        return min(zip(distinct, self.seconds(distinct), strict=True), key=lambda pair: pair[1])[0]

    def _file(self, plan: Plan | None) -> Artifact | None:
        if plan is None:
            return deployed(edit.skip(Everything())(self.target), self.model, self.inputs)
        target = plan.target(self.target)
        try:
            calibrated = calibrated_on(self.inputs, target, self.model)
        except SpecError:
            if plan == Plan():
                raise
            return None  # such as ops that only move codes, between ops on integers
        self.shares[plan] = integer_share(QuantizedModel(calibrated), self.inputs).share
        return deploy(target)(calibrated) if plan == Plan() or self.shares[plan] else None
