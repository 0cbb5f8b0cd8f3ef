"""Choose one of several options for each item, with the least total loss within a limit: a 0-1 program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np

Choice = TypeVar("Choice")


def minimize(
    items: Sequence[Sequence[Choice]], losses: Mapping[Choice, float], costs: Mapping[Choice, float], limit: float
) -> tuple[tuple[Choice, ...], float]:
    """Return (the choice of each item, the gap): minimise sum L(c_i) subject to sum C(c_i) <= limit, exactly.

    Args:
        items: The choices of each item; no two items share a choice.
        losses, costs: The loss and the cost of each choice; costs are not negative.
        limit: At least the sum of the smallest costs.
    Returns:
        gap: (loss - lower bound) / loss, with the bound that the solver proves; 1 without a bound.
    Raises:
        ImportError: scipy is not installed.

    >>> minimize([["a4", "a8"], ["b4", "b8"]], dict(a4=9, a8=1, b4=3, b8=1), dict(a4=4, a8=8, b4=4, b8=8), 13)
    (('a8', 'b4'), 0.0)
    """
    try:
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import block_diag
    except ImportError as e:
        raise ImportError("mixed_precision needs scipy: pip install qfunc-torch[mixed]") from e
    keys = [choice for item in items for choice in item]
    # Scaled to about 1, the magnitude for which the solver's tolerances are meant.
    loss, cost = (np.array([of[key] for key in keys], dtype=float) for of in (losses, costs))
    loss, cost, bound = loss / (loss.max() or 1.0), cost / (cost.max() or 1.0), limit / (cost.max() or 1.0)
    one_each = LinearConstraint(block_diag([np.ones((1, len(item))) for item in items]), 1, 1)
    for below in _BELOW:
        within = LinearConstraint(cost[None], -np.inf, bound - below)
        solution = milp(loss, integrality=np.ones(len(keys)), bounds=Bounds(0, 1), constraints=[one_each, within],
                     options={"mip_rel_gap": 0.0})  # fmt: skip
        if solution.x is None:
            break
        chosen = tuple(key for key, x in zip(keys, solution.x, strict=True) if x > 0.5)
        if sum(costs[key] for key in chosen) <= limit:
            return chosen, float(solution.mip_gap or 0.0)
    # Only the smallest costs fit between the limit and the tolerance below it.
    return tuple(min(item, key=costs.__getitem__) for item in items), 1.0


_BELOW = (0.0, 2e-6, 4e-6, 8e-6)
"""Amounts by which successive tries lower the limit, because the solver exceeds it by its tolerance of 1e-6."""

__all__ = ["minimize"]
