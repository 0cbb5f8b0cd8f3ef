"""JSON for specs: lossless, with a schema version, and nothing is ever imported by name."""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Callable, Iterable, Mapping
from enum import Flag
from functools import cached_property, reduce
from operator import or_
from types import FunctionType, ModuleType
from typing import Any

import attrs

from qfunc.errors import FileError, QfuncError, SpecError, first_line
from qfunc.files.json_text import in_lines, parse
from qfunc.specs._values import constructor_arguments, mutability_error, short

SCHEMA = 1
_FINITE = json.JSONEncoder(allow_nan=False)
_INFINITIES = {float("inf"): "inf", float("-inf"): "-inf"}


def public_classes(module: ModuleType, prefix: str = "") -> dict[str, type]:
    """Return the classes of frozen values among the public names of a module, by `prefix` and name."""
    public = {prefix + name: getattr(module, name) for name in module.__all__}
    return {name: value for name, value in public.items() if _is_class(value)}


class Codec:
    """JSON of the specs whose classes it knows, by the public names of these classes.

    Args:
        known: The classes by name.  A user's own class has the name `module:class`.
        more: Return further classes by name.  It is called once, for the first class or name that is not known.
    """

    def __init__(self, known: Mapping[str, type], more: Callable[[], Mapping[str, type]] = dict) -> None:
        self._known, self._more = dict(known), more

    @cached_property
    def _names(self) -> dict[type, str]:
        return {kind: name for name, kind in self._known.items()}

    @cached_property
    def _every(self) -> dict[str, type]:
        return {**self._known, **self._more()}

    @cached_property
    def _every_name(self) -> dict[type, str]:
        return {kind: name for name, kind in self._every.items()}

    def to_json(self, spec: Any) -> str:
        """Return `spec` as JSON text, in which every value has the name of its class and all its fields.

        The text has the default values too, so that it stands for the same spec after a default changes.

        Args:
            spec: Any frozen value of qfunc, or a user's own frozen attrs or dataclass value, or a tuple of them.
        Returns:
            JSON text; `from_json` returns an equal value.
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
        return in_lines({"schema": SCHEMA, "spec": self._encode(spec)}, _FINITE)

    def from_json(self, text: str, classes: Iterable[Any] = ()) -> Any:
        """Return the spec that `to_json` wrote.

        Args:
            text: JSON text.
            classes: The user's own classes and functions that the text names, besides qfunc's.
        Raises:
            SpecError: not JSON, another schema, an unknown class or field, a missing field, a value that no
                spec can have, or `classes` that are no classes and functions.

        >>> from qfunc.specs import Int, from_json, to_json
        >>> from_json(to_json(Int(4)))
        Int(4)
        """
        if not isinstance(text, str | bytes):
            raise _not_ours(short(text))
        try:
            document = parse(text, "from_json")
        except FileError as e:
            raise SpecError(where=e.where, found=e.found, wanted=e.wanted, do="Give what to_json wrote.") from e
        if not isinstance(document, dict) or document.keys() != {"schema", "spec"}:
            raise _not_ours(short(document))
        schema = document["schema"]
        if type(schema) is not int or schema != SCHEMA:
            do = "Upgrade qfunc." if type(schema) is int and schema > SCHEMA else "Give the text as to_json wrote it."
            raise SpecError(where="from_json, schema", found=repr(schema), wanted=repr(SCHEMA), do=do)
        if not isinstance(document["spec"], dict | list):
            where, do = "from_json, spec", "Give what to_json wrote."
            raise SpecError(where=where, found=short(document["spec"]), wanted="a spec", do=do)
        own = {self._name(c): c for c in _checked(classes)}
        known = self._known if _class_names(document["spec"]) <= {*self._known, *own} else self._every
        every = {**known, **own}
        if missing := {name: key for name, key in _own_names(document["spec"]).items() if name not in every}:
            raise _not_given(missing)
        return _decode(document["spec"], every)

    def _name(self, thing: Any) -> str:
        return self._names.get(thing) or self._every_name.get(thing) or f"{thing.__module__}:{thing.__qualname__}"

    def _encode(self, value: Any) -> Any:
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is tuple:
            return [self._encode(v) for v in value]
        if isinstance(value, FunctionType):
            return {"is function": self._name(value)}
        if isinstance(value, Flag):
            return {"is": self._name(type(value)), "members": [member.name for member in value]}
        if type(value) is float and value in _INFINITIES:
            return {"is number": _INFINITIES[value]}
        fields = constructor_arguments(value)
        if fields is None:
            return value
        return {"is": self._name(type(value)), **{name: self._encode(v) for name, v in fields.items()}}


def _not_ours(found: str) -> SpecError:
    return SpecError(where="from_json", found=found, wanted='{"schema": 1, "spec": ...}', do="Give what to_json wrote.")


def _checked(classes: Iterable[Any]) -> tuple[Any, ...]:
    wanted, do = "a tuple of frozen classes and functions", "Write from_json(text, classes=(Mine,))."
    given = () if isinstance(classes, str) or not isinstance(classes, Iterable) else tuple(classes)
    wrong = [c for c in given if not _is_class(c) and not isinstance(c, FunctionType)]
    if wrong or isinstance(classes, str) or not isinstance(classes, Iterable):
        raise SpecError(where="from_json, classes", found=short(wrong[0] if wrong else classes), wanted=wanted, do=do)
    return given


def _is_class(thing: Any) -> bool:
    return isinstance(thing, type) and (attrs.has(thing) or dataclasses.is_dataclass(thing) or issubclass(thing, Flag))


def _class_names(value: Any) -> set[str]:
    if isinstance(value, list):
        return set().union(*map(_class_names, value))
    if not isinstance(value, dict):
        return set()
    own = {name for name in (value.get("is"), value.get("is function")) if isinstance(name, str)}
    return own.union(*map(_class_names, value.values()))


def _own_names(value: Any) -> dict[str, str]:
    # The names of the user's classes and functions in the order of the text, each with the word for it.
    if isinstance(value, list):
        return {name: word for part in value for name, word in _own_names(part).items()}
    if not isinstance(value, dict):
        return {}
    name, word = (value["is function"], "function") if "is function" in value else (value.get("is"), "class")
    found = {name: word} if isinstance(name, str) and ":" in name else {}
    return found | {name: word for part in value.values() for name, word in _own_names(part).items()}


def _not_given(missing: Mapping[str, str]) -> SpecError:
    groups, given = list[str](), list[str]()
    for word, words in (("class", "classes"), ("function", "functions")):
        names = [name for name, of in missing.items() if of == word]
        groups += [f"{word if len(names) == 1 else words} {', '.join(map(repr, names))}"] if names else []
        given += [name.split(":")[-1] for name in names]
    one = len(missing) == 1
    wanted = f"a {next(iter(missing.values()))} of qfunc" if one else "classes and functions of qfunc"
    do = f"Pass {'it' if one else 'them'}: from_json(text, classes=({', '.join(given)}{',' if one else ''}))."
    return SpecError(where="from_json", found=f"unknown {' and '.join(groups)}", wanted=wanted, do=do)


def _decode(value: Any, known: dict[str, Any]) -> Any:
    if isinstance(value, list):
        return tuple(_decode(v, known) for v in value)
    if not isinstance(value, dict):
        return value
    if value.get("is number") in ("inf", "-inf"):
        return float(value["is number"])
    name = value.get("is function", value.get("is"))
    if not isinstance(name, str) or name not in known:
        raise _unknown(name, known)
    if isinstance(known[name], FunctionType):
        return known[name]
    if issubclass(known[name], Flag):
        return _flag(name, known[name], value.get("members"))
    return _build(name, known[name], {k: _decode(v, known) for k, v in value.items() if k != "is"})


def _unknown(name: Any, known: Iterable[str]) -> SpecError:
    near = difflib.get_close_matches(str(name), known, 3, 0.5)
    wanted = f"a class of qfunc{', such as ' + ', '.join(near) if near else ''}"
    do = "Write the name that the class has now, or write the spec again with to_json."
    return SpecError(where="from_json", found=f"unknown class {name!r}", wanted=wanted, do=do)


def _flag(name: str, kind: type[Flag], members: Any) -> Flag:
    if not isinstance(members, list) or not all(isinstance(m, str) and m in kind.__members__ for m in members):
        wanted = "members among " + ", ".join(kind.__members__)
        raise SpecError(where=f"from_json, {name}", found=short(members), wanted=wanted, do="Correct the names.")
    return reduce(or_, (kind[m] for m in members), kind(0))


def _build(name: str, kind: Any, arguments: dict[str, Any]) -> Any:
    every = attrs.fields(kind) if attrs.has(kind) else dataclasses.fields(kind)
    allowed = {getattr(f, "alias", f.name): f for f in every if f.init}
    where, wanted = f"from_json, {name}", ", ".join(sorted(allowed))
    if unknown := arguments.keys() - allowed.keys():
        do = "Rename it, or remove it."
        raise SpecError(where=where, found=f"unknown field {', '.join(sorted(unknown))}", wanted=wanted, do=do)
    try:
        return kind(**arguments)
    except TypeError as e:
        raise SpecError(where=where, found=str(e), wanted=wanted, do="Give the missing field.") from e
    except QfuncError:
        raise
    except Exception as e:  # a user's own class may raise anything
        raise SpecError(where=where, found=first_line(e), wanted="values that it accepts", do="Repair the text.") from e
