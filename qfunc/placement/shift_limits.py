"""Limits on the positions (-log2) of power-of-two scales, between which hardware shifts."""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping

from attrs import frozen

from qfunc.errors import CalibrationError
from qfunc.graph.selectors import matches
from qfunc.graph.view import QuantizedModel
from qfunc.numerics.qparams import Affine
from qfunc.placement.encoding import Encoding
from qfunc.placement.partition import Partition
from qfunc.placement.units import Unit
from qfunc.specs import Limit, Scheme
from qfunc.specs.target import Target

STEPS = 10_000
"""More moves than this prove that limits conflict, because positions are in [-127, 126]."""

_REDUCTIONS: dict[str, Callable[[list[float]], float]] = {"min": min, "max": max, "sum": sum}


@frozen
class Bound:
    """A `specs.Limit` at one unit: low <= sum(coefficient * reduction(positions)) <= high, by names of positions.

    `adjust` has the names of the positions that may change.
    """

    unit: str
    limit: Limit
    terms: tuple[tuple[int, str, tuple[str, ...]], ...]
    adjust: tuple[str, ...]

    def value(self, positions: Mapping[str, float]) -> float:
        """Return the sum that the limit bounds."""
        return sum(c * _REDUCTIONS[reduction]([positions[n] for n in names]) for c, reduction, names in self.terms)

    def excess(self, positions: Mapping[str, float]) -> float:
        """Return the distance of the sum from the allowed range; 0 inside it."""
        value = self.value(positions)
        return max(self.limit.low - value, value - self.limit.high, 0)


def limit_qparams(view: QuantizedModel, target: Target, qparams: dict[str, Affine]) -> dict[str, Affine]:
    """Return qparams by path, changed until every `specs.Limit` of the target holds.

    While a limit is broken, positions of its `adjust` change by one.  Coarser scales are preferred, because finer ones
    clip.  Tied sites change together, and scales stay within the bounds of their schemes.

    Raises:
        CalibrationError: no move helps; the message names the unit, the limit and the positions.
    """
    if not target.limits:
        return qparams
    names, limits, positions, spans = _positions(Partition(view, target, qparams))
    new = satisfy_limits(limits, positions, spans)
    result = dict(qparams)
    for path, name in names.items():
        if path in qparams and new[name] != positions[name]:
            factor = 2.0 ** (positions[name] - new[name])
            result[path] = qparams[path]._replace(scale=qparams[path].scale * factor)
    return result


def require_limits(partition: Partition) -> None:
    """Refuse scales that break a limit of the target, as training may.

    Raises:
        CalibrationError: a limit is broken; the message names the unit, the limit and the positions.
    """
    if not partition.target.limits:
        return
    _, limits, positions, _ = _positions(partition)
    broken = next((b for b in limits if b.excess(positions) > 0), None)
    if broken is not None:
        raise _broken_error(broken, positions, "Calibrate again, since training moved a scale, or do not train these scales.")


def _positions(
    partition: Partition,
) -> tuple[dict[str, str], list[Bound], dict[str, float], dict[str, tuple[float, float]]]:
    # Return (name by path, limits, position by name, allowed positions by name); tied sites have one name.
    names = {p: c.quantizer.module.site.tie or p for p, c in partition.at_path.items() if c.qparams.scale.numel() == 1}
    limits = list(bounds(partition, names))
    positions = {name: -math.log2(float(partition.at_path[path].qparams.scale)) for path, name in names.items()}
    spans: dict[str, tuple[float, float]] = {}
    for path, name in names.items():
        low, high = _span(partition.at_path[path], positions[name])
        tied = spans.get(name, (low, high))
        spans[name] = max(low, tied[0]), min(high, tied[1])
    return names, limits, positions, spans


