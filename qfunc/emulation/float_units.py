"""Compare float units with the float64 values of their ops: given the runtime's codes before them, each has a bound."""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence, Set
from functools import partial
from typing import Any

import torch
from attrs import evolve, frozen
from torch import Tensor, fx

from qfunc.emulation.approximation import Approximation
from qfunc.emulation.builder import codes_names
from qfunc.emulation.error_bounds import approximate, at_extremum
from qfunc.emulation.norm_bounds import approximate_module
from qfunc.graph.arguments import unflatten
from qfunc.graph.constants import read_attr
from qfunc.numerics.qparams import spread
from qfunc.ops.indexing import element
from qfunc.ops.node import op_of
from qfunc.ops.sizes import is_number
from qfunc.placement.encoding import Encoding
from qfunc.placement.partition import Partition
from qfunc.placement.units import Unit
from qfunc.specs.protocols import BoundedArithmetic, MixtureArithmetic, RunTimeArithmetic, SummingArithmetic

Measure = Callable[[Tensor], tuple[Tensor, Tensor] | None]
"""measure(tensor) -> (its deviation from the value in float64, the bound of that); None for what cannot be measured."""


@frozen(eq=False)
class Bounded:
    """A tensor that a float unit computes: the deviation of the runtime's value from that in float64, and its bound.

    `measure` returns both for another tensor of these places, such as the emulation's.
    `sums`: the tensor is of an integer unit instead, whose sums the runtime computes in float32, in an order of its own.
    """

    name: str
    deviation: Tensor
    bound: Tensor
    measure: Measure
    sums: bool = False

    def explains(self, emulated: Tensor) -> Tensor | None:
        """Return where the emulation's and the runtime's elements are both within the bound; None for another shape."""
        if emulated.shape != self.deviation.shape or (found := self.measure(emulated)) is None:
            return None
        deviation, bound = found
        return (self.deviation <= self.bound) & (deviation <= bound)


def _measured(name: str, actual: Tensor, measure: Measure) -> Bounded | None:
    found = measure(actual)
    return None if found is None else Bounded(name, *found, measure)


@frozen(eq=False)
class Known:
    """The values of one batch.

    Attributes:
        codes: The runtime's codes by the names of nodes, in the model's layout.
        reals: The real tensors that the runtime shows, likewise.
        emulated: The values of the emulation by node, given these codes.
        outputs: The runtime's outputs.
    """

    codes: Mapping[str, Tensor]
    reals: Mapping[str, Tensor]
    emulated: Mapping[str, Tensor]
    outputs: Sequence[Tensor]


