"""Describe a fused group as the unit that an arithmetic sees, also whether a product gets a factor that was transposed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from qfunc.arithmetic import Coding, FusedOp, Inner, Operand, Size, UnitSpec
from qfunc.graph.constants import read_attr
from qfunc.graph.data_movement import only_moves_codes
from qfunc.graph.record import Context, arguments
from qfunc.ops.definition import Trait
from qfunc.ops.node import attribute, is_constant, op_of
from qfunc.ops.sizes import is_number
from qfunc.placement.encoding import Encoding
from qfunc.placement.fusion import FusedGroup, clamp_bounds
from qfunc.placement.mixtures import Mixture
from qfunc.specs import DerivedQParams, Kernel, Scheme

_OVER_ONE_AXIS = (F.avg_pool1d, F.adaptive_avg_pool1d)
_OVER_THREE_AXES = (F.avg_pool3d, F.adaptive_avg_pool3d)


class Edge(NamedTuple):
    """A tensor that an op reads."""

    producer: fx.Node
    reader: fx.Node


class Described(NamedTuple):
    """A unit, and the edge of the float network for each of its operands."""

    unit: UnitSpec
    edges: dict[Operand, Edge]


class Tensors(NamedTuple):
    """The tensors of a partition.

    Attributes:
        encoding: (producer, reader) -> the encoding of an edge, or None.
        run_time: (producer, reader) -> the scheme of an edge that is quantized at run time, or None.
        readers: node -> the kinds of the integer units that read its value.
        values: False before kernels are chosen: the unit has no qparams and no constants.
    """

    encoding: Callable[[fx.Node, fx.Node], Encoding | None]
    run_time: Callable[[fx.Node, fx.Node], Scheme | None]
    readers: Callable[[fx.Node], tuple[str, ...]]
    values: bool = True


def describe(
    group: FusedGroup, kernel: Kernel, context: Context, tensors: Tensors, output: Encoding | None, channels_last: bool = False
) -> Described:
    """Return the unit of a group for a kernel.

    Args:
        group: The group.
        kernel: The kernel.
        context: The graph.
        tensors: Its tensors.
        output: The encoding of the result, or None.
        channels_last: Whether the runtime stores the operands as its convolutions write them.
    """
    edges = dict(_operands(group, context, tensors))
    root = group.root
    tensors_of: dict[fx.Node, Any] = {edge.producer: o for o, edge in reversed(edges.items())}
    tensors_of |= {n: Inner(at) for at, n in enumerate(group.nodes)}
    unit = UnitSpec(
        context.fact(root).path,
        context.kind(root),
        _arguments(root, context, tensors_of),
        tuple(edges),
        None if output is None else _coding(output, tensors.values),
        tuple(FusedOp(context.kind(n), clamp_bounds(context, n), _arguments(n, context, tensors_of)) for n in group.nodes[1:]),
        kernel.rounded_bounds,
        channels_last,
        only_moves_codes(root),
        tensors.readers(group.output),
        1 if root.target in _OVER_ONE_AXIS else 3 if root.target in _OVER_THREE_AXES else 2,
        context.model.get_submodule(str(root.target)) if root.op == "call_module" else None,
    )
    return Described(unit, edges)


def describe_mixture(mixture: Mixture, path: str, context: Context, tensors: Tensors, output: Encoding | None) -> Described:
    """Return the unit of a mixture of experts, as `MixtureArithmetic` states."""
    edges: dict[Operand, Edge] = {}

    def operand(slot: str, producer: fx.Node, reader: fx.Node) -> Operand:
        edge = Edge(producer, reader)
        found = _operand(slot, mixture.nodes.index(reader), edge, context, tensors)
        edges[found] = edge
        return found

    def layer(node: fx.Node) -> tuple[Operand, Operand | None]:
        tensors_of = dict(context.slots(node))
        bias = tensors_of.get("bias")
        return operand("weight", tensors_of["weight"], node), None if bias is None else operand("bias", bias, node)

    reader = next(n for n in mixture.nodes if mixture.shares in n.all_input_nodes)
    arguments = {
        "input": operand("input", mixture.input, mixture.nodes[0]),
        "shares": operand("", mixture.shares, reader),
        "up": [layer(e.up) for e in mixture.experts],
        "down": [layer(e.down) for e in mixture.experts],
    }
    coding = None if output is None else _coding(output, tensors.values)
    return Described(UnitSpec(path, "experts", arguments, tuple(edges), coding), edges)


def _operands(group: FusedGroup, context: Context, tensors: Tensors) -> Iterator[tuple[Operand, Edge]]:
    for at, node in enumerate(group.nodes):
        slots = context.slots(node)
        inside = {producer for _, producer in slots}
        others = [("", n) for n in node.all_input_nodes if n not in inside and not is_number(n)]
        for slot, producer in (*slots, *others):
            if producer not in group.nodes:
                yield _operand(slot, at, Edge(producer, node), context, tensors), Edge(producer, node)


def _operand(slot: str, at: int, edge: Edge, context: Context, tensors: Tensors) -> Operand:
    encoding, constant = tensors.encoding(*edge) if slot else None, is_constant(edge.producer)
    stored = read_attr(context.model, edge.producer) if constant else None
    return Operand(
        str(edge.producer.target) if constant else edge.producer.name,
        slot,
        None if encoding is None else _coding(encoding, tensors.values),
        at,
        None if stored is None else tuple(stored.shape),
        context.channel_axis(edge.reader) if slot == "weight" else 0,
        tensors.run_time(*edge),
        tensors.readers(edge.producer),
        None if stored is None or not tensors.values else partial(_stored, stored, encoding),
        partial(_is_transposed, edge.producer, context),
    )


def _stored(value: Tensor, encoding: Encoding | None) -> Tensor:
    return value.detach() if encoding is None else encoding.codes(value)


def _coding(encoding: Encoding, values: bool) -> Coding:
    site = encoding.quantizer.module.site
    return Coding(site.scheme, encoding.qparams if values else None, isinstance(site.value, DerivedQParams))


def _arguments(node: fx.Node, context: Context, tensors: dict[fx.Node, Any]) -> dict[str, Any]:
    op, own = op_of(node), context.user_op(node)
    pairs = zip(op.parameters, node.args, strict=False) if op else arguments(own, node) if own else node.kwargs.items()

    def argument(node: fx.Node) -> Any:
        return tensors.get(node) or Size(node.name)

    return {name: fx.map_arg(value, argument) for name, value in pairs}


def _is_transposed(node: Any, context: Context) -> bool | None:
    """Return what successive transposes before a product do together, or None if it cannot be known from the graph.

    It is True if they swap the last two axes or make the first axis the last: ONNX Runtime reads such a factor without moving
    it.  False stands for other moves and for none.
    """
    chain = []
    while isinstance(node, fx.Node) and context.kind(node) == "transpose":
        chain.append(node)
        node = attribute(node, "input")
    if _reads_transposed(node, context):
        return None
    if not chain:
        return False
    rank = _rank(node, chain, context)
    if rank is None:
        return None
    axes = list(range(rank))
    for step in reversed(chain):
        if step.target is torch.permute:
            axes = [axes[d] for d in attribute(step, "dims")]
        else:
            a, b = (attribute(step, name) % rank for name in ("dim0", "dim1"))
            axes[a], axes[b] = axes[b], axes[a]
    swapped = [*range(rank - 2), rank - 1, rank - 2]
    return axes in (swapped, [*range(1, rank), 0])


def _reads_transposed(node: Any, context: Context) -> bool:
    # ONNX Runtime moves a transpose after ops of single elements, and combines it with others there.
    pending, seen = [node], set[fx.Node]()
    while pending:
        current = pending.pop()
        if isinstance(current, fx.Node) and current not in seen and context.has(current, Trait.ELEMENTWISE):
            seen.add(current)
            pending += current.all_input_nodes
            if any(context.kind(n) == "transpose" for n in current.all_input_nodes):
                return True
    return False


def _rank(base: Any, chain: list[fx.Node], context: Context) -> int | None:
    # Of the transposes, or of a reshape before them; swaps of the last axes are the same in each rank.
    if any(node.target not in (torch.transpose, torch.permute) for node in chain):
        return None
    for node in chain:
        if node.target is torch.permute:
            return len(attribute(node, "dims"))
    shape = attribute(base, "shape") if isinstance(base, fx.Node) and base.target is torch.reshape else None
    if isinstance(shape, tuple | list):
        return len(shape)
    named = [attribute(node, name) for node in chain for name in ("dim0", "dim1")]
    return 4 if all(type(d) is int and d in (-1, -2) for d in named) else None
