"""The methods of estimators."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Estimator(Protocol):
    """An estimator: statistics of a tensor, as an explicit state, and the qparams that follow from them.

    >>> from qfunc.estimators import MinMax
    >>> isinstance(MinMax(), Estimator), isinstance(MinMax(), MergeableEstimator)
    (True, True)
    """

    def init(self, scheme: Any, like: Any) -> Any:
        """Return the state before any data; only the shape and device of `like` are read."""

    def update(self, state: Any, x: Any, scheme: Any) -> Any:
        """Return the state after x; the old one is unchanged."""

    def finalize(self, state: Any, scheme: Any) -> Any:
        """Return the qparams."""


@runtime_checkable
class MergeableEstimator(Protocol):
    """An estimator that joins the states of processes in distributed calibration."""

    def merge(self, a: Any, b: Any) -> Any:
        """Return the state after the data of both."""
