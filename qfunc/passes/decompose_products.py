"""Products that say more than a matrix product, opened: einsum, addmm, baddbmm become matmul, transposes, additions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from attrs import evolve
from torch import fx

from qfunc.graph.record import NodeInfo, attach, path_of, record_of
from qfunc.ops.canonicalize import argument, short_name

Emit = Callable[..., fx.Node]


def decompose_products(network: fx.GraphModule) -> fx.GraphModule:
    """The (own) network with each such product opened, where one matmul with transposes says it.

    >>> from qfunc.frontend.capture import capture
    >>> net = decompose_products(capture()(_Scores()))
    >>> [n.name for n in net.graph.nodes if n.op == "call_function"]
    ['einsum_transpose', 'einsum']
    """
    record = record_of(network)
    if record is None:
        return network
    facts = dict(record.facts)
    for node in [n for n in network.graph.nodes if n.op.startswith("call")]:
        open_ = {"einsum": _einsum, "addmm": _sum, "baddbmm": _sum}.get(short_name(node) or "")
        if open_ is None:
            continue
        source = facts.get(node.name, NodeInfo(path_of(network, node)))

        def emit(function: Any, *arguments: Any, node: fx.Node = node, source: NodeInfo = source) -> fx.Node:
            with node.graph.inserting_before(node):
                made = node.graph.create_node("call_function", function, arguments, {}, f"{node.name}_{function.__name__}")
            facts[made.name] = evolve(source, path=f"{source.path}.{made.name.removeprefix(f'{node.name}_')}")
            return made

        made = open_(node, emit)
        if made is None:
            continue
        node.replace_all_uses_with(made)
        node.graph.erase_node(node)
        facts.pop(made.name, None)
        made.name = node.name  # the last op bears the name of the whole
        facts[made.name] = source
    network.recompile()
    return attach(network, evolve(record, facts=facts))


def _sum(node: fx.Node, emit: Emit) -> fx.Node | None:
    # beta * input + alpha * (a @ b)
    added, a, b = (
        argument(node, k, *names) for k, names in enumerate((("input", "self"), ("mat1", "batch1"), ("mat2", "batch2")))
    )
    beta, alpha = (argument(node, k, name) for k, name in ((3, "beta"), (4, "alpha")))
    product = emit(torch.matmul, a, b)
    product = product if alpha in (None, 1) else emit(torch.mul, product, alpha)
    added = added if beta in (None, 1) else emit(torch.mul, added, beta)
    return emit(torch.add, product, added)


def _einsum(node: fx.Node, emit: Emit) -> fx.Node | None:
    # Batch axes, one free axis of each operand, and one that is summed over: else it stays what it is.
    given = [a for a in node.args[1:] if isinstance(a, fx.Node)] or list(node.args[1])  # type: ignore[arg-type]
    equation = str(node.args[0]).replace(" ", "")
    read, arrow, out = equation.partition("->")
    names = read.split(",")
    if len(given) != 2 or len(names) != 2 or not arrow or "." in equation or any(len(set(n)) != len(n) for n in (*names, out)):
        return None
    left, right = names
    batch = [c for c in left if c in right and c in out]
    summed = [c for c in left if c in right and c not in out]
    rows, columns = ([c for c in n if c not in other and c in out] for n, other in ((left, right), (right, left)))
    if len(summed) != 1 or len(rows) != 1 or len(columns) != 1 or len(left) + len(right) != 2 * len(batch) + 4:
        return None
    a = _ordered(emit, given[0], left, "".join([*batch, *rows, *summed]))
    b = _ordered(emit, given[1], right, "".join([*batch, *summed, *columns]))
    return _ordered(emit, emit(torch.matmul, a, b), "".join([*batch, *rows, *columns]), out)


def _ordered(emit: Emit, value: fx.Node, have: str, want: str) -> fx.Node:
    order = [have.index(c) for c in want]
    moved = [k for k, place in enumerate(order) if k != place]
    if not moved:
        return value
    if len(moved) == 2:
        return emit(torch.transpose, value, *(k - len(order) for k in moved))
    return emit(torch.permute, value, tuple(order))


class _Scores(torch.nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return torch.einsum("bqd,bkd->bqk", q, k)


__all__ = ["decompose_products"]
