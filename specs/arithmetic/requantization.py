"""The arithmetics that compute nothing of their own: codes that move, and an arithmetic that is not public."""

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

    def own_error(self, levels: int) -> float:
        """Return 0: values do not change."""
        return 0.0

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
