"""Warnings about calibrated ranges that leave few codes: to a part of a tensor, or to all values but a few."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from qfunc.execution.tensor_ranges.measure import Range
from qfunc.execution.tensor_ranges.parts import Join, joins
from qfunc.graph.examples import created_nodes
from qfunc.graph.sites import QuantizerNode
from qfunc.graph.view import QuantizedModel
from qfunc.quantizers.fake_quantize import FakeQuantize
from qfunc.specs import Int, PerTensor, Scheme

LEAST = 8
"""Fewer codes are a loss that one warning names."""
UNLIKE = 8.0
"""A tensor whose range is smaller than a common one by this factor loses three bits."""
FEW = 8
"""Of fewer values nothing is concluded."""
SPARSE = 256
"""A single value among so many equal ones is an outlier; among fewer it may be the rule."""


def range_warnings(view: QuantizedModel, found: Mapping[str, Tensor], before: QuantizedModel) -> tuple[str, ...]:
    """Return the warnings about a calibrated model: one for each kind, which names the worst tensor.

    Args:
        view: The calibrated model.
        found: The fields of the ranges of tensors over all batches, by the names of their nodes.
        before: The model before calibration, which has the same graph.
    """
    ranges = {name: Range(*fields.tolist()) for name, fields in found.items() if bool(fields.isfinite().all())}
    static = [q for q in view.quantizers if isinstance(q.module.site.value, Scheme) and not q.module.dynamic]
    created = {n.name for n in created_nodes(before.float_network.graph)}
    seen = [(q, ranges[q.tensor]) for q in static if q.tensor in ranges and q.tensor not in created]
    texts = (_unlike(view, ranges, joins(before)), _constant(seen), _far(seen))
    return tuple(filter(None, texts))


def _unlike(view: QuantizedModel, ranges: Mapping[str, Range], of_graph: tuple[Join, ...]) -> str:
    modules = {q.path: q.module for q in view.quantizers}
    measured = [found for join in of_graph if (found := _narrowest(join, modules[join.quantizer], ranges))]
    if not measured:
        return ""
    codes, factor, text, join = max(measured, key=lambda m: m[1])
    few = not join.tied
    # Without the tie, the part keeps enough codes of the scale that the readers need.
    users = (join.op,) if join.tied and codes >= LEAST else join.users
    wanted = f"at least {LEAST} codes" if few else f"at most {UNLIKE:.0f}"
    do = "Return its inputs as separate outputs" if join.returned else "Give its inputs similar ranges"
    return (
        f"calibrate, op {join.op!r}: found inputs that share one scale although their ranges differ by a factor of {factor:.0f}"
        f"{f', so that one keeps {_codes(codes)}' if few else ''}{_more(len(measured) - 1, 'such op', 'as')}: {text}, wanted "
        f"{wanted}. {do}, or leave {'the op' if len(users) == 1 else 'what uses it'} in float by "
        f"edit.skip(edit.name({', '.join(map(repr, users))}))."
    )


def _narrowest(join: Join, module: FakeQuantize, ranges: Mapping[str, Range]) -> tuple[int, float, str, Join] | None:
    # The codes of the part that keeps the fewest, the factor to the widest part, and a text about both; None if none is lost.
    spans = {name: max(ranges[name].high, 0.0) - min(ranges[name].low, 0.0) for name, _ in join.parts if name in ranges}
    spans = {name: span for name, span in spans.items() if span}
    if not spans:
        return None
    names, narrow, wide = dict(join.parts), min(spans, key=spans.__getitem__), max(spans, key=spans.__getitem__)
    factor = spans[wide] / spans[narrow]
    codes = _codes_of(module, min(ranges[narrow].low, 0.0), max(ranges[narrow].high, 0.0))
    if factor <= UNLIKE or not (join.tied or codes < LEAST):
        return None
    return codes, factor, f"{_span(ranges[narrow])} of {names[narrow]!r} and {_span(ranges[wide])} of {names[wide]!r}", join


def _constant(seen: list[tuple[QuantizerNode, Range]]) -> str:
    # Where a tie leaves one code, the warning of the op names the loss.
    some = [(q.module, r) for q, r in seen if r.total >= FEW and (r.low == r.high or q.module.site.tie is None)]
    alike = [(module, r) for module, r in some if _codes_of(module, r.low, r.high) == 1]
    if not alike:
        return ""
    module, r = alike[0]
    values = f"which are {r.low + 0.0:.4g}" if r.low == r.high else f"{_span(r)}"
    return (
        f"calibrate, site {module.site.name!r}: found one code for all {r.total:.0f} values, {values}"
        f"{_more(len(alike) - 1, 'tensor', 'as')}, wanted values that differ. Pass batches like those of use; a tensor that "
        "is constant in use, too, loses nothing."
    )


def _far(seen: list[tuple[QuantizerNode, Range]]) -> str:
    lost = [(q.module, r, codes) for q, r in seen if r.far and (codes := _inner_codes(q.module, r)) < LEAST]
    if not lost:
        return ""
    module, r, codes = lost[0]
    far, near = (r.low if -r.low > r.high else r.high), _span(r._replace(low=r.inner_low, high=r.inner_high))
    return (
        f"calibrate, site {module.site.name!r}: found {r.far:.0f} of {r.total:.0f} values, up to {far:.4g}, which "
        f"determine{'s' * (r.far == 1)} the range, so that the others, {near}, "
        f"keep {_codes(codes)}{_more(len(lost) - 1, 'tensor', 'as')}, wanted at least {LEAST}. Leave such values out of the "
        f"batches, or leave the op in float by edit.skip(edit.name({module.site.op!r}))."
    )


def _inner_codes(module: FakeQuantize, r: Range) -> int:
    # The codes of the values that are near each other; equal values lose nothing, but for a single value of many.
    if r.inner_low == r.inner_high:
        return 1 if r.far == 1 and r.total >= SPARSE else LEAST
    return _codes_of(module, min(r.inner_low, 0.0), max(r.inner_high, 0.0))


def _codes_of(module: FakeQuantize, low: float, high: float) -> int:
    # The number of codes from low to high; of formats and granularities without such a number, 1 for equal values.
    scheme = module.site.scheme
    if not isinstance(scheme.format, Int) or not isinstance(scheme.scale.shared, PerTensor):
        return 1 if low == high else LEAST
    codes = module.export(torch.tensor([low, high], dtype=torch.float32, device=module.scales().device))[0].tolist()
    return int(codes[1] - codes[0]) + 1


def _span(r: Range) -> str:
    return f"[{min(r.low, 0.0):.4g}, {max(r.high, 0.0):.4g}]"


def _codes(number: int) -> str:
    return f"{number} code{'s' * (number != 1)}"


def _more(number: int, noun: str, word: str) -> str:
    return "" if not number else f", {word} {'does' if number == 1 else 'do'} {number} more {noun}{'s' * (number > 1)}"
