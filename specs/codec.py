"""JSON for specs: lossless, with a schema version, and nothing is ever imported by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import attrs

from qfunc.errors import SpecError
from qfunc.specs import arithmetic, formats, placement, scheme, selectors, slots, target

SCHEMA = 1
_MODULES = (arithmetic, formats, placement, scheme, selectors, slots, target)


def to_json(spec: Any) -> str:
    """`spec` as JSON text: every value names its class and the fields that differ from their defaults.

    Args:
        spec: Any frozen value of qfunc, or a user's own frozen attrs value.
    Returns:
        JSON text; `from_json` gives back an equal value.
    Raises:
        SpecError: the value holds something that is no frozen attrs class, tuple, number, text or function.

    >>> from qfunc.specs import Int, from_json, to_json
    >>> from_json(to_json(Int(4, signed=False))) == Int(4, signed=False)
    True
    """
    return json.dumps({"schema": SCHEMA, "spec": _encode(spec)}, indent=1, allow_nan=False)


def from_json(text: str, classes: Iterable[Any] = ()) -> Any:
    """The spec that `to_json` wrote.

    Args:
        text: JSON text.
        classes: The user's own classes and functions that the text names, besides qfunc's.
    Raises:
        SpecError: not JSON, a newer schema, an unknown class or an unknown field.
    """
    try:
        document = json.loads(text)
        schema, body = document["schema"], document["spec"]
    except (ValueError, TypeError, KeyError) as e:
        raise SpecError(where="from_json", found=f"{type(e).__name__}: {e}", wanted="what to_json writes", do="Give such text.") from e
    if schema != SCHEMA:
        raise SpecError(where="from_json, schema", found=repr(schema), wanted=f"at most {SCHEMA}", do="Upgrade qfunc.")
    return _decode(body, {**_known(), **{_tag(c): c for c in classes}})


def _tag(thing: Any) -> str:
    package = thing.__module__.split(".")
    if package[0] != "qfunc":
        return f"{thing.__module__}:{thing.__qualname__}"
    return thing.__name__ if package[1] == "specs" else f"{package[1]}.{thing.__name__}"


def _known() -> dict[str, Any]:
    # The one place where a low floor names higher ones: the table of qfunc's own classes.
    from qfunc import estimators, functions

    classes = [v for m in (*_MODULES, estimators, functions) for v in vars(m).values()]
    return {_tag(c): c for c in classes if isinstance(c, type) and attrs.has(c)}


def _encode(value: Any) -> Any:
    if attrs.has(type(value)):
        pairs = ((f, getattr(value, f.name)) for f in attrs.fields(type(value)) if f.init)
        # The type is compared too: True == 1 and 1 == 1.0 must not be lost.
        kept = {f.name: _encode(v) for f, v in pairs if v != f.default or type(v) is not type(f.default)}
        return {"is": _tag(type(value)), **kept}
    if isinstance(value, tuple):
        return [_encode(v) for v in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Callable) and hasattr(value, "__qualname__"):  # type: ignore[arg-type]
        return {"is function": _tag(value)}
    raise SpecError(where="to_json", found=repr(value), wanted="a frozen attrs value", do="Make it an attrs class.")


def _decode(value: Any, known: dict[str, Any]) -> Any:
    if isinstance(value, list):
        return tuple(_decode(v, known) for v in value)
    if not isinstance(value, dict):
        return value
    name = value.get("is function", value.get("is"))
    if name not in known:
        do = f"Pass it: from_json(text, classes=({str(name).split(':')[-1]},))."
        raise SpecError(where="from_json", found=f"unknown class {name!r}", wanted="a class of qfunc", do=do)
    if "is function" in value:
        return known[name]
    arguments = {k: _decode(v, known) for k, v in value.items() if k != "is"}
    allowed = {f.name for f in attrs.fields(known[name]) if f.init}
    if not arguments.keys() <= allowed:
        found = ", ".join(sorted(arguments.keys() - allowed))
        raise SpecError(where=f"from_json, {name}", found=f"unknown field {found}", wanted=", ".join(sorted(allowed)), do="Remove it.")
    return known[name](**arguments)
