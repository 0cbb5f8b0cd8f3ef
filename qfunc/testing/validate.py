"""Validate the arguments of the checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from qfunc.errors import SpecError
from qfunc.specs._check import members, misfit
from qfunc.transforms.validate import describe


def require_protocol(value: Any, protocol: type, check: str) -> None:
    """Refuse a class in place of its instance, a value that lacks methods, and optional methods of another shape or name.

    Raises:
        SpecError: the message names the methods.
    """
    names = members(protocol)
    missing = [n for n in names if not callable(getattr(value, n, None))]
    if isinstance(value, type) or missing:
        do = f"Call it: {value.__name__}()." if isinstance(value, type) else f"Add {', '.join(missing)}."
        wanted = f"a frozen value with the methods {', '.join(names)}"
        raise SpecError(where=f"testing.{check}", found=describe(value), wanted=wanted, do=do)
    if bad := misfit(type(value), protocol):
        found, wanted, do = bad
        raise SpecError(where=f"testing.{check}", found=f"{describe(value)} with {found}", wanted=wanted, do=do)


def require_examples(examples: Any, check: str) -> None:
    """Raise unless a value is a number of examples.

    Raises:
        SpecError: less than 1, or not an int.
    """
    if type(examples) is not int or examples < 1:
        do = "Give a number such as 15."
        raise SpecError(where=f"testing.{check}, examples", found=repr(examples), wanted="an int of at least 1", do=do)


def exemptions(exempt: Mapping[str, str] | None, laws: Iterable[str], check: str) -> dict[str, str]:
    """Return the exempt laws with their reasons.

    Raises:
        SpecError: a name that is no law, or an exemption without a reason.
    """
    where, names = f"testing.{check}, exempt", tuple(laws)
    given = {} if exempt is None else exempt
    if not isinstance(given, Mapping):
        raise SpecError(where=where, found=repr(given), wanted="a mapping", do='Write exempt={"law": "the reason"}.')
    for name, reason in given.items():
        if name not in names:
            near = get_close_matches(str(name), names, 1)
            do = f"Write {near[0]!r}." if near else "Use one of these names."
            raise SpecError(where=where, found=repr(name), wanted=f"a law: {', '.join(names)}", do=do)
        if type(reason) is not str or not reason:
            do = "Write why the law cannot hold."
            raise SpecError(where=f"{where}[{name!r}]", found=repr(reason), wanted="a reason", do=do)
    return dict(given)


def require_broken(law: Callable[[], object], name: str, check: str) -> None:
    """Refuse the exemption of a law that holds; for laws of the value itself, which one call decides.

    Raises:
        AssertionError: the law holds.
    """
    try:
        law()
    except Exception:
        return
    raise AssertionError(f"{check}, law {name!r}: it is exempt, and holds. Remove it from exempt.")
