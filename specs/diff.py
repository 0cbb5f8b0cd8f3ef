"""A comparison of two specs that reads like two datasheets side by side."""

from __future__ import annotations

from typing import Any

import attrs


def diff(a: Any, b: Any) -> str:
    """Where two specs differ: a line for each field, `path: a -> b`; empty text if they are equal.

    >>> from attrs import evolve
    >>> from qfunc.specs import Int, Scheme
    >>> print(diff(Scheme(), evolve(Scheme(), format=Int(4), rounding="half_up")))
    format.bits: 8 -> 4
    rounding: 'half_even' -> 'half_up'
    """
    return "\n".join(_lines("", a, b))


def _lines(path: str, a: Any, b: Any) -> list[str]:
    if a == b and type(a) is type(b):
        return []
    if type(a) is type(b) and attrs.has(type(a)):
        names = [f.name for f in attrs.fields(type(a))]
        return [line for n in names for line in _lines(f"{path}.{n}".lstrip("."), getattr(a, n), getattr(b, n))]
    if isinstance(a, tuple) and isinstance(b, tuple) and any(attrs.has(type(v)) for v in a + b):
        return _tuples(path, a, b)
    return [f"{path or 'value'}: {a!r} -> {b!r}"]


def _tuples(path: str, a: tuple[Any, ...], b: tuple[Any, ...]) -> list[str]:
    # Equal entries pair up wherever they stand; the others pair in order, by what they select if they do.
    only_a, only_b = [v for v in a if v not in b], [v for v in b if v not in a]
    if not only_a and not only_b:
        return [f"{path}: the order differs"]
    lines = []
    for v in list(only_a):
        partner = next((w for w in only_b if type(w) is type(v) and _key(w) == _key(v)), None)
        if partner is not None:
            lines += _lines(f"{path}[{_key(v)!r}]", v, partner)
            only_a.remove(v)
            only_b.remove(partner)
    return lines + [f"{path}: only in the first: {v!r}" for v in only_a] + [f"{path}: only in the second: {v!r}" for v in only_b]


def _key(value: Any) -> Any:
    first = attrs.fields(type(value))[0].name if attrs.has(type(value)) else None
    return getattr(value, first) if first else value
