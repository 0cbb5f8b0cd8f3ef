"""A spec with other fields, made in steps that the compiler can follow."""

from __future__ import annotations

from typing import Any, TypeVar

from attrs import fields

from qfunc.specs import Scale, Scheme

Spec = TypeVar("Spec", Scale, Scheme)


def altered(spec: Spec, **changes: Any) -> Spec:
    """`attrs.evolve`, whose frozen `__init__` torch.compile cannot trace; the new values are of their fields' kinds.

    The rules between fields are checked as ever.

    >>> altered(Scheme(), rounding="floor")
    Scheme(rounding='floor')
    """
    new = object.__new__(type(spec))
    for field in fields(type(spec)):
        object.__setattr__(new, field.name, changes.get(field.name, getattr(spec, field.name)))
    new.__attrs_post_init__()
    return new
