"""Positions at which a captured graph writes into a state, such as a cache: inside of it, and each once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from attrs import frozen
from torch import Tensor, fx

from qfunc.errors import CaptureError
from qfunc.numerics.kernels.requantize import clamp_to_bounds
from qfunc.numerics.written_codes import append_codes
from qfunc.ops.node import attribute, kind_of


@frozen
class WrittenPositions:
    """An input of positions in a state: names and places of both, the state's axis, and the axes that tell entries apart.

    `along` is the axis of the positions that becomes the state's axis after `inserted` new ones; None if it is one of them.
    """

    name: str
    place: int
    state: str
    state_place: int
    axis: int
    along: int | None
    inserted: int

    def wrong(self, given: Sequence[Any]) -> tuple[str, str] | None:
        """Return the first position of inputs that is wrong and what is wanted, or None."""
        positions, state = (given[k] if k < len(given) else None for k in (self.place, self.state_place))
        if not isinstance(positions, Tensor) or not isinstance(state, Tensor) or state.ndim <= self.axis:
            return None
        length, apart = state.shape[self.axis], positions.ndim == state.ndim - self.inserted
        rows = positions.movedim(self.along, -1) if apart and self.along is not None else None
        found = wrong_position(positions, length, rows)
        wanted = f"positions from 0 to {length - 1}, each once in a row, as the state {self.state!r} has {length}"
        return (found, wanted) if found else None


def written_positions(network: fx.GraphModule) -> tuple[WrittenPositions, ...]:
    """Return the inputs of positions at which a graph writes into another input.

    >>> from qfunc.frontend.capture import capture
    >>> class Cache(torch.nn.Module):
    ...     def forward(self, state, at, new):
    ...         return state.scatter(1, at[:, :, None].expand(new.shape), new)
    >>> written_positions(capture()(Cache()))
    (WrittenPositions(name='at', place=1, state='state', state_place=0, axis=1, along=1, inserted=1),)
    """
    inputs = [n for n in network.graph.nodes if n.op == "placeholder"]
    found = dict[tuple[str, int | None], WrittenPositions]()
    for node in network.graph.nodes:
        if (write := _write(node)) is None:
            continue
        state, axis, index = write
        while state.op != "placeholder" and state.all_input_nodes:  # its quantizer
            state = state.all_input_nodes[0]
        source, along, inserted = _source(index, axis)
        if state.op == source.op == "placeholder":
            name, places = str(source.target), (inputs.index(source), inputs.index(state))
            made = WrittenPositions(name, places[0], str(state.target), places[1], axis, along, inserted)
            found.setdefault((name, along), made)
    return tuple(found.values())


def require_positions(written: Iterable[WrittenPositions], inputs: Iterable[Any], where: str) -> None:
    """Refuse positions outside of the state that they are for, and those that occur twice in a row.

    Args:
        written: Those of `written_positions`.
        inputs: The inputs in the order of the graph's.
        where: The step, for the message.
    Raises:
        CaptureError: names the input, the position, and the state with its length.
    """
    given = list(inputs)
    for w in written:
        if found := w.wrong(given):
            position, wanted = found
            raise CaptureError(where=f"{where}, input {w.name!r}", found=position, wanted=wanted, do=PASS_POSITIONS)


PASS_POSITIONS = "Pass the positions of decoder.inputs(ids), and after them last + 1; or write a larger qfunc.decoder(length)."


def wrong_position(positions: Tensor, length: int, rows: Tensor | None) -> str:
    """Return "" if positions are in 0 ... length - 1, and no row [..., T] has one twice; else the first that is wrong.

    >>> at = torch.tensor([[0, 1], [2, 2]])
    >>> wrong_position(at, 2, at), wrong_position(at, 3, at), wrong_position(at, 3, None)
    ('the position 2', 'the position 2 twice in row 1', '')
    """
    if not positions.numel():
        return ""
    low, high = (int(v) for v in torch.aminmax(positions))
    if low < 0 or high >= length:
        return f"the position {low if low < 0 else high}"
    if rows is None:
        return ""
    ordered = rows.reshape(-1, rows.shape[-1]).sort(-1).values
    twice = (ordered[:, 1:] == ordered[:, :-1]).nonzero()
    return f"the position {int(ordered[tuple(twice[0])])} twice in row {int(twice[0, 0])}" if len(twice) else ""


def axis_before(axis: int | None, inserted: Sequence[int]) -> int | None:
    """Return the axis that is called `axis` after others were inserted; None if it is one of them.

    >>> axis_before(2, (1, 3)), axis_before(2, (2,))
    (1, None)
    """
    return None if axis is None or axis in inserted else axis - sum(k < axis for k in inserted)


def _write(node: fx.Node) -> tuple[fx.Node, int, fx.Node] | None:
    # (state, axis, index)
    if node.target is append_codes:
        state, axis, index = node.args[:3]
    elif node.target is torch.scatter:  # index_put takes negative positions
        state, axis, index = (attribute(node, name) for name in ("input", "dim", "index"))
    else:
        return None
    if not isinstance(state, fx.Node) or not isinstance(index, fx.Node) or type(axis) is not int or axis < 0:
        return None
    return state, axis, index


def _source(index: fx.Node, axis: int) -> tuple[fx.Node, int | None, int]:
    # The node that the index is a view of, its axis, and the number of axes that were inserted between.
    along: int | None = axis
    count = 0
    while index.op != "placeholder":
        new = _inserted(index)
        if new is None:
            break
        along, count = axis_before(along, new), count + len(new)
        index = index.all_input_nodes[0]
    return index, along, count


def _inserted(view: fx.Node) -> tuple[int, ...] | None:
    # The axes that a view with all entries inserts; None for other ops.
    kind = kind_of(view)
    clamps_nothing = view.target is clamp_to_bounds and not view.args[1]  # as an emulation has it
    if kind == "cast" or kind == "expand" or clamps_nothing:
        return ()
    if kind == "unsqueeze":
        return (axis,) if (axis := attribute(view, "dim")) >= 0 else None
    if kind != "slice":
        return None
    parts = attribute(view, "index")
    parts = parts if isinstance(parts, tuple | list) else (parts,)
    whole = all(i is None or _is_whole(i) for i in parts)
    return tuple(k for k, i in enumerate(parts) if i is None) if whole else None


def _is_whole(cut: Any) -> bool:
    return isinstance(cut, slice) and cut.start in (None, 0) and cut.stop is None and cut.step in (None, 1)
