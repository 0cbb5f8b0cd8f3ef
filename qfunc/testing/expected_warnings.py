"""Warnings that drawn networks and inputs give by design: a drawn layer may be constant, and a drawn input extreme."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_LOSSES = r"calibrate, site .*: found (one code for all|\d+ of \d+ values, up to)"


@contextmanager
def without_range_warnings() -> Iterator[None]:
    """Ignore the warnings of `calibrate` about tensors with one code, and about outliers, in this context.

    >>> with without_range_warnings():
    ...     warnings.warn("calibrate, site 'x': found one code for all 8 values")
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=_LOSSES, category=UserWarning)
        yield
