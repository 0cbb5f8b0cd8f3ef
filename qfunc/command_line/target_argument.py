"""The target that an argument of the command line names."""

from __future__ import annotations

import ast
import importlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from qfunc.errors import QfuncError, SpecError, a_or_an
from qfunc.files.fields import Object, require
from qfunc.files.folder import read_file
from qfunc.files.json_text import parse
from qfunc.lowering.report_fields import lacks_classes, read_target
from qfunc.specs import Target

HOLDER = "Give --target module:attribute, a target of a module that holds them."
"""What to do about a file that names classes and functions of a user's."""
_DO = "Give a name in qfunc.targets, module:attribute, or a JSON file."


def target_of(text: str) -> Target:
    """Return the target named by an argument of the command line.

    Raises:
        SpecError: there is no such name, or its value is not a target.

    >>> target_of("academic(4, 8)").name
    'academic_w4a8'
    """
    if text.endswith(".json"):
        value = _of_file(Path(text))
    elif ":" in text:
        value = attribute_of(text, _DO)
    else:
        value = _of_targets(text)
    if not isinstance(value, Target):
        kind, do = a_or_an(type(value)), _DO
        if callable(value):
            do = "Assign its result to a name in that module." if ":" in text else "Call it, as in 'academic(4, 8)'."
        raise SpecError(where=repr(text), found=kind, wanted="a Target", do=do)
    return value


@contextmanager
def naming(do: str) -> Iterator[None]:
    """Raise an error of classes and functions that a file names and nothing gives with another cure.

    Raises:
        SpecError: names the option of the command line.
    """
    try:
        yield
    except SpecError as e:
        if not lacks_classes(e):
            raise
        raise SpecError(where=e.where, found=e.found, wanted=e.wanted, do=do) from e


def _of_file(path: Path) -> Any:
    if not os.path.isfile(path):
        found = "a directory" if os.path.isdir(path) else "no such file or directory"
        raise SpecError(where=repr(str(path)), found=found, wanted="a JSON file", do=_DO)
    report = parse(read_file(path.resolve()), str(path))  # the user may name a link
    with naming("Give module:attribute, the target of a module, in place of the file."):
        if isinstance(report, dict) and "target" in report:
            return read_target(require(Object(), report["target"], str(path), "target"), str(path), "target")
        return read_target(report, str(path))


def attribute_of(text: str, do: str) -> Any:
    """Return the attribute of a module that an argument "module:attribute" names; `do` is the cure in errors.

    Raises:
        SpecError: the import fails, or there is no such attribute.
    """
    (module, attribute), where = text.split(":", 1), repr(text)
    try:
        value: Any = importlib.import_module(module)
        for name in attribute.split("."):
            value = getattr(value, name)
    except QfuncError:
        raise
    except Exception as e:  # a user's module may raise anything when it is imported
        raise SpecError(where=where, found=f"{type(e).__name__}: {e}", wanted="a module's attribute", do=do) from e
    return value


def _of_targets(text: str) -> Any:
    from qfunc import targets

    match = re.fullmatch(r"(\w+)(\(.*\))?", text)
    if match is None or match[1] not in targets.__all__:
        names = ", ".join(targets.__all__)
        raise SpecError(where=repr(text), found="no such target", wanted=f"one of {names}", do=_DO)
    value = getattr(targets, match[1])
    if match[2] is None:
        return value
    if isinstance(value, Target):
        raise SpecError(where=repr(text), found="arguments for a target", wanted="only its name", do=f"Write {match[1]}.")
    try:
        arguments = ast.literal_eval(f"({match[2][1:-1]},)" if match[2] != "()" else "()")
    except (ValueError, SyntaxError) as e:
        found, do = f"the arguments {match[2]}", "Write numbers, as in 'academic(4, 8)'."
        raise SpecError(where=repr(text), found=found, wanted="numbers", do=do) from e
    try:
        return value(*arguments)
    except TypeError as e:
        raise SpecError(where=repr(text), found=f"TypeError: {e}", wanted="arguments that it accepts", do=_DO) from e
