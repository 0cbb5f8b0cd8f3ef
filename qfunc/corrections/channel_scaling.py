"""Ops that commute with positive factors per channel, op(s x) = s op(x), and the channel axis of their outputs.

max(0, s x) = s max(0, x); the same holds for other slopes, for sums and maxima over space, and for ops that move whole
channels.  It does not hold for clips, min(s x, 6) != s min(x, 6), nor for curves (sigmoid, GELU, SiLU).
"""

from __future__ import annotations

from typing import Any

import torch
from attrs import evolve, frozen
from torch import fx

from qfunc.ops.definition import Trait
from qfunc.ops.node import attribute, has, kind_of, op_of, parameters_of


@frozen
class Layout:
    """The channel axis of a tensor.

    Attributes:
        back: The channel axis, counted from the end: 1 is the last.
        rank: The number of axes, or None if unknown.  The inputs of convolutions are assumed to be batched.
        merged: True if the axis has several consecutive entries per channel, as after flattening.
    """

    back: int
    rank: int | None
    merged: bool = False

    def axis(self, dim: int) -> int | None:
        """Return an axis counted from the end, -1 for the last; None if the rank is unknown."""
        return dim if dim < 0 else None if self.rank is None else dim - self.rank


def output_layout(node: fx.Node, layout: Layout) -> Layout | None:
    """Return the layout of an op's output if the op commutes with positive factors per channel, else None.

    >>> import torch
    >>> from qfunc.frontend.capture import capture
    >>> net = capture()(torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU6(), torch.nn.Flatten()))
    >>> [output_layout(n, Layout(3, 4)) for n in net.graph.nodes if kind_of(n) in ("clip", "flatten")]
    [None, Layout(back=1, rank=2, merged=True)]
    """
    kind, op = kind_of(node), op_of(node)
    scales = has(node, Trait.SCALES_WITH_CHANNELS)
    if scales and has(node, Trait.ELEMENTWISE):
        return layout
    if scales and op is not None and op.spatial is not None:
        return layout if layout.back > op.spatial else None
    if kind == "resize":
        return layout if layout.back + 1 == layout.rank else None
    if kind == "pad":
        zeros = attribute(node, "mode") != "constant" or not attribute(node, "value")
        return layout if zeros and len(attribute(node, "pad")) < 2 * layout.back else None
    if scales:
        return _reduced(layout, attribute(node, "dim"), attribute(node, "keepdim"))
    if kind == "flatten":
        return _flat(layout, attribute(node, "start_dim"), attribute(node, "end_dim"))
    return _rows(layout, attribute(node, "shape"), node) if op is not None and op.call is torch.reshape else None


def clips_from_zero(node: fx.Node) -> bool:
    """Return True if an op is min(max(x, 0), c) with a number c: it commutes with a factor s where x <= c and s x <= c."""
    if kind_of(node) != "clip":
        return False
    low, high = attribute(node, "min"), attribute(node, "max")
    return isinstance(low, int | float) and low == 0 and isinstance(high, int | float) and high > 0


def keeps_constants(node: fx.Node) -> bool:
    """Return True if a commuting op maps a constant channel to the same constant: true for means, not for zero padding."""
    kind = kind_of(node)
    if kind == "avg_pool":
        padding, divisor = (attribute(node, n) if n in parameters_of(node) else None for n in ("padding", "divisor_override"))
        inside = not any(padding) if isinstance(padding, list | tuple) else not padding
        return divisor is None and (inside or not attribute(node, "count_include_pad"))
    if kind == "pad":
        return bool(attribute(node, "mode") != "constant")
    return has(node, Trait.KEEPS_CONSTANTS) or not has(node, Trait.SCALES_WITH_CHANNELS)


def keeps_means(node: fx.Node) -> bool:
    """Return True if a commuting op preserves the mean of a channel for all values."""
    return (has(node, Trait.AVERAGES) or has(node, Trait.VIEW)) and keeps_constants(node)


def _reduced(layout: Layout, dim: Any, keepdim: bool) -> Layout | None:
    if dim is None:
        return None
    axes = [layout.axis(d) for d in (dim if isinstance(dim, list | tuple) else (dim,))]
    if not axes or None in axes or -layout.back in axes:
        return None
    if keepdim:
        return layout
    after = sum(a is not None and a > -layout.back for a in axes)
    return evolve(layout, back=layout.back - after, rank=None if layout.rank is None else layout.rank - len(axes))


def _flat(layout: Layout, start: int, end: int) -> Layout | None:
    first, last = layout.axis(start), layout.axis(end)
    if first != -layout.back or last != -1 or layout.merged:
        return None
    return Layout(1, None if layout.rank is None else layout.rank - layout.back + 1, layout.back > 1)


def _rows(layout: Layout, shape: Any, node: fx.Node) -> Layout | None:
    # x.view(x.size(0), -1): keeps the batch axis and merges the others.
    first = shape[0] if isinstance(shape, list | tuple) and len(shape) == 2 else None
    batch = isinstance(first, fx.Node) and kind_of(first) == "size" and first.args[1:] == (0,)
    same = isinstance(first, fx.Node) and (first.args[0] is node.args[0] or kind_of(first.all_input_nodes[0]) == "input")
    if not (batch and same) or layout.rank is None or layout.back + 1 != layout.rank or layout.merged:
        return None
    return Layout(1, 2, layout.back > 1)
