"""The time of each unit of a network on integers and in float, measured alone, and of the conversions between them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence, Set
from typing import Any

import torch
from attrs import field, frozen
from torch import Tensor, fx

from qfunc.diagnosis.cheapest_placement import TensorTraffic
from qfunc.diagnosis.latency import Latency
from qfunc.diagnosis.robust_line import Line, fitted
from qfunc.diagnosis.unit_networks import UnitNetwork, unit_network
from qfunc.errors import CaptureError, QfuncError
from qfunc.execution.progress import track
from qfunc.graph.data_movement import keeps_codes
from qfunc.graph.interpreter import ObservingInterpreter
from qfunc.graph.view import QuantizedModel
from qfunc.lowering.artifact import Artifact
from qfunc.ops.node import is_constant
from qfunc.placement.partition import Partition
from qfunc.placement.units import Unit
from qfunc.specs import Everything, Target, edit
from qfunc.transforms.calibrate import calibrate
from qfunc.transforms.deploy import deploy
from qfunc.transforms.quantize import quantize

PAIRS = 8
"""The number of pairs of neighbouring units from which the time of conversions is found."""


def calibrated_on(inputs: tuple[Any, ...], target: Target, model: Any) -> fx.GraphModule:
    """Return a float model, quantized and calibrated on one batch.

    It is traced symbolically if it can be, as `quantize(target)` does, so that its ops have the names that they have there.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # only its time matters
        try:
            quantized = quantize(target)(model)
        except CaptureError:
            quantized = quantize(target, inputs)(model)
        calibrated: fx.GraphModule = calibrate([inputs], progress=False)(quantized)
    return calibrated


def deployed(target: Target, model: Any, inputs: tuple[Any, ...]) -> Artifact:
    """Return the artifact of a float model; its qparams are those of one batch."""
    return deploy(target)(calibrated_on(inputs, target, model))


@frozen
class UnitTime:
    """Units that compute the same op with the same arguments on tensors of the same sizes.

    Attributes:
        paths: The paths of the ops.
        kind: Their kind.
        sizes: The sizes of their inputs.
        integers: The seconds of one unit on integers, without conversions, as far as it could be measured alone.
        floats: The seconds of one unit in float.
    """

    paths: tuple[str, ...]
    kind: str
    sizes: tuple[tuple[int, ...], ...]
    integers: float | None = None
    floats: float | None = None

    @property
    def gain(self) -> float:
        """The time on integers less the time in float; 0 if it could not be measured."""
        return 0.0 if self.integers is None or self.floats is None else self.integers - self.floats


@frozen(eq=False)
class _Pair:
    network: UnitNetwork
    elements: int  # of the tensor between the two
    first: Unit
    second: Unit


@frozen(eq=False)
class UnitTimes:
    """The units of a calibrated model by the classes of equal ones, and the tensors between them.

    Attributes:
        rows: The classes.
        seconds: For each unit its gain, None for those without a form on integers.
        tensors: The tensors between units, for `cheapest`.
    """

    rows: tuple[UnitTime, ...]
    seconds: Mapping[Unit, float | None]
    tensors: tuple[TensorTraffic, ...]
    row_of: Mapping[Unit, int] = field(repr=False)

    def slower_than(self, integers: Set[Any]) -> frozenset[str]:
        """Return the paths of the measured units that are not among `integers`."""
        return frozenset(u.path for u, i in self.row_of.items() if u not in integers and self.rows[i].integers is not None)

    def by_weight(self) -> list[UnitTime]:
        """Return the classes whose time differs most, over all their units, first."""
        measured = [row for row in self.rows if row.gain]
        return sorted(measured, key=lambda row: -abs(row.gain) * len(row.paths))


def measure_units(
    calibrated: fx.GraphModule, target: Target, inputs: tuple[Any, ...], latency: Latency, progress: bool
) -> UnitTimes:
    """Measure each class of units alone, on integers and in float, by the files of networks of one or two units."""
    return _Measurement(calibrated, target, inputs, latency, progress).times()


