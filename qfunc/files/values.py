"""Nested values of tensors, numbers and texts as JSON beside a dict of tensors, without code in the file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from qfunc.files.json_text import damage_error

_PLAIN = (str, bool, int, type(None))


def class_name(kind: type) -> str:
    """Return the name by which a class of named tuples is stored.

    >>> from collections import namedtuple
    >>> class_name(namedtuple("Point", "x y", module="shapes"))
    'shapes:Point'
    """
    return f"{kind.__module__}:{kind.__qualname__}"


def encode(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Return a nested value as JSON; its tensors are added to `tensors`.

    Raises:
        TypeError: a value that is no tensor, number, text, tuple, list or dict.

    >>> encode((1, 0.5, [None]), {})
    {'tuple': [1, {'float': '0x1.0000000000000p-1'}, {'list': [None]}]}
    """
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach().cpu().clone().contiguous()
        return {"tensor": name}
    if type(value) in _PLAIN:
        return value
    if type(value) is float:
        return {"float": value.hex()}
    if isinstance(value, tuple):
        items = [encode(v, tensors) for v in value]
        return {"class": class_name(type(value)), "items": items} if hasattr(value, "_fields") else {"tuple": items}
    if type(value) is list:
        return {"list": [encode(v, tensors) for v in value]}
    if isinstance(value, Mapping):
        return {"dict": [[encode(k, tensors), encode(v, tensors)] for k, v in value.items()]}
    raise TypeError(f"a {type(value).__name__}")


def decode(value: Any, tensors: Mapping[str, Tensor], classes: Mapping[str, Any], file: str) -> Any:
    """Return the value of `encode`.

    Args:
        value: The JSON.
        tensors: The tensors by name.
        classes: The classes of named tuples that the file may have, by `class_name`.
        file: The name of the file, for messages.
    Raises:
        FileError: the JSON is no such value, or names another class or tensor.

    >>> decode({"tuple": [1, {"float": "0x1.0p-1"}]}, {}, {}, "mine.json")
    (1, 0.5)
    """

    def inner(each: Any) -> Any:
        return decode(each, tensors, classes, file)

    if type(value) in _PLAIN:
        return value
    match value:
        case {"tensor": str(name), **rest} if not rest and name in tensors:
            return tensors[name]
        case {"float": str(text), **rest} if not rest:
            try:
                return float.fromhex(text)
            except ValueError as e:
                raise damage_error(file, "", repr(text[:40]), "a float in hexadecimal") from e
        case {"tuple": list(items), **rest} if not rest:
            return tuple(map(inner, items))
        case {"list": list(items), **rest} if not rest:
            return list(map(inner, items))
        case {"dict": list(pairs), **rest} if not rest and all(isinstance(p, list) and len(p) == 2 for p in pairs):
            return {inner(k): inner(v) for k, v in pairs}
        case {"class": str(name), "items": list(items), **rest} if not rest and name in classes:
            if len(items) == len(classes[name]._fields):
                return classes[name](*map(inner, items))
    raise damage_error(file, "", repr(value)[:80], "a stored value")
