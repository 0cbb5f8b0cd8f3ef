"""Lines through measured points."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from attrs import frozen


@frozen
class Line:
    """Seconds = constant + slope * elements, neither below 0.

    >>> Line(1.0, 0.5)(4)
    3.0
    """

    constant: float
    slope: float

    def __call__(self, elements: int) -> float:
        """Return the seconds of a tensor."""
        return self.constant + self.slope * elements


def fitted(points: Sequence[tuple[int, float]]) -> Line:
    """Return the line through measured points, by medians, which a few disturbed measurements do not move.

    Source: Theil, "A rank-invariant method of linear and polynomial regression analysis", 1950.

    >>> fitted([(0, 1.0), (2, 2.0), (4, 3.0), (8, 90.0)])
    Line(constant=1.0, slope=0.5)
    """
    if not points:
        return Line(0.0, 0.0)
    slopes = [(b - a) / (n - m) for i, (m, a) in enumerate(points) for n, b in points[:i] if n != m]
    slope = max(0.0, statistics.median_low(slopes)) if slopes else 0.0
    return Line(max(0.0, statistics.median_low(c - slope * n for n, c in points)), slope)
