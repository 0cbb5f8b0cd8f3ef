"""The choice of least loss within a limit on the cost: a recursion over Pareto-optimal sums, bounded by the relaxed problem."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from attrs import field, frozen

Choice = TypeVar("Choice")

STATES = 20_000
"""The number of partial choices that are kept.  If more could be optimal, the gap shows it."""
_ROUNDING = 2.0**-40
"""Partial choices that gain a smaller share are not followed: sums of thousands of losses are rounded by as much."""


@frozen(eq=False)
class _Item:
    """The Pareto-optimal choices of one item, from cheap to dear: costs in whole units, losses above the least loss."""

    index: int
    keys: tuple[Any, ...]
    costs: tuple[int, ...]
    losses: tuple[float, ...]


@frozen(eq=False)
class _Sums:
    """Pareto-optimal sums over the first items, from cheap to dear, with the sum before and the choice that gave each."""

    costs: Any
    losses: Any
    before: Any = field(default=None, repr=False)
    choices: Any = field(default=None, repr=False)


def minimize(
    items: Sequence[Sequence[Choice]], losses: Mapping[Choice, float], costs: Mapping[Choice, float], limit: float
) -> tuple[tuple[Choice, ...], float]:
    """Return (the choice of each item, the gap): minimise sum L(c_i) subject to sum C(c_i) <= limit.

    Sums of costs are exact, and rounded once (`math.fsum`).  A recursion over the items keeps the sums that no other sum
    beats in both cost and loss.  Of these, it keeps those of which the relaxed rest (fractions of choices, as by Dantzig)
    may still beat the best choice that is known.  If they are more than `STATES`, it keeps the most promising.

    Args:
        items: The choices of each item; no two items share a choice.
        losses, costs: The loss and the cost of each choice, finite.
        limit: At least the sum of the smallest costs.
    Returns:
        gap: (loss - lower bound) / loss; 0 if no choice within the limit has a smaller sum of losses, but for the rounding of
            sums in float64.
    Source: Kellerer, Pferschy and Pisinger, Knapsack Problems (2004), section 11.5 (the multiple-choice knapsack problem).

    >>> minimize([["a4", "a8"], ["b4", "b8"]], dict(a4=9, a8=1, b4=3, b8=1), dict(a4=4, a8=8, b4=4, b8=8), 13)
    (('a8', 'b4'), 0.0)
    """
    given, budget = _in_whole_units(items, losses, costs, limit)
    # Items whose costs differ most come first, so that the last ones fill what is left of the budget.
    order = sorted(given, key=lambda item: item.costs[0] - item.costs[-1])
    rests = _Rests(order)
    best, chosen = rests.completed(0, budget, 0.0)
    dropped, stages, every = math.inf, list[_Sums](), 1 + len(order) // 64
    narrow = sum(item.costs[-1] for item in order) < 2**62
    sums = _Sums(np.zeros(1, dtype=np.int64 if narrow else object), np.zeros(1))
    for number, item in enumerate(order, 1):
        sums = _extended(sums, item)
        least = sums.losses + rests.least(number, budget - sums.costs)
        promising = (least < best * (1 - _ROUNDING)) & (sums.costs + rests.cheapest[number] <= budget)
        if promising.sum() > STATES:
            last = np.partition(least[promising], STATES)[STATES]
            dropped = min(dropped, float(last))
            promising &= least < last
        sums = _Sums(*(values[promising] for values in (sums.costs, sums.losses, sums.before, sums.choices)))
        if not len(sums.costs):
            break
        stages.append(sums)
        if number % every and number < len(order):
            continue
        at = int(np.argmin(least[promising]))
        loss, rest = rests.completed(number, budget - sums.costs[at], float(sums.losses[at]))
        if loss < best:
            best, chosen = loss, [*_traced(stages, at), *rest]
    by_index = {item.index: item.keys[c] for item, c in zip(order, chosen, strict=True)}
    choice = tuple(by_index[i] for i in range(len(items)))
    total = float(sum(losses[key] for key in choice))
    return choice, 0.0 if dropped >= best or not total else (best - dropped) / abs(total)


def _in_whole_units(items: Any, losses: Any, costs: Any, limit: float) -> tuple[list[_Item], int]:
    # Costs and limit as multiples of their common unit; each item without the choices that another one beats.
    exact = {key: Fraction(costs[key]) for item in items for key in item}
    unit = math.lcm(*(cost.denominator for cost in exact.values()))
    given = []
    for index, item in enumerate(items):
        least, kept = min(losses[key] for key in item), list[Any]()
        for key in sorted(item, key=lambda k: (exact[k], losses[k])):
            if not kept or losses[key] < losses[kept[-1]]:
                kept.append(key)
        above = (float(losses[k] - least) for k in kept)
        given.append(_Item(index, tuple(kept), tuple(int(exact[k] * unit) for k in kept), tuple(above)))
    # Sums are compared with the limit as math.fsum rounds them, so that a limit that is such a sum allows it.
    most = sum(item.costs[-1] for item in given)
    if limit == math.inf:
        return given, most
    whole = math.floor((Fraction(limit) + Fraction(math.ulp(limit)) / 2) * unit)
    return given, min(most, whole if float(Fraction(whole, unit)) <= limit else whole - 1)


class _Rests:
    """The relaxed problem over the items from each number on: fractions of choices are allowed."""

    def __init__(self, items: Sequence[_Item]) -> None:
        self.items = items
        self.cheapest = [sum(item.costs[0] for item in items[i:]) for i in range(len(items) + 1)]
        # (what it gains for its cost, item, choice, cost, gain) of each step along the lower convex hull of an item.
        steps = sorted(
            (step for i, item in enumerate(items) for step in _hull_steps(i, item)), key=lambda s: (-s[0], s[1], s[2])
        )
        self.steps = steps
        self.owners = np.array([s[1] for s in steps], dtype=int)
        self.costs, self.gains = (np.array([float(s[k]) for s in steps]) for k in (3, 4))

    def least(self, first: int, budgets: Any) -> Any:
        """Return the least loss of the relaxed items from `first` on within each budget."""
        own = self.owners >= first
        costs = np.concatenate([[0.0], np.cumsum(self.costs[own])])
        losses = np.concatenate([np.cumsum(self.gains[own][::-1])[::-1], [0.0]])  # of the steps that are not taken
        return np.interp((budgets - self.cheapest[first]).astype(float), costs, losses)

    def completed(self, first: int, budget: int, loss: float) -> tuple[float, list[int]]:
        """Return the loss with the items from `first` on, chosen greedily within a budget, and their choices."""
        left, chosen = budget - self.cheapest[first], [0] * len(self.items)
        for _, i, choice, _, _ in self.steps:
            item = self.items[i]
            if i >= first and choice > chosen[i] and (more := item.costs[choice] - item.costs[chosen[i]]) <= left:
                left, chosen[i] = left - more, choice
        rest = chosen[first:]
        return loss + sum(item.losses[c] for item, c in zip(self.items[first:], rest, strict=True)), rest


def _hull_steps(number: int, item: _Item) -> list[tuple[float, int, int, int, float]]:
    hull = [0]
    for choice in range(1, len(item.costs)):
        while len(hull) > 1 and _slope(item, hull[-2], hull[-1]) <= _slope(item, hull[-1], choice):
            hull.pop()
        hull.append(choice)
    return [
        (_slope(item, a, b), number, b, item.costs[b] - item.costs[a], item.losses[a] - item.losses[b])
        for a, b in pairwise(hull)
    ]


def _slope(item: _Item, a: int, b: int) -> float:
    return (item.losses[a] - item.losses[b]) / float(item.costs[b] - item.costs[a])


def _extended(sums: _Sums, item: _Item) -> _Sums:
    # The sums with each choice of one more item, without those that another one beats in both cost and loss.
    count = len(sums.costs)
    costs = np.concatenate([sums.costs + cost for cost in item.costs])
    losses = np.concatenate([sums.losses + loss for loss in item.losses])
    before, choices = np.tile(np.arange(count), len(item.costs)), np.repeat(np.arange(len(item.costs)), count)
    by_loss = np.argsort(losses, kind="stable")
    order = by_loss[np.argsort(costs[by_loss], kind="stable")]
    ordered = losses[order]
    better = np.concatenate([[True], ordered[1:] < np.minimum.accumulate(ordered)[:-1]])
    kept = order[better]
    return _Sums(costs[kept], losses[kept], before[kept], choices[kept])


def _traced(stages: Sequence[_Sums], at: int) -> list[int]:
    chosen = []
    for stage in reversed(stages):
        chosen.append(int(stage.choices[at]))
        at = int(stage.before[at])
    return chosen[::-1]
