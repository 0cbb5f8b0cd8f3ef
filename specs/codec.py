"""JSON for specs: lossless, with a schema version, and nothing is ever imported by name."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from types import FunctionType
from typing import Any

import attrs

from qfunc.errors import SpecError
from qfunc.specs import arithmetic, formats, kernel, legality, placement, scheme, selectors, slots, target
from qfunc.specs._frozen import constructor_arguments, mutability_error, short

SCHEMA = 1
_MODULES = (arithmetic, formats, kernel, legality, placement, scheme, selectors, slots, target)
_INFINITIES = {float("inf"): "inf", float("-inf"): "-inf"}


def to_json(spec: Any) -> str:
    """`spec` as JSON text: every value names its class and all its fields, so that a later default changes nothing.

    Args:
        spec: Any frozen value of qfunc, or a user's own frozen attrs or dataclass value, or a tuple of them.
    Returns:
        JSON text; `from_json` gives back an equal value.
    Raises:
        SpecError: the value holds something that can change, or a function without a module-level name.

    >>> from qfunc.specs import Int, from_json, to_json
    >>> from_json(to_json(Int(4, signed=False))) == Int(4, signed=False)
    True
    """
    if isinstance(spec, str | int | float | None):
        raise SpecError(
            where="to_json", found=repr(spec), wanted="a spec", do="Pass a target, or another value of qfunc.specs."
        )
    if bad := mutability_error(spec):
        do = "Hold numbers, texts, tuples and frozen attrs values only."
        raise SpecError(where="to_json", found=bad, wanted="a value frozen all the way down", do=do)
    return json.dumps({"schema": SCHEMA, "spec": _encode(spec)}, indent=1, allow_nan=False)


def from_json(text: str, classes: Iterable[Any] = ()) -> Any:
    """The spec that `to_json` wrote.

    Args:
        text: JSON text.
        classes: The user's own classes and functions that the text names, besides qfunc's.
    Raises:
        SpecError: not JSON, another schema, an unknown class or field, a missing field, a value that no
            spec can have, or `classes` that are no classes and functions.

    >>> from qfunc.specs import Int
    >>> from_json(to_json(Int(4)))
    Int(4)
    """
    try:
        document = json.loads(text)
    except (ValueError, TypeError) as e:
        raise _not_ours(f"no JSON ({e})") from e
    if not isinstance(document, dict) or document.keys() != {"schema", "spec"}:
        raise _not_ours(short(document))
    schema = document["schema"]
    if type(schema) is not int or schema != SCHEMA:
        do = "Upgrade qfunc." if type(schema) is int and schema > SCHEMA else "Give the text as to_json wrote it."
        raise SpecError(where="from_json, schema", found=repr(schema), wanted=repr(SCHEMA), do=do)
    return _decode(document["spec"], {**_known(), **_given(classes)})


def _not_ours(found: str) -> SpecError:
    return SpecError(where="from_json", found=found, wanted='{"schema": 1, "spec": ...}', do="Give what to_json wrote.")


def _given(classes: Iterable[Any]) -> dict[str, Any]:
    wanted, do = "a tuple of frozen classes and functions", "Write from_json(text, classes=(Mine,))."
    given = () if isinstance(classes, str) or not isinstance(classes, Iterable) else tuple(classes)
    wrong = [c for c in given if not _is_class(c) and not isinstance(c, FunctionType)]
    if wrong or isinstance(classes, str) or not isinstance(classes, Iterable):
        raise SpecError(where="from_json, classes", found=short(wrong[0] if wrong else classes), wanted=wanted, do=do)
    return {_tag(c): c for c in given}


def _is_class(thing: Any) -> bool:
    return isinstance(thing, type) and (attrs.has(thing) or dataclasses.is_dataclass(thing))


def _tag(thing: Any) -> str:
    package = thing.__module__.split(".")
    if package[0] != "qfunc" or len(package) < 2:
        return f"{thing.__module__}:{thing.__qualname__}"
    return str(thing.__name__) if package[1] == "specs" else f"{package[1]}.{thing.__name__}"


def _known() -> dict[str, Any]:
    # The one place where a low floor names higher ones: the table of qfunc's own classes.
    from qfunc import estimators, functions, lowering

    classes = [v for m in (*_MODULES, estimators, functions, lowering) for v in vars(m).values()]
    return {_tag(c): c for c in classes if _is_class(c)}


_PLAIN = frozenset({type(None), bool, int, str})


def _encode(value: Any) -> Any:
    if type(value) in _PLAIN:
        return value
    if type(value) is tuple:
        return [_encode(v) for v in value]
    if isinstance(value, FunctionType):
        return {"is function": _tag(value)}
    if type(value) is float and value in _INFINITIES:
        return {"is number": _INFINITIES[value]}
    fields = constructor_arguments(value)
    if fields is None:
        return value
    return {"is": _tag(type(value)), **{name: _encode(v) for name, v in fields.items()}}


def _decode(value: Any, known: dict[str, Any]) -> Any:
    if isinstance(value, list):
        return tuple(_decode(v, known) for v in value)
    if not isinstance(value, dict):
        return value
    if value.get("is number") in ("inf", "-inf"):
        return float(value["is number"])
    name = value.get("is function", value.get("is"))
    if not isinstance(name, str) or name not in known:
        do = f"Pass it: from_json(text, classes=({str(name).split(':')[-1]},))."
        raise SpecError(where="from_json", found=f"unknown class {name!r}", wanted="a class of qfunc", do=do)
    if isinstance(known[name], FunctionType):
        return known[name]
    return _build(name, known[name], {k: _decode(v, known) for k, v in value.items() if k != "is"})


def _build(name: str, kind: Any, arguments: dict[str, Any]) -> Any:
    every = attrs.fields(kind) if attrs.has(kind) else dataclasses.fields(kind)
    allowed = {getattr(f, "alias", f.name): f for f in every if f.init}
    where, wanted = f"from_json, {name}", ", ".join(sorted(allowed))
    if unknown := arguments.keys() - allowed.keys():
        raise SpecError(where=where, found=f"unknown field {', '.join(sorted(unknown))}", wanted=wanted, do="Remove it.")
    try:
        return kind(**arguments)
    except TypeError as e:
        raise SpecError(where=where, found=str(e), wanted=wanted, do="Give the missing field.") from e
