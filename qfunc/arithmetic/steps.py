"""The names of two roundings, one after the other."""

from __future__ import annotations

from typing import Any

from qfunc.specs._check import ROUNDINGS, refuse


def is_steps(instance: Any, attribute: Any, value: Any) -> None:
    """Raise unless a value is a rounding, or "srdhm" or "sqdmulh" and a rounding."""
    wanted = 'a rounding, or "srdhm" or "sqdmulh" and a rounding'
    words = type(value) is tuple and all(type(step) is str for step in value)
    if not words or value[:-1] not in ((), ("srdhm",), ("sqdmulh",)) or value[-1:] not in tuple((r,) for r in ROUNDINGS):
        raise refuse(instance, "steps", value, wanted, 'Give e.g. ("srdhm", "half_away").')


__all__ = ["is_steps"]
