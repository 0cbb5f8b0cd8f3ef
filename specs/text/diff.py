"""A comparison of two specs, field by field."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any

import attrs

from qfunc.errors import SpecError
from qfunc.ops.traits import Trait
from qfunc.specs._values import constructor_arguments, one_line, short
from qfunc.specs.cpus import Cpu
from qfunc.specs.selectors import AnyOf, Op

_ORDER = "the same entries in another order"
_SETS = ("commuting", "source")
"""Texts, and kinds of ops, that are compared as sets."""


def diff(a: Any, b: Any) -> str:
    """Return a line `path: a -> b` for each field in which two specs differ; "" if they are equal.

    Entries of tuples are paired by their key, at whatever index: the name of a slot, or the selector of a rule. A
    selector of several kinds of ops counts as one entry per kind, so targets that group the kinds differently can be
    compared.

    Args:
        a, b: Two targets, or two values of `qfunc.specs`.
    Raises:
        SpecError: `a` or `b` is not a spec.

    >>> from attrs import evolve
    >>> from qfunc.specs import Int, Scheme
    >>> print(diff(Scheme(), evolve(Scheme(), format=Int(4), rounding="half_up")))
    format.bits: 8 -> 4
    rounding: 'half_even' -> 'half_up'
    """
    for value in (a, b):
        if value is not None and not isinstance(value, tuple) and constructor_arguments(value) is None:
            do = "Pass two targets, or two values of qfunc.specs."
            raise SpecError(where="diff", found=short(value), wanted="a spec", do=do)
    return "\n".join(_lines("", a, b))


def _lines(path: str, a: Any, b: Any) -> list[str]:
    if a == b:
        return []
    if type(a) is type(b) is Cpu:
        return [f"{path or 'value'}: {a} -> {b}"]
    members = [_members(v) for v in (a, b)] if path in _SETS else []
    if members and None not in members:
        return _differences(path, *(m or () for m in members))
    if type(a) is type(b) and attrs.has(type(a)):
        ours, theirs = constructor_arguments(a) or {}, constructor_arguments(b) or {}
        return [line for name, v in ours.items() for line in _lines(f"{path}.{name}".lstrip("."), v, theirs[name])]
    if type(a) is type(b) is tuple and _is_table(a) and _is_table(b):
        return _entries(path, a, b)
    return [f"{path or 'value'}: {_text(a)} -> {_text(b)}"]


def _members(value: Any) -> tuple[str | Trait, ...] | None:
    """Return the texts of a tuple, or the kinds of a selector by kinds; None for another selector."""
    if value is None or isinstance(value, tuple):
        return value or ()
    return _kinds(value) or None


def _differences(path: str, a: tuple[str | Trait, ...], b: tuple[str | Trait, ...]) -> list[str]:
    sides = ((name, [v for v in x if v not in y]) for name, x, y in (("first", a, b), ("second", b, a)))
    return [f"{path}: only in the {name}: {', '.join(map(one_line, v))}" for name, v in sides if v] or [f"{path}: {_ORDER}"]


def _is_table(entries: tuple[Any, ...]) -> bool:
    """Return True if every entry is a spec, or a pair of a key and its value."""
    return all(attrs.has(type(v)) or (type(v) is tuple and len(v) == 2) for v in entries)


@attrs.frozen
class _Row:
    """An entry, or the part of it for one kind of op; `number` is the index of the entry."""

    number: int
    entry: Any
    kind: str | Trait | None = None


def _rows(entries: tuple[Any, ...]) -> list[_Row]:
    kinds = [_kinds(_key(v)) for v in entries]
    return [
        _Row(i, v if kind is None else _about((kind,), v), kind)
        for i, v in enumerate(entries)
        for kind in (kinds[i] or (None,))
    ]


def _entries(path: str, a: tuple[Any, ...], b: tuple[Any, ...]) -> list[str]:
    ours, theirs = _rows(a), _rows(b)
    pairs = _paired(ours, theirs)
    lines = _changes(path, [(row, theirs[pairs[i]]) for i, row in enumerate(ours) if i in pairs])
    lines += _alone(path, "first", a, [row for i, row in enumerate(ours) if i not in pairs])
    lines += _alone(path, "second", b, [row for j, row in enumerate(theirs) if j not in pairs.values()])
    moved = sorted({(ours[i].number, theirs[j].number) for i, j in pairs.items()})
    order = [j for _, j in moved]
    one_to_one = len({i for i, _ in moved}) == len(moved) == len(set(order))
    return [*lines, f"{path}: {_ORDER}"] if not lines or (one_to_one and order != sorted(order)) else lines


def _paired(ours: list[_Row], theirs: list[_Row]) -> dict[int, int]:
    # Equal rows pair first, then those whose keys are left once on either side.
    pairs: dict[int, int] = {}
    for i, j in _matches(ours, theirs, pairs, operator.eq):
        if i not in pairs and j not in pairs.values():
            pairs[i] = j
    left = _matches(ours, theirs, pairs, _same_key)
    alone = [(i, j) for i, j in left if sum(i == k for k, _ in left) == sum(j == k for _, k in left) == 1]
    return pairs | dict(alone)


def _matches(
    ours: list[_Row], theirs: list[_Row], pairs: dict[int, int], same: Callable[[Any, Any], bool]
) -> list[tuple[int, int]]:
    free = [j for j in range(len(theirs)) if j not in pairs.values()]
    return [(i, j) for i, v in enumerate(ours) if i not in pairs for j in free if same(v.entry, theirs[j].entry)]


def _changes(path: str, pairs: list[tuple[_Row, _Row]]) -> list[str]:
    # A change that is equal for several kinds of op is listed once.
    changes: dict[tuple[str, str], list[str]] = {}
    for ours, theirs in pairs:
        v, w = ours.entry, theirs.entry
        lines = _lines("?", v[1], w[1]) if type(v) is tuple and _key(v) == _key(w) else _lines("?", v, w)
        for line in lines:
            about = "" if ours.kind else _text(_key(v))
            changes.setdefault((about, line[1:]), []).append(about if ours.kind is None else _word(ours.kind))
    return [f"{path}[{about or ', '.join(kinds)}]{line}" for (about, line), kinds in changes.items()]


def _alone(path: str, side: str, entries: tuple[Any, ...], rows: list[_Row]) -> list[str]:
    kinds: dict[int, list[str | Trait]] = {}
    for row in rows:
        kinds.setdefault(row.number, []).extend([row.kind] if row.kind else [])
    found = (_about(tuple(k), entries[i]) if k else entries[i] for i, k in kinds.items())
    return [f"{path}: only in the {side}: {_text(v)}" for v in found]


def _word(kind: str | Trait) -> str:
    return kind if isinstance(kind, str) else one_line(kind)


def _same_key(v: Any, w: Any) -> bool:
    return type(v) is type(w) and bool(_key(v) == _key(w))


def _key(entry: Any) -> Any:
    """What an entry is about: the first of a pair, the first field of a spec, else the entry."""
    if type(entry) is tuple:
        return entry[0]
    fields = constructor_arguments(entry) or {}
    return next(iter(fields.values()), entry)


def _kinds(selector: Any) -> tuple[str | Trait, ...]:
    """Return the kinds and traits of ops that a selector selects, or () if it selects by anything else."""
    match selector:
        case Op(kinds):
            return tuple(dict.fromkeys(kinds))
        case AnyOf(of) if all(map(_kinds, of)):
            return tuple(dict.fromkeys(kind for one in of for kind in _kinds(one)))
    return ()


def _about(kinds: tuple[str | Trait, ...], entry: Any) -> Any:
    """Return the entry for these kinds of op only."""
    if type(entry) is tuple:
        return (Op(kinds), entry[1])
    return attrs.evolve(entry, **{next(iter(constructor_arguments(entry) or {})): Op(kinds)})


def _text(value: Any) -> str:
    # A difference shows the default format, too.
    return re.sub(r"\bScheme\((?=(\)|\w+=))", lambda m: "Scheme(Int(8)" + (", " if m[1] != ")" else ""), one_line(value))
