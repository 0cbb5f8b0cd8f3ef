"""python -m qfunc: show, compare and check targets; verify saved artifacts and models.

    python -m qfunc show A          print a target as the code that builds it
    python -m qfunc diff A B        print the differences of two targets: exit code 1 if there are any
    python -m qfunc check A         check the laws of qfunc.testing.check_target: exit code 1 if one fails
    python -m qfunc verify DIR      check the files of artifact.save or qfunc.save: exit code 1 if a check fails

A and B: a name in qfunc.targets ("tensorrt", "academic(4, 8)"), "module:attribute", or a JSON file of specs.to_json or
artifact.save.  Errors are one line on standard error, with exit code 2.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from qfunc.errors import QfuncError, SpecError, a_or_an
from qfunc.files.fields import Object, require
from qfunc.files.folder import read_file
from qfunc.files.json_text import parse
from qfunc.lowering.report_fields import read_target
from qfunc.specs import Target, diff

_DO = "Give a name in qfunc.targets, module:attribute, or a JSON file."


class _Parser(argparse.ArgumentParser):
    """An argument parser that prints errors in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code.

    >>> main(["diff", "tensorrt", "tensorrt"])
    0
    """
    parsed = _parser().parse_args(arguments)
    try:
        return int(parsed.command(parsed))
    except QfuncError as e:
        print(f"qfunc: {' '.join(str(e).split())}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # ... | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser() -> argparse.ArgumentParser:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = _Parser("python -m qfunc", description=__doc__, formatter_class=formatter)
    commands = parser.add_subparsers(required=True, metavar="show | diff | check | verify")
    show = commands.add_parser("show", help="print a target")
    show.add_argument("a", metavar="A")
    show.set_defaults(command=_show)
    difference = commands.add_parser("diff", help="print where two targets differ")
    difference.add_argument("a", metavar="A")
    difference.add_argument("b", metavar="B")
    difference.set_defaults(command=_diff)
    check = commands.add_parser("check", help="test a target against the library's laws")
    check.add_argument("a", metavar="A")
    check.add_argument("--examples", type=int, default=15, help="number of random models (15)")
    check.set_defaults(command=_check)
    verify = commands.add_parser("verify", help="check a saved artifact or model")
    verify.add_argument("directory", metavar="DIR")
    verify.set_defaults(command=_verify)
    return parser


def _show(parsed: argparse.Namespace) -> int:
    print(target_of(parsed.a), flush=True)
    return 0


def _diff(parsed: argparse.Namespace) -> int:
    differences = diff(target_of(parsed.a), target_of(parsed.b))
    print(differences, end="\n" if differences else "")
    return int(bool(differences))


def _check(parsed: argparse.Namespace) -> int:
    target = target_of(parsed.a)
    try:
        from qfunc.testing import check_target
    except ModuleNotFoundError as e:
        do = "Install the extra: pip install 'qfunc-torch[testing]'."
        raise SpecError(where="check", found=f"no module {e.name!r}", wanted="hypothesis", do=do) from e
    try:
        check_target(target, examples=parsed.examples)
    except AssertionError as e:
        print(f"{target.name}: {e}")
        return 1
    print(f"{target.name}: every law holds on {parsed.examples} networks")
    return 0


def _verify(parsed: argparse.Namespace) -> int:
    from qfunc.analysis.report_format import table
    from qfunc.lowering.saved_check import check_saved

    result = check_saved(parsed.directory)
    skipped = sum(r.outcome == "skipped" for r in result.rows)
    passed = f"no check failed, {skipped} skipped" if skipped else "every check passed"
    print(f"{result.kind} for {result.target}: {passed if result.good else 'FAILED'}")
    print(table(("check", "outcome", "seen"), [(r.name, r.outcome, r.seen) for r in result.rows], 200))
    return int(not result.good)


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
        value = _of_module(*text.split(":", 1))
    else:
        value = _of_targets(text)
    if not isinstance(value, Target):
        kind, do = a_or_an(type(value)), _DO
        if callable(value):
            do = "Assign its result to a name in that module." if ":" in text else "Call it, as in 'academic(4, 8)'."
        raise SpecError(where=repr(text), found=kind, wanted="a Target", do=do)
    return value


def _of_file(path: Path) -> Any:
    if not os.path.isfile(path):
        found = "a directory" if os.path.isdir(path) else "no such file or directory"
        raise SpecError(where=repr(str(path)), found=found, wanted="a JSON file", do=_DO)
    report = parse(read_file(path.resolve()), str(path))  # the user may name a link
    if isinstance(report, dict) and "target" in report:
        return read_target(require(Object(), report["target"], str(path), "target"), str(path), "target")
    return read_target(report, str(path))


def _of_module(module: str, attribute: str) -> Any:
    where = repr(f"{module}:{attribute}")
    try:
        value: Any = importlib.import_module(module)
        for name in attribute.split("."):
            value = getattr(value, name)
    except QfuncError:
        raise
    except Exception as e:  # a user's module may raise anything when it is imported
        raise SpecError(where=where, found=f"{type(e).__name__}: {e}", wanted="a module's attribute", do=_DO) from e
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


if __name__ == "__main__":
    sys.exit(main())
