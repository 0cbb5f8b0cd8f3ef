"""A comparison of two specs that reads like two datasheets side by side."""

from __future__ import annotations

import operator
from typing import Any

import attrs

from qfunc.specs._frozen import held

_ORDER = "the same entries in another order"


def diff(a: Any, b: Any) -> str:
    """Where two specs differ: a line for each field, `path: a -> b`; empty text if they are equal.

    Entries of a tuple pair up by what they are about (a rule's selector, a slot's name), wherever they stand.

    >>> from attrs import evolve
    >>> from qfunc.specs import Int, Scheme
    >>> print(diff(Scheme(), evolve(Scheme(), format=Int(4), rounding="half_up")))
    format.bits: 8 -> 4
    rounding: 'half_even' -> 'half_up'
    """
    return "\n".join(_lines("", a, b))


def _lines(path: str, a: Any, b: Any) -> list[str]:
    if a == b:
        return []
    if type(a) is type(b) and attrs.has(type(a)):
        ours, theirs = held(a) or {}, held(b) or {}
        return [line for name, v in ours.items() for line in _lines(f"{path}.{name}".lstrip("."), v, theirs[name])]
    if type(a) is type(b) is tuple and _is_table(a) and _is_table(b):
        return _entries(path, a, b)
    return [f"{path or 'value'}: {_text(a)} -> {_text(b)}"]


def _is_table(entries: tuple[Any, ...]) -> bool:
    """Whether every entry is a spec or a pair of a key and its value."""
    return all(attrs.has(type(v)) or (type(v) is tuple and len(v) == 2) for v in entries)


def _entries(path: str, a: tuple[Any, ...], b: tuple[Any, ...]) -> list[str]:
    # Equal entries pair first, then those with equal keys, each with the first that is left.
    pairs: dict[int, int] = {}
    for same in (operator.eq, _same_key):
        for i, v in enumerate(a):
            free = (j for j, w in enumerate(b) if i not in pairs and j not in pairs.values() and same(v, w))
            if (j := next(free, None)) is not None:
                pairs[i] = j
    lines = []
    for i in sorted(pairs):
        label = f"{path}[{_text(_key(a[i]))}]"
        if type(a[i]) is tuple and _key(a[i]) == _key(b[pairs[i]]):
            lines += _lines(label, a[i][1], b[pairs[i]][1])
        else:
            lines += _lines(label, a[i], b[pairs[i]])
    lines += [f"{path}: only in the first: {_text(v)}" for i, v in enumerate(a) if i not in pairs]
    lines += [f"{path}: only in the second: {_text(w)}" for j, w in enumerate(b) if j not in pairs.values()]
    order = [pairs[i] for i in sorted(pairs)]
    return [*lines, f"{path}: {_ORDER}"] if order != sorted(order) else lines


def _same_key(v: Any, w: Any) -> bool:
    return type(v) is type(w) and bool(_key(v) == _key(w))


def _key(entry: Any) -> Any:
    """What an entry is about: the first of a pair, the first field of a spec, else the entry."""
    if type(entry) is tuple:
        return entry[0]
    fields = held(entry) or {}
    return next(iter(fields.values()), entry)


def _text(value: Any) -> str:
    return " ".join(repr(value).split()).replace("( ", "(").replace(",)", ")") if attrs.has(type(value)) else repr(value)
