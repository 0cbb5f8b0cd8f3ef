"""Nested inputs and outputs as flat lists."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def leaves(value: Any) -> list[Any]:
    """The leaves of nested tuples, lists and dicts, in order; named tuples count as tuples, None as a leaf.

    >>> leaves({"a": 1, "b": (2, [3])})
    [1, 2, 3]
    """
    if isinstance(value, Mapping):
        return [leaf for v in value.values() for leaf in leaves(v)]
    if isinstance(value, tuple | list):
        return [leaf for v in value for leaf in leaves(v)]
    return [value]