def satisfy_limits(limits: list[Bound], positions: dict[str, float], spans: dict[str, tuple[float, float]]) -> dict[str, float]:
    """Return positions that keep the limits: while one is broken, make the single move that repairs it best.

    Args:
        limits: The limits, of which the first broken one is repaired first.
        positions: The positions by name.
        spans: The lowest and the highest position by name.

    Raises:
        CalibrationError: no move helps.
    """
    now, moves, position = dict(positions), 0, 0
    first: dict[str, int] = {}  # the index of the first limit that a position appears in
    for index, bound in enumerate(limits):
        for name in (*bound.adjust, *(n for _, _, names in bound.terms for n in names)):
            first.setdefault(name, index)
    while position < len(limits):
        broken = limits[position]
        if broken.excess(now) <= 0:
            position += 1
            continue
        move = _best_move(broken, now, spans) if moves < STEPS else None
        if move is None:
            raise _broken_error(broken, now, _NO_MOVE.format(broken.limit.adjust))
        now.update(move)
        moves += 1
        position = min(first[name] for name in move)  # the move may break limits before this one
    return now


_NO_MOVE = "Change the range of one of these tensors: moving {!r} does not keep this limit and the others."


def _best_move(broken: Bound, now: dict[str, float], spans: dict[str, tuple[float, float]]) -> dict[str, float] | None:
    # Try -1 first: a lower position is a coarser scale, which does not clip.  Try one tensor, then all: if two are the
    # largest, moving one changes nothing.
    groups = [*((n,) for n in broken.adjust), broken.adjust]
    moves = [{n: now[n] + d for n in names} for d in (-1, 1) for names in groups]
    inside = [m for m in moves if all(spans[n][0] <= v <= spans[n][1] for n, v in m.items())]
    best = min(inside, key=lambda m: broken.excess(ChainMap(m, now)), default=None)
    return best if best is not None and broken.excess(ChainMap(best, now)) < broken.excess(now) else None


def bounds(partition: Partition, names: Mapping[str, str]) -> Iterator[Bound]:
    """Yield the limits of every unit in which all tensors have qparams."""
    for unit in partition.units:
        slot_names = _names_by_slot(unit, partition, names)
        for limit in partition.target.limits:
            if not matches(limit.select, unit.group.root, partition.context):
                continue
            terms = []
            for text, coefficient in limit.terms:
                slot, _, reduction = text.partition(".")
                operands = slot_names.get(slot, ())
                if not reduction and len(operands) > 1:
                    raise _ambiguous_error(unit, limit, slot)
                terms.append((coefficient, reduction or "sum", operands))
            if all(operands for _, _, operands in terms):
                yield Bound(unit.path, limit, tuple(terms), tuple(dict.fromkeys(slot_names[limit.adjust])))


def _names_by_slot(unit: Unit, partition: Partition, names: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    by_slot: dict[str, tuple[str, ...]] = {}
    root = unit.group.root
    encodings = [(s, partition.encoding(n, root)) for s, n in partition.context.slots(root)] + [
        ("output", partition.output_encoding(unit.group.output))
    ]
    for slot, encoding in encodings:
        path = None if encoding is None else encoding.quantizer.path
        if path is None or path not in names:
            return {}  # a tensor of the unit has no qparams, or qparams per channel
        by_slot[slot] = (*by_slot.get(slot, ()), names[path])
    return by_slot


def _span(encoding: Encoding, position: float) -> tuple[float, float]:
    # Return the range of positions that the scheme allows; a scale that the hardware dictates is fixed.
    value = encoding.quantizer.module.site.value
    if not isinstance(value, Scheme):
        return position, position
    low = -126.0 if value.scale.high is None else -math.log2(value.scale.high)
    return low, 126.0 if value.scale.low is None else -math.log2(value.scale.low)


def _broken_error(broken: Bound, now: Mapping[str, float], do: str) -> CalibrationError:
    sizes = ", ".join(f"{n} {now[n]:g}" for _, _, names in broken.terms for n in names)
    return CalibrationError(
        where=f"limits of unit {broken.unit!r}",
        found=f"{broken.value(now):g} at the positions {sizes}",
        wanted=f"{broken.limit.low} to {broken.limit.high} by {broken.limit!r}",
        do=do,
    )


def _ambiguous_error(unit: Unit, limit: Limit, slot: str) -> CalibrationError:
    return CalibrationError(
        where=f"limits of unit {unit.path!r}",
        found=f"more than one {slot!r}, and {limit!r}",
        wanted="a single tensor, because the limit does not combine several",
        do=f'Write "{slot}.min", "{slot}.max" or "{slot}.sum" in the target.',
    )
