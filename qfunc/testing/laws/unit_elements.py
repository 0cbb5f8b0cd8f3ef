"""The results of one unit, in the emulation and in the runtime, element by element, with what they are computed from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from attrs import frozen
from torch import Tensor, fx

from qfunc.execution.batches import tensors_of
from qfunc.graph.arguments import with_fixed_arguments
from qfunc.graph.constants import read_attr
from qfunc.ops.definition import Trait
from qfunc.placement.encoding import Encoding
from qfunc.placement.partition import Partition
from qfunc.placement.products import products_of
from qfunc.placement.units import Unit
from qfunc.transforms.verification.check import Verification
from qfunc.transforms.verification.outputs import outputs_of

_SUMS = ("acc", "sum", "stored", "product")
_MIDWAY = 2.0**-40
"""The distance, in codes, up to which a value is midway between two codes: the error of its computation in float64."""


@frozen(eq=False)
class Elements:
    """What a unit computes from one batch.  All tensors have the shape of its result.

    Attributes:
        name: The result in the emulation.
        emulated, runtime: Codes, or real values of a unit whose result has no codes.
        unrounded: Before it is rounded and clamped, in codes with the zero point, in float64; None for real values.
        sums: The accumulators as (name, values), or None.
        operands: The codes of the inputs of an elementwise op, by name.
    """

    name: str
    emulated: Tensor
    runtime: Tensor
    unrounded: Tensor | None
    sums: tuple[str, Tensor] | None
    operands: dict[str, Tensor]

    @property
    def differ(self) -> Tensor:
        """True where the runtime has another value."""
        return (self.emulated != self.runtime) & ~(self.emulated.isnan() & self.runtime.isnan())

    @property
    def ties(self) -> Tensor:
        """True where the value is midway between two codes."""
        assert self.unrounded is not None
        return (self.unrounded - self.unrounded.floor() - 0.5).abs() <= _MIDWAY

    def described(self, at: tuple[int, ...]) -> str:
        """Return the values of one element as text."""
        named = [(self.name, self.emulated), *((self.sums,) if self.sums else ()), *self.operands.items()]
        text = ", ".join(f"{name} = {float(values[at]):.12g}" for name, values in named)
        if self.unrounded is None:
            return text
        return f"{text}; before rounding {float(self.unrounded[at]):.9g}{', a tie' if self.ties[at] else ''}"


def summary(batches: Sequence[Elements]) -> list[str]:
    """Return a line about all codes that differ: by how much, whether they are ties, and where.

    Their range, of accumulators if there are any, is compared with that of equal codes that are not clamped; of ties, if all
    codes that differ are.
    """
    if not batches or batches[0].unrounded is None:
        return []
    differ, ties = _joined(b.differ for b in batches), _joined(b.ties for b in batches)
    emulated, unrounded = _joined(b.emulated for b in batches), _joined(b.unrounded for b in batches)
    change = (_joined(b.runtime for b in batches) - emulated)[differ]
    if not len(change):
        return []
    least, most = (f"{float(v):+.9g}" for v in (change.min(), change.max()))
    tied = int(ties[differ].sum())
    far = float((unrounded - unrounded.floor() - 0.5).abs()[differ].max())
    kind = "all ties" if tied == len(change) else f"{tied} of them ties, the others" if tied else "no tie,"
    kind = kind if tied == len(change) else f"{kind} at most {far:.2g} from midway"
    by = f"each by {least}" if least == most else f"by {least} to {most}"
    equal = ~differ & ((emulated - unrounded).abs() <= 1) & (ties if tied == len(change) else True)
    sums = None if batches[0].sums is None else _joined(b.sums[1] for b in batches if b.sums is not None)
    what, place = ("their values before rounding", unrounded) if sums is None else ("their accumulators", sums)
    others = "ties that are equal" if tied == len(change) else "equal codes that are not clamped"
    beside = f", those of {others} {_range(place[equal])}" if bool(equal.any()) else f"; no {others}"
    return [
        f"All that differ: {len(change)} of {differ.numel()} codes, {by}, {kind}; {what} are {_range(place[differ])}{beside}"
    ]


def elements_of(check: Verification, unit: Unit, batches: Iterable[Any]) -> tuple[Elements, ...]:
    """Return the elements of an integer unit for each batch, on the runtime's inputs as far as it shows them.

    Empty if the runtime shows no result of the unit.
    """
    with torch.inference_mode():
        found = [_elements(check, unit, tensors_of(batch)) for batch in batches]
    return tuple(e for e in found if e is not None) if None not in found else ()


def _elements(check: Verification, unit: Unit, leaves: list[Tensor]) -> Elements | None:
    assert check.emulation is not None
    outputs, shown = check.run(leaves, "check_target")
    forced = check.forced(leaves, shown)
    arguments = with_fixed_arguments(check.emulation, leaves)
    results = tensors_of(forced.run(*arguments, enable_io_processing=False))
    name, encoding = unit.group.output.name, check.partition.output_encoding(unit.group.output)
    node = next((n for n in check.emulation.graph.nodes if n.name == name), None)
    leaf = outputs_of(check.partition)[1]
    if not unit.integer or node is None:
        return None
    if name in check.encodings:
        path, _ = check.encodings[name]
        emulated, runtime = next((a, b) for p, a, b in forced.pairs if p == path)
    elif unit.group.output in leaf:
        emulated = forced.values[name]
        runtime = check.in_order(outputs, results, leaves)[leaf.index(unit.group.output)]
        runtime = runtime if encoding is None else _codes(runtime, encoding)
    else:
        return None
    values, shape = forced.values, emulated.shape
    sums = next((n for n in node.all_input_nodes if n.name in {f"{name}_{s}" for s in _SUMS}), None)
    sums = None if sums is None or values[sums.name].shape != shape else sums
    inputs = {} if encoding is None else _inputs(check, unit, values)
    operands = {}
    if check.partition.context.has(unit.group.root, Trait.ELEMENTWISE):
        operands = {n: codes for n, codes, _ in inputs.values() if codes.shape == shape}
    unrounded = None
    if encoding is not None:
        acc = None if sums is None else values[sums.name]
        real = _from_sums(check.partition, unit, acc) if acc is not None else None
        real = _in_float64(check.partition, unit, inputs, values) if real is None else real
        unrounded = real / encoding.qparams.scale.double() + encoding.qparams.zero_point.double()
    pair = None if sums is None else (sums.name, values[sums.name])
    return Elements(name, emulated.double(), runtime.double(), unrounded, pair, operands)


def _codes(real: Tensor, encoding: Encoding) -> Tensor:
    # An output between two codes stays between them.
    codes = real.double() / encoding.qparams.scale.double()
    near = codes.round()
    return torch.where((codes - near).abs() < 2.0**-10, near, codes) + encoding.qparams.zero_point


def _inputs(check: Verification, unit: Unit, values: dict[str, Any]) -> dict[fx.Node, tuple[str, Tensor, Encoding]]:
    # (name in the emulation, codes, encoding) of each input of the unit that has codes.
    assert check.emulation is not None
    partition, found = check.partition, dict[fx.Node, tuple[str, Tensor, Encoding]]()
    for node in unit.group.nodes:
        for producer in node.all_input_nodes:
            encoding = partition.encoding(producer, node)
            if encoding is None or producer.op == "get_attr" or producer in unit.group.nodes:
                continue
            mine = (encoding.scale, encoding.zero_point, encoding.format.qmin, encoding.format.qmax)
            coded = (n for n in check.emulation.graph.nodes if n.name.startswith(f"{producer.name}_codes"))
            name = next((n.name for n in coded if n.args[1:5] == mine), producer.name)
            found[producer] = (name, values[name], encoding)
    return found


def _from_sums(partition: Partition, unit: Unit, acc: Tensor) -> Tensor | None:
    # The real value of an accumulator, with the bias; None if the unit adds another tensor.
    if not all(partition.context.has(n, Trait.CLAMPS) for n in unit.group.nodes[1:]):
        return None
    root = unit.group.root
    products = products_of(partition, unit)
    if products is None:
        scales = [e.qparams.scale.double() for n in root.all_input_nodes if (e := partition.encoding(n, root)) is not None]
        return acc.double() * scales[0] * scales[1]
    spatial = products.weight.ndim - 2 if unit.kind in ("conv", "conv_transpose") else 0
    scale, bias = products.scale * 2.0**-products.fraction_bits, products.real_bias
    shape = (-1, *[1] * spatial)
    real = acc.double() * (scale.reshape(shape) if scale.ndim else scale)
    return real if bias is None else real + bias.double().reshape(shape)


def _in_float64(
    partition: Partition, unit: Unit, inputs: dict[fx.Node, tuple[str, Tensor, Encoding]], values: dict[str, Any]
) -> Tensor:
    # The ops of the unit in float64, without the clamps after them.
    nodes = list(unit.group.nodes)
    while len(nodes) > 1 and partition.context.has(nodes[-1], Trait.CLAMPS):
        nodes.pop()
    state: dict[fx.Node, Any] = {}
    for node in nodes:
        for producer in node.all_input_nodes:
            if producer not in state:
                state[producer] = _real(partition, producer, node, inputs, values)
        state[node] = node.target(*fx.map_arg(node.args, state.__getitem__), **node.kwargs)  # type: ignore[operator]
    result: Tensor = state[nodes[-1]]
    return result


def _real(
    partition: Partition, producer: fx.Node, reader: fx.Node, inputs: dict[fx.Node, tuple[str, Tensor, Encoding]],
    values: dict[str, Any],
) -> Any:  # fmt: skip
    if producer in inputs:
        _, codes, encoding = inputs[producer]
        return (codes.double() - encoding.qparams.zero_point.double()) * encoding.qparams.scale.double()
    value = values.get(producer.name)
    if producer.op == "get_attr":
        value, own = read_attr(partition.network, producer).detach(), partition.encoding(producer, reader)
        value = value if own is None else own.quantizer.module(value).detach()
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def _joined(parts: Iterable[Tensor | None]) -> Tensor:
    return torch.cat([p.flatten() for p in parts if p is not None])


def _range(values: Tensor) -> str:
    low, high = (f"{float(v):.9g}" for v in (values.min(), values.max()))
    return low if low == high else f"in [{low}, {high}]"
