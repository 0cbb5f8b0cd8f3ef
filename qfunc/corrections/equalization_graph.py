"""Find links: tensors whose channels can be scaled without changing the function, by the structure of the graph alone.

Between the producer of the tensor and each op with weights that reads it, all ops commute with positive factors per channel.
Then with y' = y / s and w' = w s along the inputs,  w' f(y') = w f(y).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from attrs import frozen
from torch import Tensor, fx

from qfunc.corrections.channel_scaling import Layout, clips_from_zero, output_layout
from qfunc.corrections.scalable_norms import ScalableNorm, scalable_norm
from qfunc.corrections.scalable_ops import Columns, Rows, ScalableOps
from qfunc.errors import CalibrationError, SpecError
from qfunc.frontend.capture import capture
from qfunc.graph.record import path_of, record_of
from qfunc.graph.stages import kind_of_model
from qfunc.graph.submodules import quantized_submodules
from qfunc.ops.definition import Trait
from qfunc.ops.node import attribute, has, kind_of, slots
from qfunc.specs import Target


@frozen(eq=False)
class Link:
    """The producer of a tensor and all ops with weights that read it."""

    producer: Rows | ScalableNorm
    ends: tuple[Columns, ...]

    def scale(self, by: Tensor) -> None:
        """Divide the producer, and multiply the weights that read it."""
        self.producer.divide(by)
        for end in self.ends:
            end.multiply(by)


@frozen
class NearMiss:
    """An op whose channels cannot be scaled, the op that prevents it, and the reason."""

    op: str
    at: str
    why: str

    def __str__(self) -> str:
        """Return the op and the reason in one line."""
        return f"{self.op!r}, at {self.at!r}: {self.why}"


def capture_for_equalization(model: Any, step: str) -> fx.GraphModule:
    """Return a captured copy of a float model.

    Raises:
        CalibrationError: the model is quantized.
    """
    record = record_of(model)
    if (record is not None and record.target is not None) or quantized_submodules(model):
        found = kind_of_model(record) if record is not None else "a model with a quantized submodule"
        do = f"Run qfunc.{step} before qfunc.quantize."
        raise CalibrationError(where=step, found=found, wanted="a float model", do=do)
    return capture()(model)


def equalization_links(
    model: fx.GraphModule, gains: bool = False, clips: bool = False, target: Target | None = None
) -> tuple[tuple[Link, ...], tuple[NearMiss, ...]]:
    """Return the links of a captured model in graph order, and the ops that have none.

    Args:
        gains: Include links that start at LayerNorms, RMSNorms and BatchNorms without an op before them.
        clips: Include links with a clip from 0 directly after a BatchNorm; they scale if no value reaches the bound.
        target: The target whose fusions fold steps into weights; None for BatchNorms alone.
    """
    ops, links, misses = ScalableOps(model, target), [], []
    used: set[fx.Node] = set()
    for node in model.graph.nodes:
        producer: Rows | ScalableNorm | str | None = ops.rows(node) if has(node, Trait.WEIGHTED) else None
        if producer is None and gains and node not in used:
            producer = scalable_norm(ops, node)
        if producer is None:
            continue
        if isinstance(producer, str):
            misses.append(NearMiss(path_of(model, node), path_of(model, node), producer))
            continue
        used.add(producer.node)
        try:
            columns = tuple(_columns(ops, producer, clips))
        except _Stop as stop:
            misses.append(NearMiss(path_of(model, node), path_of(model, stop.at), stop.why))
            continue
        if columns:
            links.append(Link(producer, columns))
    return tuple(links), tuple(misses)


class _Stop(Exception):
    def __init__(self, at: fx.Node, why: str) -> None:
        super().__init__(why)
        self.at, self.why = at, why


def _columns(ops: ScalableOps, producer: Rows | ScalableNorm, clips: bool) -> Iterable[Columns]:
    todo: list[tuple[fx.Node, Layout, tuple[fx.Node, ...]]] = [(producer.node, producer.layout, ())]
    while todo:
        node, layout, through = todo.pop(0)
        for reader in node.users:
            if kind_of(reader) == "size":
                continue
            if has(reader, Trait.WEIGHTED):
                yield _column(ops, producer, node, reader, layout, through)
                continue
            after = output_layout(reader, layout) if reader.args and reader.args[0] is node else None
            if clips and isinstance(producer, Rows) and node is producer.norm and clips_from_zero(reader):
                after = layout
            if after is None:
                raise _Stop(reader, _why(reader, clips))
            todo.append((reader, after, (*through, reader)))


def _column(
    ops: ScalableOps,
    producer: Rows | ScalableNorm,
    node: fx.Node,
    reader: fx.Node,
    layout: Layout,
    through: tuple[fx.Node, ...],
) -> Columns:
    op = ops.weighted(reader)
    if isinstance(op, str):
        raise _Stop(reader, op)
    if [slot for slot, n in slots(reader) if n is node] != ["input"]:
        raise _Stop(reader, "its output is used as a weight")
    axis = 1 if op.kind == "linear" else op.spatial + 1
    repeat, rest = divmod(op.inputs, producer.channels)
    if layout.back != axis or rest or (repeat > 1 and not layout.merged):
        raise _Stop(reader, "its input channels are not these channels")
    return Columns(op, ops.folded, through, repeat)


def _why(reader: fx.Node, clips: bool) -> str:
    kind = kind_of(reader)
    if kind == "output":
        return "it is an output of the model"
    if kind == "clip":
        bound = attribute(reader, "max")
        if clips:
            return f"a clip at {bound} that is not directly after a BatchNorm; replace_relu6() makes it a ReLU"
        return (
            f"a clip at {bound} does not scale with channels; replace_relu6() makes it a ReLU, "
            "equalize(deviations=3.0) keeps it"
        )
    return f"{kind} does not commute with factors per channel"


def require_links(links: tuple[Link, ...], misses: tuple[NearMiss, ...], step: str, wanted: str) -> None:
    """Raise if nothing can be scaled.

    Raises:
        SpecError: there are no links; the message gives the first reasons.
    """
    if not links:
        reasons = "; ".join(map(str, misses[:3])) or "no op with weights reads another"
        raise SpecError(where=step, found=f"no such pair ({reasons})", wanted=wanted, do=f"Remove qfunc.{step}.")