class FloatUnits:
    """The float units of a partition, with the reason for each that cannot be bounded.

    Args:
        partition: The units.
        units: Those without a known arithmetic.
        encodings: The encoding of each node whose codes `Known` has.
        flips: The runtime may compute single codes otherwise when it shows them: each may be off by one.
    """

    def __init__(
        self, partition: Partition, units: Sequence[Unit], encodings: Mapping[str, Encoding], flips: bool = False
    ) -> None:
        self.partition, self.encodings, self.flips = partition, encodings, flips
        self.codes_names = codes_names(partition.network.graph)
        self.unit_of = {node: unit for unit in partition.units for node in unit.group.nodes}
        self.float_nodes = {node for unit in units for node in unit.group.nodes}
        self.unbounded: dict[str, str] = {}
        self.bounded: set[str] = set()
        """The paths of the outputs of units, also integer ones, that compute bounded values from what the runtime shows."""
        self._units = tuple(dict.fromkeys(unit.path for unit in units))

    def compare(self, leaves: Sequence[Tensor], known: Known) -> Iterator[Bounded]:
        """Yield what float units compute, as far as the runtime shows it."""
        state: dict[fx.Node, Any] = {}
        inputs, bounded, shown_real = iter(leaves), list[fx.Node](), set[fx.Node]()
        for node in self.partition.network.graph.nodes:
            if node.op == "placeholder":
                value = next(inputs, None)
                real = isinstance(value, Tensor) and value.is_floating_point()
                state[node] = Approximation.exact(value) if real and value is not None else value
            elif node.op == "get_attr":
                value = read_attr(self.partition.network, node)
                real = isinstance(value, Tensor) and value.is_floating_point()
                state[node] = Approximation.exact(value) if real else value
            elif node.op == "output":
                for source, found in self._outputs(node, state, known):
                    bounded.append(source)
                    yield found
            elif node in self.float_nodes:
                state[node] = self._approximate(node, state, known, self.unit_of[node].path)
            elif (unit := self.unit_of.get(node)) is None:
                state[node] = self._approximate(node, state, known, None)  # arithmetic on sizes
            elif unit.group.output is node:
                state[node] = self._computed(unit, state, known)
                if self.flips and (sums := self._sums(unit, state, known)) is not None:
                    yield sums
            if node.op in ("call_function", "call_module") and (node.name in known.codes or node.name in known.reals):
                if isinstance(state.get(node), Approximation) and (node in self.float_nodes or bool(state[node].error.any())):
                    bounded.append(node)
                    yield self._shown(node, state[node], known)
                if node.name in known.reals:
                    state[node] = Approximation.exact(known.reals[node.name])
                    shown_real.add(node)
        before = self._before(bounded, shown_real, known)
        for path in self._units:
            if path not in before:
                self.unbounded.setdefault(path, "the runtime shows no tensor after it")

    def _before(self, bounded: Sequence[fx.Node], shown_real: Set[fx.Node], known: Known) -> set[str]:
        # The paths of the float units that compute bounded values from what the runtime shows.
        pending, seen = list(bounded), set(bounded)
        while pending:
            node = pending.pop()
            read_real = (n for n in node.all_input_nodes if not self._reads_codes(n, node, known))
            new = [n for n in read_real if n not in seen and n not in shown_real]
            seen.update(new)
            pending += new
        self.bounded.update(self.unit_of[node].tensor for node in seen if node in self.unit_of)
        return {self.unit_of[node].path for node in seen if node in self.float_nodes}

    def _reads_codes(self, node: fx.Node, reader: fx.Node, known: Known) -> bool:
        # True if the runtime shows the codes of an edge; another reader may get the real value.
        encoding = self.partition.encoding(node, reader)
        return encoding is not None and node.name in known.codes and self.encodings.get(node.name) is encoding

    def _shown(self, node: fx.Node, value: Approximation, known: Known) -> Bounded:
        path, real = self.partition.names[node], known.reals.get(node.name)
        if real is not None:
            return _real(path, real, value)
        return _quantized(path, known.codes[node.name], self.encodings[node.name], value)

    def _sums(self, unit: Unit, state: dict[fx.Node, Any], known: Known) -> Bounded | None:
        # The codes of an integer unit of a runtime whose float32 sums have another order, given the codes that it shows.
        output, arithmetic = unit.group.output, getattr(unit.kernel, "arithmetic", None)
        if output.name not in known.codes or not isinstance(arithmetic, BoundedArithmetic):
            return None
        values = ChainMap[fx.Node, Any]({}, state)
        for node in unit.group.nodes:
            values[node] = self._approximate(node, values, known, None, flips=0)
        found = values[output]
        if not isinstance(found, Approximation):
            return None
        encoding = self.encodings[output.name]
        if own := arithmetic.own_error(encoding.format.qmax - encoding.format.qmin):
            found = evolve(found, error=found.error + own * encoding.scale)
        return evolve(self._shown(output, found, known), sums=True)

    def _approximate(
        self, node: fx.Node, state: MutableMapping[fx.Node, Any], known: Known, path: str | None, flips: float | None = None
    ) -> Any:
        inputs = {n: self._read(n, node, state, known, flips) for n in node.all_input_nodes}
        missing = [self.partition.paths[n] for n, value in inputs.items() if value is None]
        found: Any = None
        if not missing and node.op == "call_module":
            found = approximate_module(self.partition.network.get_submodule(str(node.target)), tuple(inputs.values()))
        elif not missing and (op_of(node) is not None or node.target is element) and not node.kwargs:
            with torch.no_grad():
                found = approximate(node, fx.map_arg(node.args, inputs.__getitem__))
        elif not missing and isinstance(node.target, type(torch.Tensor.size)):
            size: Any = node.target
            found = size(*fx.map_arg(node.args, lambda n: getattr(inputs[n], "value", inputs[n])))
        if found is None and is_number(node):
            found = known.emulated.get(node.name)  # sizes are known of tensors without a bound, too
        if found is None and path is not None:
            kind = self.partition.kinds[node]
            reason = f"it reads {missing[0]!r}, whose error is unknown" if missing else f"no rule bounds the error of {kind}"
            self.unbounded.setdefault(path, reason)
        return found

    def _computed(self, unit: Unit, state: dict[fx.Node, Any], known: Known) -> Any:
        # The result of a unit with a known arithmetic: what the emulation computes of the runtime's codes.
        output, inside = unit.group.output, unit.group.nodes
        inputs = [self._read(n, node, state, known) for node in inside for n in node.all_input_nodes if n not in inside]
        if any(i is None for i in inputs):
            return None
        inexact = any(isinstance(i, Approximation) and bool(i.error.any()) for i in inputs)
        value, encoding = known.emulated.get(output.name), self.partition.output_encoding(output)
        if inexact or not isinstance(value, Tensor):  # or sizes
            coded = encoding is not None
            arithmetic = getattr(unit.kernel, "arithmetic", None)
            of_reals = isinstance(arithmetic, BoundedArithmetic) and not isinstance(arithmetic, SummingArithmetic)
            if isinstance(arithmetic, RunTimeArithmetic | MixtureArithmetic) or (coded and not of_reals):
                return None  # codes that the runtime does not show may be others
            for node in inside:
                state[node] = self._approximate(node, state, known, None)
            return state[output]
        if encoding is not None and unit.integer:
            return Approximation.exact(_dequantized(value, encoding))
        return Approximation.exact(value) if value.is_floating_point() else value

    def _read(
        self, node: fx.Node, reader: fx.Node, state: Mapping[fx.Node, Any], known: Known, flips: float | None = None
    ) -> Any:
        # The value of an edge: with the codes that the runtime shows, or within half a step of the real value.
        value = state.get(node)
        encoding = self.partition.encoding(node, reader)
        if encoding is None:
            return value
        if node.op == "get_attr":
            return Approximation.exact(_dequantized(encoding.codes(read_attr(self.partition.network, node)), encoding))
        if self._reads_codes(node, reader, known):
            real = _dequantized(known.codes[node.name], encoding)
            steps = float(self.flips if flips is None else flips)
            return Approximation(real, encoding.qparams.scale.double() * steps + torch.zeros_like(real))
        emulated = known.emulated.get(node.name if self._integer(node) else self.codes_names[node.name])
        if emulated is not None and isinstance(value, Approximation) and not bool(value.error.any()):
            return Approximation.exact(_dequantized(emulated, encoding))
        if not isinstance(value, Approximation) or encoding.qparams.scale.ndim != 0:
            return None
        low, high = (_dequantized(torch.tensor(float(q)), encoding) for q in (encoding.format.qmin, encoding.format.qmax))
        clamped = value.value.clamp(low.double(), high.double())
        return Approximation(clamped, value.error + encoding.scale)

    def _integer(self, node: fx.Node) -> bool:
        unit = self.unit_of.get(node)
        return unit is not None and unit.integer and unit.group.output is node

    def _outputs(self, output: fx.Node, state: dict[fx.Node, Any], known: Known) -> Iterator[tuple[fx.Node, Bounded]]:
        for index, node in enumerate(unflatten(output)[: len(known.outputs)]):
            value = state.get(node) if isinstance(node, fx.Node) else None
            actual = known.outputs[index]
            if node in self.float_nodes and node.all_input_nodes:
                read = self._read(node.all_input_nodes[0], node, state, known)
                if (place := _measured(f"output {index}", actual, partial(at_extremum, node, read))) is not None:
                    yield node, place
            if self.flips and (measure := self._dequantized_output(node, output, known)) is not None:
                yield node, Bounded(f"output {index}", *measure(actual), measure, sums=True)
            if not isinstance(value, Approximation) or not (bool(value.error.any()) or node in self.float_nodes):
                continue  # computed by units that are compared code by code
            encoding = self.partition.encoding(node, output)
            if encoding is None:
                yield node, _real(f"output {index}", actual, value)
            elif encoding.qparams.scale.ndim == 0:
                yield node, _quantized(f"output {index}", actual, encoding, value, real=True)

    def _dequantized_output(
        self, node: fx.Node, output: fx.Node, known: Known
    ) -> Callable[[Tensor], tuple[Tensor, Tensor]] | None:
        # The difference of an output from what its codes stand for, and the bound of the runtime's rounding of codes to reals.
        encoding = self.partition.encoding(node, output)
        if encoding is None or not self._reads_codes(node, output, known):
            return None
        real = _dequantized(known.codes[node.name], encoding)
        ends = [
            _dequantized(torch.tensor(float(q)), encoding).abs().max() for q in (encoding.format.qmin, encoding.format.qmax)
        ]
        bound = torch.full_like(real, 2.0**-21 * float(max(ends)))
        return lambda output: ((output.double() - real).abs(), bound)


