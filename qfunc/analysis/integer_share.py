"""The share of a model's multiply-accumulates that its target computes on integers."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from qfunc.analysis.lockstep import Ops
from qfunc.analysis.quantized_weights import multiply_accumulates
from qfunc.graph.view import QuantizedModel
from qfunc.ops.node import slots
from qfunc.placement.encoding import is_integer_encoding
from qfunc.placement.partition import Partition
from qfunc.specs import Unknown


@frozen
class IntegerShare:
    """The multiply-accumulates for one batch, and those of them that run on integers.

    >>> IntegerShare(integer=75, total=100).share, IntegerShare(0, 0).share
    (0.75, 1.0)
    """

    integer: int
    total: int

    @property
    def share(self) -> float:
        """integer / total; 1 for a model without multiply-accumulates."""
        return self.integer / self.total if self.total else 1.0


def integer_share(view: QuantizedModel, arguments: tuple[Any, ...]) -> IntegerShare:
    """Return the share of a calibrated model for one batch.

    A product runs on integers if it is in an integer unit of the target.  If the target's arithmetic is not public, or
    formats are only simulated, it does if all its operands but the bias are quantized.

    Args:
        view: The model.
        arguments: The positional arguments of a batch.
    """
    target = view.record.target
    assert target is not None
    counts = {n.name: c for n, c in multiply_accumulates(Ops(view.evaluation_form), arguments).items() if c}
    public = not any(isinstance(k.arithmetic, Unknown) for k in target.kernels)
    if public and all(is_integer_encoding(q) for q in view.quantizers):
        units = Partition(view, target).units
        integer = {n.name for u in units if u.integer for n in u.group.nodes}
    else:
        edges = {(q.tensor, reader) for q in view.quantizers for reader in q.readers}
        nodes = (n for n in view.float_network.graph.nodes if n.name in counts)
        integer = {n.name for n in nodes if all((v.name, n.name) in edges for slot, v in slots(n) if slot != "bias")}
    return IntegerShare(sum(c for n, c in counts.items() if n in integer), sum(counts.values()))


__all__ = ["IntegerShare", "integer_share"]
