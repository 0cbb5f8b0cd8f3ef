"""One of several choices for each item, at the least sum of losses within a limit: a 0-1 program."""

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
        items: The choices of each; every choice is one item's.
        losses, costs: Of each choice; costs are not negative.
        limit: At least the sum of the least costs.
    Returns:
        gap: (loss - lower bound) / loss, as the solver proves it; 1 where it proves none.
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
    # Units in which both are near 1, where the solver's tolerances are meant.
    loss, cost = (np.array([of[key] for key in keys], dtype=float) for of in (losses, costs))
    loss, cost, bound = loss / (loss.max() or 1.0), cost / (cost.max() or 1.0), limit / (cost.max() or 1.0)
    one_each = LinearConstraint(block_diag([np.ones((1, len(item))) for item in items]), 1, 1)
    for below in _BELOW:
        within = LinearConstraint(cost[None], -np.inf, bound - below)
        found = milp(loss, integrality=np.ones(len(keys)), bounds=Bounds(0, 1), constraints=[one_each, within],
                     options={"mip_rel_gap": 0.0})  # fmt: skip
        if found.x is None:
            break
        chosen = tuple(key for key, x in zip(keys, found.x, strict=True) if x > 0.5)
        if sum(costs[key] for key in chosen) <= limit:
            return chosen, float(found.mip_gap or 0.0)
    # Nothing but the least costs lies between the limit and the tolerance below it.
    return tuple(min(item, key=costs.__getitem__) for item in items), 1.0


_BELOW = (0.0, 2e-6, 4e-6, 8e-6)
"""By how much the limit is lowered, try after try: the solver keeps to it but for its tolerance of 1e-6."""

__all__ = ["minimize"]