def _deviation(real: Tensor, value: Approximation) -> Tensor:
    # Equal infinities do not deviate, although their difference is no number; nor does NaN from NaN, or an overflow of float32.
    wide, wanted = real.double(), value.value
    overflows = wide.isinf() & (wanted.sign() == wide.sign()) & (wanted.abs() + value.error > torch.finfo(torch.float32).max)
    same = (wide == wanted) | (wide.isnan() & wanted.isnan()) | overflows
    return torch.where(same, 0.0, (wide - wanted).abs().nan_to_num(nan=math.inf, posinf=math.inf))


def _bound(value: Approximation) -> Tensor:
    # Codes become real values in float32, by (q - z) s or q s - z s: at most four roundings of the largest value.
    finite = torch.where(value.value.isfinite(), value.value.abs(), 0.0)
    largest = finite.amax() if finite.numel() else finite.sum()
    return value.error + 2.0**-22 * largest + 2.0**-126


def _dequantized(codes: Tensor, encoding: Encoding) -> Tensor:
    scheme = encoding.quantizer.module.site.scheme
    scale, zero = (spread(p.double(), codes, scheme) for p in (encoding.qparams.scale, encoding.qparams.zero_point))
    return (codes.double() - zero) * scale


def _real(name: str, actual: Tensor, value: Approximation) -> Bounded:
    def measure(real: Tensor) -> tuple[Tensor, Tensor]:
        return _deviation(real, value), _bound(value)

    return Bounded(name, *measure(actual), measure)


def _quantized(name: str, actual: Tensor, encoding: Encoding, value: Approximation, real: bool = False) -> Bounded:
    # Rounding moves a value by half a step; beyond the ends of the codes the last code is right.
    half = encoding.qparams.scale.double() * 0.5
    low, high = (_dequantized(torch.tensor(float(q)), encoding) for q in (encoding.format.qmin, encoding.format.qmax))
    inside = torch.minimum(torch.maximum(value.value, low), high)
    bound = value.error + half * (1 + 2.0**-20) + 2.0**-22 * value.value.abs()

    def measure(found: Tensor) -> tuple[Tensor, Tensor]:
        codes = torch.round(found.double() / encoding.scale) + encoding.zero_point if real else found
        return (_dequantized(codes, encoding) - inside).abs(), bound

    return Bounded(name, *measure(actual), measure)
