"""Layer norms that a model writes out become one op: no scale fits an eps, and their steps are no tensors to quantize."""

from __future__ import annotations

import torch.nn.functional as F
from torch import fx

from qfunc.graph.constants import read_attr
from qfunc.ops.node import attribute, kind_of
from qfunc.ops.normalization import rms_norm


def fuse_norms(network: fx.GraphModule) -> fx.GraphModule:
    """The (own) network in which each RMSNorm and LayerNorm over last axes is one op, with the weight that follows it.

    RMSNorm: w x / sqrt(mean(x^2) + eps); LayerNorm: the same of x - mean(x), plus b.  The axes are as many as those of
    w; without w, or where a value of theirs is read elsewhere, the steps stay as they are.

    >>> import torch
    >>> from qfunc.frontend.capture import capture
    >>> class Norm(torch.nn.Linear):
    ...     def forward(self, x): return self.bias * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))
    >>> [kind_of(n) for n in fuse_norms(capture()(Norm(2, 3))).graph.nodes]
    ['input', 'constant', 'rms_norm', 'output']
    """
    changed = False
    for node in list(network.graph.nodes):
        if kind_of(node) == "mul":
            changed |= _named(network, node)
    if changed:
        network.graph.eliminate_dead_code(is_impure_node=lambda n: n.op in ("placeholder", "output"))
        network.recompile()
    return network


def _named(network: fx.GraphModule, scaled: fx.Node) -> bool:
    # `scaled` is w n, perhaps with a cast of n between them, which then keeps the product outside.
    weight, normed = _operands(scaled, "constant")
    cast = normed is not None and kind_of(normed) == "cast"
    normed = _read(normed, 0) if normed is not None and cast else normed
    if weight is None or normed is None:
        return False
    shape = tuple(read_attr(network, weight).shape)
    found = _normed(normed, len(shape))
    if found is None:
        return False
    x, eps, centered = found
    last, shift = scaled, None
    if centered and not cast and len(scaled.users) == 1 and kind_of(after := next(iter(scaled.users))) == "add":
        given, _ = _operands(after, "constant")
        if given is not None and tuple(read_attr(network, given).shape) == shape:
            last, shift = after, given
    root, held = (normed, None) if cast else (last, weight)
    steps = _steps(root, x)
    if any(user not in steps for step in steps - {root} for user in step.users):
        return False
    root.target = F.layer_norm if centered else rms_norm
    root.args = (x, shape, held, shift, eps) if centered else (x, shape, held, eps)
    return True


def _normed(node: fx.Node, axes: int) -> tuple[fx.Node, float, bool] | None:
    # x, eps, and whether the mean is subtracted, of a norm over so many last axes; None where it is none.
    if kind_of(node) == "mul":
        inverse, value = _operands(node, "rsqrt")
    elif kind_of(node) == "div":
        value, inverse = _read(node, 0), _read(node, 1)
        inverse = inverse if inverse is not None and kind_of(inverse) == "sqrt" else None
    else:
        return None
    total = None if inverse is None else _read(inverse, 0)
    if total is None or value is None or kind_of(total) != "add":
        return None
    mean, eps = _read(total, 0), total.args[1]
    if not isinstance(eps, float) or not _is_mean(mean, axes) or not _is_square(_read(mean, 0), value):
        return None
    centre = _read(value, 1) if kind_of(value) == "sub" else None
    if not _is_mean(centre, axes):
        return value, eps, False
    x = _read(value, 0)
    return (x, eps, True) if x is not None and _read(centre, 0) is x else None


def _read(node: fx.Node | None, index: int) -> fx.Node | None:
    # The tensor that an op reads at a place, if it is one.
    value = None if node is None or index >= len(node.args) else node.args[index]
    return value if isinstance(value, fx.Node) else None


def _is_mean(node: fx.Node | None, axes: int) -> bool:
    if node is None or kind_of(node) not in ("mean", "global_avg_pool") or not attribute(node, "keepdim"):
        return False
    dim = attribute(node, "dim")
    return sorted(dim if isinstance(dim, list | tuple) else [dim]) == list(range(-axes, 0))


def _is_square(node: fx.Node | None, value: fx.Node) -> bool:
    given = _read(node, 0)
    if node is None or given is None:
        return False
    kind, args = kind_of(node), node.args
    squared = kind == "square" or (kind == "pow" and bool(args[1] == 2)) or (kind == "mul" and args[1] is given)
    return squared and (given is value or (given.target, given.args) == (value.target, value.args))


def _operands(node: fx.Node, kind: str) -> tuple[fx.Node | None, fx.Node | None]:
    # The operand of this kind, and the other, of an op of two tensors.
    a, b = node.args[:2]
    if not isinstance(a, fx.Node) or not isinstance(b, fx.Node):
        return None, None
    return (a, b) if kind_of(a) == kind else (b, a) if kind_of(b) == kind else (None, None)


def _steps(root: fx.Node, x: fx.Node) -> set[fx.Node]:
    found, left = set[fx.Node](), [root]
    while left:
        node = left.pop()
        if node is not x and node.op != "get_attr" and node not in found:
            found.add(node)
            left += node.all_input_nodes
    return found


__all__ = ["fuse_norms"]
