"""The share of a model's multiply-accumulates on integers, and the warnings where edits lower it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen
from torch import fx, nn

from qfunc.analysis.lockstep import Ops
from qfunc.analysis.operations.multiply_accumulates import multiply_accumulates
from qfunc.execution.batches import warn_caller
from qfunc.graph.submodules import require_submodules
from qfunc.graph.view import QuantizedModel
from qfunc.ops.node import slots
from qfunc.placement.encoding import has_kernel_codes
from qfunc.placement.partition import Partition
from qfunc.placement.without_effect.unmet_formats import UnmetFormats, unmet_formats
from qfunc.specs import Target, Unknown


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

    @property
    def text(self) -> str:
        """A clause with the share, rounded down to 0.1 %.

        >>> IntegerShare(2, 3).text, IntegerShare(0, 3).text
        ('66.6 % of the multiply-accumulates run on integers', 'no multiply-accumulate runs on integers')
        """
        if self.total and not self.integer:
            return "no multiply-accumulate runs on integers"
        return f"{percentage(self.integer, self.total)} of the multiply-accumulates run on integers"


def percentage(part: int, total: int) -> str:
    """Return part / total, rounded down to 0.1 %; 0 < part <= total.

    >>> percentage(2, 3), percentage(1, 3000)
    ('66.6 %', 'less than 0.1 %')
    """
    tenths = 1000 * part // total
    return f"{tenths / 10:g} %" if tenths else "less than 0.1 %"


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
    if public and all(has_kernel_codes(q, target) for q in view.quantizers):
        units = Partition(view, target).units
        integer = {n.name for u in units if u.integer for n in u.group.nodes}
    else:
        edges = {(q.tensor, reader) for q in view.quantizers for reader in q.readers}
        nodes = (n for n in view.float_network.graph.nodes if n.name in counts)
        integer = {n.name for n in nodes if all((v.name, n.name) in edges for slot, v in slots(n) if slot != "bias")}
    return IntegerShare(sum(c for n, c in counts.items() if n in integer), sum(counts.values()))


def warn_of_unmet_formats(quantized: nn.Module, target: Target) -> None:
    """Warn once if sites of a quantized model have formats that no integer kernel takes, so that their ops are float."""
    parts = require_submodules(quantized, "quantized", "quantize").values()
    if unmet := [each for part in parts for each in unmet_formats(QuantizedModel(part))]:
        first = unmet[0]
        warn_caller(
            f"quantize, op {first.op!r}: found {first.found}, so that it{_more(unmet)} in float on {target.name!r}, wanted "
            f"{first.wanted}. Give it these formats, or leave the op in float by edit.skip(edit.name({first.op!r}))."
        )


def warn_of_share(models: Mapping[str, fx.GraphModule], arguments: Mapping[str, tuple[Any, ...]]) -> None:
    """Warn once if not all multiply-accumulates run on integers because of formats that no integer kernel takes.

    Args:
        models: The calibrated models, by path.
        arguments: The arguments of one batch of each.
    """
    views = {path: QuantizedModel(models[path]) for path in arguments}
    unmet = [each for view in views.values() for each in unmet_formats(view)]
    if not unmet:
        return
    shares = [integer_share(view, arguments[path]) for path, view in views.items()]
    share = IntegerShare(sum(s.integer for s in shares), sum(s.total for s in shares))
    if share.share < 1:
        target = next(iter(views.values())).record.target
        assert target is not None
        warn_caller(
            f"calibrate, op {unmet[0].op!r}: found that {share.text}, because it{_more(unmet)} in float on {target.name!r}, "
            f"wanted {unmet[0].wanted}. Edit the target and quantize again, or leave the op in float by "
            f"edit.skip(edit.name({unmet[0].op!r}))."
        )


def _more(unmet: list[UnmetFormats]) -> str:
    more = len(unmet) - 1
    return f" and {more} more op{'s' * (more > 1)} run" if more else " runs"
