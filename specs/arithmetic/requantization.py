"""Arithmetic: how one unit of a runtime turns exact integer accumulators into codes.

A closed set of parametrised values, each implemented once.  Notation: x the input codes minus their zero
point, acc the sum of products, s_x s_w s_y the scales, z the output's zero point, M = s_x*s_w/s_y,
R the rounding; every result is then clamped to the codes of the output.  acc is exact unless it needs more bits than
its `accumulator` has; the accumulator is that of products, not of means and of sums of two tensors.
"""

from __future__ import annotations

from typing import Any

from attrs import field, frozen

from qfunc.specs._check import ROUNDINGS, one_of, text
from qfunc.specs._values import readable

_rounding = one_of(ROUNDINGS)


@readable
@frozen
class Copy:
    """Codes move, values do not: reshape, transpose, max pool.

    >>> Copy()
    Copy()
    """

    def refuses(self, unit: Any) -> str:
        """Return the reason why an op does not only move codes, or ""."""
        return "" if unit.moves_codes else "it does not only move codes"

    def kernel(self, unit: Any) -> Any:
        """Return the op itself, on codes."""
        return unit.itself()


@readable
@frozen
class Unknown:
    """The vendor's arithmetic is not public; `nearest` names a target that can be emulated instead.

    >>> Unknown("closed source", nearest="onnxruntime")
    Unknown('closed source', nearest='onnxruntime')
    """

    reason: str = field(validator=text())
    nearest: str | None = field(default=None, validator=text(optional=True))

    def refuses(self, unit: Any) -> str:
        """Return the reason."""
        return self.reason

    def kernel(self, unit: Any) -> Any:
        """Raise the reason as an EmulationError."""
        raise unit.error(repr(self), "a public arithmetic")
