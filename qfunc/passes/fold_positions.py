"""Fold the positions and masks of a program that torch.export made for fixed sizes: they are constants."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

from qfunc.graph.constants import read_attr
from qfunc.graph.record import record_of
from qfunc.ops.creation import arange, full
from qfunc.ops.definition import Trait
from qfunc.ops.node import attribute, has, kind_of, op_of
from qfunc.ops.sizes import is_number

_DTYPES = (torch.bool, torch.int32, torch.int64)


def fold_positions(network: fx.GraphModule) -> fx.GraphModule:
    """Replace indices and booleans that no input changes by constants, in place, where all sizes are fixed.

    Two forms of the masks of transformers then disappear: x[i, j] for indices that are a whole grid is a view of x, and
    c & x for a constant c that is True everywhere is x, expanded.

    >>> from qfunc.frontend.capture import capture
    >>> program = torch.export.export(_Masked(), (torch.zeros(1, 3), torch.ones(1, 3, dtype=torch.int64)))
    >>> [kind_of(n) for n in fold_positions(capture()(program)).graph.nodes if n.op == "call_function"]
    ['cast', 'reshape', 'expand', 'where']
    """
    record = record_of(network)
    if record is None or not record.sizes or any(None in sizes for _, sizes in record.sizes):
        return network
    values = _values(network)
    for node, value in list(values.items()):
        if node.op != "get_attr" and value.dtype in _DTYPES and any(user not in values for user in node.users):
            _store(network, node, value)
    sizes: dict[fx.Node, tuple[Any, ...]] = {}
    placeholders = (n for n in network.graph.nodes if n.op == "placeholder")
    sizes |= {node: tuple(shape) for node, (_, shape) in zip(placeholders, record.sizes, strict=False)}
    for node in list(network.graph.nodes):
        if node not in values and (shape := _simplified(network, node, sizes)) is not None:
            sizes[node] = shape
    network.graph.eliminate_dead_code(is_impure_node=lambda n: n.op in ("placeholder", "output"))
    network.recompile()
    return network


def _values(network: fx.GraphModule) -> dict[fx.Node, Tensor]:
    # The tensors that are computed from indices and booleans of the model alone, or created.
    found: dict[fx.Node, Any] = {}
    for node in network.graph.nodes:
        if node.op == "get_attr":
            value = read_attr(network, node)
            if isinstance(value, Tensor) and value.dtype in _DTYPES:
                found[node] = value
            continue
        op = op_of(node)
        if node.op != "call_function" or op is None or node.kwargs:
            continue
        read = [n for n in node.all_input_nodes if n not in found and not _lends_its_device(node, n)]
        if read or not any(has(node, trait) for trait in _PURE) or any(is_number(n) for n in node.all_input_nodes):
            continue
        arguments = fx.map_arg(node.args, lambda n: found.get(n, _ANY))
        with torch.no_grad():
            value = op.call(*arguments)
        if isinstance(value, Tensor) and value.dtype in _DTYPES:
            found[node] = value
    return found


_PURE = (Trait.FOLDABLE, Trait.CREATES, Trait.MOVES_VALUES, Trait.POSITION_IF_INPUTS, Trait.INTEGER_RESULT)
_ANY = torch.zeros((), dtype=torch.int64)
"""In place of a tensor of which an op reads the device only."""


def _lends_its_device(node: fx.Node, source: fx.Node) -> bool:
    # arange(..., like) and full(..., dtype, like) read only the device of `like`.
    lends = node.target is arange or (node.target is full and attribute(node, "dtype") is not None)
    return lends and attribute(node, "like") is source


def _store(network: fx.GraphModule, node: fx.Node, value: Tensor) -> None:
    name = next(n for i in range(len(network.graph.nodes)) if not hasattr(network, n := f"{node.name}_{i}"))
    network.register_buffer(name, value.contiguous(), persistent=False)
    with network.graph.inserting_before(node):
        constant = network.graph.get_attr(name)
    node.replace_all_uses_with(constant)


def _simplified(network: fx.GraphModule, node: fx.Node, sizes: dict[fx.Node, tuple[Any, ...]]) -> tuple[Any, ...] | None:
    # The shape of a cast, of an index that is a view and of a conjunction with True; the last two are rewritten.
    match kind_of(node):
        case "cast":
            return sizes.get(node.args[0]) if isinstance(node.args[0], fx.Node) else None
        case "index":
            source, places = attribute(node, "input"), attribute(node, "indices")
            shape = None if source not in sizes else _grid(network, places, sizes[source])
            if shape is None:
                return None
            node.target, node.args = torch.reshape, (source, shape)
            return shape
        case "logic" if node.target in (torch.bitwise_and, torch.logical_and):
            a, b = node.args
            for constant, other in ((a, b), (b, a)):
                if not isinstance(constant, fx.Node) or not isinstance(other, fx.Node) or other not in sizes:
                    continue
                if constant.op == "get_attr":
                    value = read_attr(network, constant)
                    if value.dtype == torch.bool and bool(value.all()):
                        shape = np.broadcast_shapes(tuple(value.shape), sizes[other])
                        node.target, node.args = torch.Tensor.expand, (other, shape)
                        return shape
    return None


def _grid(network: fx.GraphModule, places: Any, sizes: tuple[Any, ...]) -> tuple[int, ...] | None:
    # The shape of x[i, j, ...] if the indices of each axis of x count along an axis of the result, in order.
    if len(places) != len(sizes) or any(not isinstance(p, fx.Node) or p.op != "get_attr" for p in places):
        return None
    values = [read_attr(network, p) for p in places]
    shape, last = np.broadcast_shapes(*(tuple(v.shape) for v in values)), -1
    for value, size in zip(values, sizes, strict=True):
        wide = value.reshape((1,) * (len(shape) - value.ndim) + tuple(value.shape))
        axes = [i for i, n in enumerate(wide.shape) if n > 1]
        if len(axes) > 1 or (axes and axes[0] <= last) or wide.flatten().tolist() != list(range(size)):
            return None
        last = axes[0] if axes else last
    return shape


class _Masked(torch.nn.Module):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        rows, columns = torch.arange(1)[:, None, None], torch.arange(3)[None, None]
        return torch.where(torch.ones((), dtype=torch.bool) & mask.bool()[rows, columns], x, 0.0)
