"""Replace fields of a spec in a way that torch.compile can trace."""

from __future__ import annotations

from typing import Any, TypeVar

from attrs import fields

from qfunc.specs import Scale, Scheme

Spec = TypeVar("Spec", Scale, Scheme)


def replace_fields(spec: Spec, **changes: Any) -> Spec:
    """Return a spec with other fields, as `attrs.evolve` does; torch.compile cannot trace a frozen `__init__`.

    The rules between fields are checked.  The fields' own validators do not run: pass values of the right types.

    >>> replace_fields(Scheme(), rounding="floor")
    Scheme(rounding='floor')
    """
    new = object.__new__(type(spec))
    for field in fields(type(spec)):
        object.__setattr__(new, field.name, changes.get(field.name, getattr(spec, field.name)))
    new.__attrs_post_init__()
    return new
