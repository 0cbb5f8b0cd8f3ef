"""The weights of a calibrated model that could have fewer bits, and the figures from which their cost follows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

from attrs import evolve, field, frozen
from torch import Tensor, fx

from qfunc.analysis.lockstep import Ops
from qfunc.analysis.operations.multiply_accumulates import multiply_accumulates
from qfunc.graph.constants import read_attr
from qfunc.graph.data_movement import TRANSPARENT as CODES_PASS
from qfunc.graph.data_movement import commutes, only_moves_codes
from qfunc.graph.record import path_of, record_of
from qfunc.graph.selectors import Context
from qfunc.ops.definition import Trait
from qfunc.ops.node import attribute, has, kind_of
from qfunc.placement.rules import narrow
from qfunc.quantizers.fake_quantize import FakeQuantize
from qfunc.quantizers.site import Site
from qfunc.specs import Float, Format, Int, Levels, Log, Scheme

FLOAT_BITS = 32


@frozen
class Weight:
    """One weight: its site, the ops that read it, and its values with each number of bits.

    Attributes:
        site: The name of its site.
        op: The path of the op for which it is quantized.
        readers: The paths of all ops that read it.
        elements: The number of elements.
        products: (multiply-accumulates for one batch, bits of the input) of each op that reads the weight.
        narrowed: (bits, the weight quantized to them), from narrow to wide.
    """

    site: str
    op: str
    readers: tuple[str, ...]
    elements: int
    products: tuple[tuple[int, int], ...]
    node: fx.Node = field(eq=False, repr=False)
    narrowed: tuple[tuple[int, Tensor], ...] = field(eq=False, repr=False)

    @property
    def bits(self) -> tuple[int, ...]:
        """The available numbers of bits."""
        return tuple(b for b, _ in self.narrowed)


def weights_of(ops: Ops, bits: Sequence[int], arguments: tuple[Any, ...]) -> Iterator[Weight]:
    """Yield each weight of a calibrated model with integer codes, quantized to its own bits and to each narrower `bits`.

    Args:
        ops: The ops of the model in evaluation form.
        bits: The numbers of bits to try.
        arguments: One batch, for which multiply-accumulates are counted.
    """
    quantizers = {n: ops.module(n) for n in ops.nodes if kind_of(n) == "fake_quantize"}
    counts, record = multiply_accumulates(ops, arguments), record_of(ops.model)
    target = record.target if record else None
    context = Context(ops.model, target.ops if target else ())
    passing = {n for n in ops.nodes if kind_of(n) in CODES_PASS or (target is not None and commutes(n, context, target))}
    for node, module in quantizers.items():
        site, fmt = module.site, module.site.scheme.format
        if site.slot != "weight" or not isinstance(site.value, Scheme) or not isinstance(fmt, Int):
            continue
        weight = read_attr(ops.model, node.all_input_nodes[0]).detach()
        narrower = sorted({b for b in bits if b < fmt.bits})
        narrowed = (*((b, _narrowed(site, b, weight)) for b in narrower), (fmt.bits, module(weight).detach()))
        products = tuple(
            (_products_with(ops, node, user, counts), _input_bits(user, node, quantizers, passing)) for user in node.users
        )
        readers = tuple(path_of(ops.model, user) for user in node.users)
        yield Weight(site.name, site.op, readers, weight.numel(), products, node, narrowed)


def _products_with(ops: Ops, weight: fx.Node, reader: fx.Node, counts: Mapping[fx.Node, int]) -> int:
    # A recurrent layer has two weights: of its products each has a share that is proportional to its size.
    total = counts.get(reader, 0)
    if reader.op != "call_function" or not has(reader, Trait.RECURRENT):
        return total
    matrices = [attribute(reader, name) for name in ("weight_ih", "weight_hh")]
    sources = {m: m.all_input_nodes[0] if kind_of(m) == "fake_quantize" else m for m in matrices}
    sizes = {m: read_attr(ops.model, n).numel() for m, n in sources.items() if n.op == "get_attr"}
    return total * sizes[weight] // sum(sizes.values()) if len(sizes) == 2 and weight in sizes else total


def _narrowed(site: Site, bits: int, weight: Tensor) -> Tensor:
    value = narrow(site.value, bits, f"op {site.op!r}")
    quantizer = FakeQuantize(evolve(site, value=value), weight).eval()
    state = site.estimator.update(site.estimator.init(value, weight), weight, value)
    quantizer.set_qparams(site.estimator.finalize(state, value), weight)
    quantized: Tensor = quantizer(weight).detach()
    return quantized


def _input_bits(reader: fx.Node, weight: fx.Node, quantizers: Mapping[fx.Node, FakeQuantize], passing: Set[fx.Node]) -> int:
    # The bits of the widest other operand that is not a constant; operands without a quantizer are floats.
    widths = [0]
    for operand in (n for n in reader.all_input_nodes if n is not weight and n.op != "get_attr"):
        while operand in passing and only_moves_codes(operand) and len(operand.all_input_nodes) == 1:
            operand = operand.all_input_nodes[0]
        site = quantizers[operand].site if operand in quantizers else None
        if site is None or not site.constant:
            widths.append(FLOAT_BITS if site is None else _width(site.scheme.format))
    return max(widths) or FLOAT_BITS


def _width(fmt: Format) -> int:
    match fmt:
        case Int(bits=bits):
            return bits
        case Float():
            return fmt.signed + fmt.exponent + fmt.mantissa
        case Log():
            return 1 + fmt.magnitude_bits
        case Levels():
            return (len(fmt.values) - 1).bit_length()