class _Measurement:
    def __init__(
        self, calibrated: fx.GraphModule, target: Target, inputs: tuple[Any, ...], latency: Latency, progress: bool
    ) -> None:
        self.target, self.latency, self.progress = target, latency, progress
        self.plain = edit.skip(Everything())(target)
        self.partition = Partition(QuantizedModel(calibrated), target)
        self.values: dict[str, Any] = {}
        network = self.partition.network
        with torch.no_grad():
            ObservingInterpreter(network, self.values.__setitem__).run_batch(inputs, "measure_placement")
        self.unit_of = {node: unit for unit in self.partition.units for node in unit.group.nodes}
        self.seconds_of: dict[str, tuple[float, float] | None] = {}

    def times(self) -> UnitTimes:
        units = [u for u in self.partition.units if u.integer or self._moves(u)]
        alone = {u: self._network(u) for u in units if not self._moves(u)}
        behind = {u: self._behind(u) for u in units if self._moves(u)}
        pairs = self._pairs([u for u in alone if alone[u] is not None])
        networks = [*alone.values(), *(p.network for p in (*pairs, *behind.values()) if p is not None)]
        distinct = {n.signature: n for n in networks if n is not None}
        for name, network in track(list(distinct.items()), "measure_placement", "unit", self.progress):
            self.seconds_of[name] = self._seconds(network)
        each = self._conversion(pairs, alone)
        rows, row_of = self._rows(alone, behind, each)
        seconds = {u: None if u not in row_of else rows[row_of[u]].gain for u in self.partition.units}
        return UnitTimes(rows, seconds, self._tensors(each), row_of)

    def _moves(self, unit: Unit) -> bool:
        return keeps_codes(unit.group.root, self.partition.context, self.target)

    def _network(self, *units: Unit) -> UnitNetwork | None:
        nodes = [node for unit in units for node in unit.group.nodes]
        return unit_network(self.partition.network, nodes, self.values)

    def _seconds(self, network: UnitNetwork) -> tuple[float, float] | None:
        try:
            files = [deployed(target, network.module, network.inputs) for target in (self.target, self.plain)]
        except QfuncError:  # the unit alone is not what the target takes
            return None
        integers, floats = self.latency(files, network.inputs)
        return integers, floats

    def _read(self, unit: Unit) -> list[fx.Node]:
        # The tensors that a unit reads.
        nodes = dict.fromkeys(n for node in unit.group.nodes for n in node.all_input_nodes if n not in unit.group.nodes)
        return [n for n in nodes if not is_constant(n) and isinstance(self.values.get(n.name), Tensor)]

    def _behind(self, unit: Unit) -> _Pair | None:
        # A unit that moves codes, with the one before it.
        read = self._read(unit)
        before = self.unit_of.get(read[0]) if len(read) == 1 else None
        if before is None or not before.integer or self._moves(before):
            return None
        network = self._network(before, unit)
        return None if network is None else _Pair(network, self.values[unit.group.output.name].numel(), before, unit)

    def _pairs(self, units: Sequence[Unit]) -> list[_Pair]:
        # Neighbouring units, of tensors of sizes as different as there are.
        found, measured = dict[str, _Pair](), {*units}
        for unit in units:
            for tensor in self._read(unit):
                before = self.unit_of.get(tensor)
                if before is None or before not in measured:
                    continue
                network = self._network(before, unit)
                if network is not None:
                    found.setdefault(network.signature, _Pair(network, self.values[tensor.name].numel(), before, unit))
        ordered = sorted(found.values(), key=lambda pair: pair.elements)
        step = max(1, (len(ordered) - 1) / (PAIRS - 1))
        return [ordered[round(i * step)] for i in range(min(PAIRS, len(ordered)))]

    def _conversion(self, pairs: Sequence[_Pair], alone: Mapping[Unit, UnitNetwork | None]) -> Line:
        # The seconds of quantizing or dequantizing a tensor.  Alone, two units convert the tensor between them twice.
        found = list[tuple[int, float]]()
        for pair in pairs:
            networks = (alone[pair.first], alone[pair.second], pair.network)
            known = [n and self.seconds_of[n.signature] for n in networks]
            if None not in known:
                first, second, both = (integers - floats for integers, floats in known)  # type: ignore[misc]
                found.append((pair.elements, (first + second - both) / 2))
        return fitted(found)

    def _rows(
        self, alone: Mapping[Unit, UnitNetwork | None], behind: Mapping[Unit, _Pair | None], each: Line
    ) -> tuple[tuple[UnitTime, ...], dict[Unit, int]]:
        classes: dict[str, list[Unit]] = {}
        for unit, network in alone.items():
            classes.setdefault(unit.path if network is None else network.signature, []).append(unit)
        for unit, pair in behind.items():
            classes.setdefault(unit.path if pair is None else pair.network.signature, []).append(unit)
        rows, row_of = list[UnitTime](), dict[Unit, int]()
        for units in classes.values():
            unit = units[0]
            if (pair := behind.get(unit)) is not None:
                integers, floats = self._alone(pair.network, each)
                first, plain = self._alone(alone[pair.first], each)
                if integers is not None and first is not None and floats is not None and plain is not None:
                    integers, floats = integers - first, floats - plain
                else:
                    integers = floats = None
            else:
                integers, floats = self._alone(alone.get(unit), each)
            sizes = tuple(tuple(self.values[n.name].shape) for n in self._read(unit))
            row_of |= dict.fromkeys(units, len(rows))
            rows.append(UnitTime(tuple(dict.fromkeys(u.path for u in units)), unit.kind, sizes, integers, floats))
        return tuple(rows), row_of

    def _alone(self, network: UnitNetwork | None, each: Line) -> tuple[float | None, float | None]:
        # The seconds without the conversions of the inputs and of the output.
        known = None if network is None else self.seconds_of[network.signature]
        if network is None or known is None:
            return None, None
        integers, floats = known
        ends = [*(x.numel() for x in network.inputs if x.is_floating_point()), network.elements]
        return integers - sum(map(each, ends)), floats

    def _tensors(self, each: Line) -> tuple[TensorTraffic, ...]:
        found = []
        for node in self.partition.network.graph.nodes:
            value, writer = self.values.get(node.name), self.unit_of.get(node)
            inner = writer is not None and node is not writer.group.output
            if inner or is_constant(node) or not isinstance(value, Tensor) or not value.is_floating_point():
                continue
            readers = tuple(dict.fromkeys(self.unit_of.get(user) for user in node.users))
            found.append(TensorTraffic(writer, readers, each(value.numel())))
        return tuple(found)
