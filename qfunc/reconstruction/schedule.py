"""The regulariser that drives each rounding to 0 or 1, and how its weight and exponent change over the iterations."""

from __future__ import annotations

from typing import Any

from attrs import field, frozen

from qfunc.specs._check import number, refuse


def _share(instance: Any, attribute: Any, value: Any) -> None:
    if type(value) not in (int, float) or not 0 <= value < 1:
        raise refuse(instance, attribute.name, value, "a number in [0, 1)", "Give the share of iterations without it.")


@frozen
class Regulariser:
    """lambda sum (1 - |2 h - 1|^b) over all weights of a unit, h in [0, 1] how far a weight is rounded up.

    In the first `warm_up` T of T iterations lambda is 0; from there to the end b falls linearly from `start` to `end`: high
    exponents leave an h free until it is near 0 or 1, low ones decide it.

    Args:
        weight: lambda.
        start, end: Of b.
        warm_up: A share of the iterations, in [0, 1).
    Raises:
        SpecError: such a field is none.
    Source: Nagel et al., arXiv:2004.10568, equation 24 and section 4; the schedule of Li et al., arXiv:2102.05426, appendix.

    >>> schedule = Regulariser()
    >>> schedule.exponent(199, 1000), schedule.exponent(200, 1000), schedule.exponent(600, 1000)
    (None, 20.0, 11.0)
    """

    weight: float = field(default=0.01, validator=number(positive=True))
    start: float = field(default=20.0, validator=number(positive=True))
    end: float = field(default=2.0, validator=number(positive=True))
    warm_up: float = field(default=0.2, validator=_share)

    def exponent(self, iteration: int, iterations: int) -> float | None:
        """b at an iteration, counted from 0; None while there is no regulariser."""
        first = self.warm_up * iterations
        if iteration < first:
            return None
        return self.end + (self.start - self.end) * max(0.0, 1 - (iteration - first) / (iterations - first))
