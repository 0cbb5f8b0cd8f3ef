"""Decompose einsum, addmm and baddbmm into matmul, transposes and additions."""

from __future__ import annotations

import torch
from torch import fx

from qfunc.ops.canonicalize import argument
from qfunc.ops.sizes import short_name
from qfunc.passes.decomposition import Decompose, Emit, decompose


def decompose_products(network: fx.GraphModule) -> fx.GraphModule:
    """Decompose each einsum that is one matmul with transposes, each addmm and each baddbmm, in place.

    >>> from qfunc.frontend.capture import capture
    >>> net = decompose_products(capture()(_Scores()))
    >>> [n.name for n in net.graph.nodes if n.op == "call_function"]
    ['einsum_transpose', 'einsum']
    """
    return decompose(network, lambda node: _DECOMPOSITIONS.get(short_name(node.op, node.target) or ""))


def _add_product(node: fx.Node, emit: Emit) -> fx.Node | None:
    # beta * input + alpha * (a @ b)
    term, a, b = (
        argument(node, k, *names) for k, names in enumerate((("input", "self"), ("mat1", "batch1"), ("mat2", "batch2")))
    )
    beta, alpha = (argument(node, k, name) for k, name in ((3, "beta"), (4, "alpha")))
    product = emit(torch.matmul, a, b)
    product = product if alpha in (None, 1) else emit(torch.mul, product, alpha)
    term = term if beta in (None, 1) else emit(torch.mul, term, beta)
    return emit(torch.add, product, term)


def _einsum(node: fx.Node, emit: Emit) -> fx.Node | None:
    # Decompose an equation with batch axes, one free axis of each operand and one summed axis, or the product of a tensor and
    # a matrix; return None for others.
    operands = [a for a in node.args[1:] if isinstance(a, fx.Node)] or list(node.args[1])  # type: ignore[arg-type]
    equation = str(node.args[0]).replace(" ", "")
    inputs, arrow, out = equation.partition("->")
    names = inputs.split(",")
    if (
        len(operands) != 2
        or len(names) != 2
        or not arrow
        or "." in equation
        or any(len(set(n)) != len(n) for n in (*names, out))
    ):
        return None
    if len(names[1]) > len(names[0]) == 2:
        names.reverse()
        operands = operands[::-1]
    left, right = names
    batch = [c for c in left if c in right and c in out]
    summed = [c for c in left if c in right and c not in out]
    rows, columns = ([c for c in n if c not in other and c in out] for n, other in ((left, right), (right, left)))
    whole = len(left) == len(batch) + len(rows) + 1 and len(right) == len(batch) + 2
    if len(summed) != 1 or len(columns) != 1 or not rows or not whole or (batch and len(rows) > 1):
        return None
    a = _permute(emit, operands[0], left, "".join([*batch, *rows, *summed]))
    b = _permute(emit, operands[1], right, "".join([*batch, *summed, *columns]))
    return _permute(emit, emit(torch.matmul, a, b), "".join([*batch, *rows, *columns]), out)


def _permute(emit: Emit, value: fx.Node, have: str, want: str) -> fx.Node:
    order = [have.index(c) for c in want]
    axes = [k for k, place in enumerate(order) if k != place]
    if not axes:
        return value
    if len(axes) == 2:
        return emit(torch.transpose, value, *(k - len(order) for k in axes))
    return emit(torch.permute, value, tuple(order))


class _Scores(torch.nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return torch.einsum("bqd,bkd->bqk", q, k)


_DECOMPOSITIONS: dict[str, Decompose] = {"einsum": _einsum, "addmm": _add_product, "baddbmm": _add_product}
