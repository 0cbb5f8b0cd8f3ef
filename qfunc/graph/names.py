"""Unique names for new nodes and files."""

from __future__ import annotations

from collections.abc import Collection
from itertools import chain, count


def unique_name(name: str, taken: Collection[str]) -> str:
    """Return the name, or the name with the first numeric suffix that is not taken.

    >>> unique_name("conv", {"conv", "conv_1"}), unique_name("linear", {"conv"})
    ('conv_2', 'linear')
    """
    return next(n for n in chain((name,), (f"{name}_{i}" for i in count(1))) if n not in taken)


__all__ = ["unique_name"]
