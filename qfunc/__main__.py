"""python -m qfunc: targets shown, compared and checked; what was saved, verified.

    python -m qfunc show A          the target, as the code that builds it
    python -m qfunc diff A B        where two targets differ: exit code 1 if they do
    python -m qfunc check A         the laws of qfunc.testing.check_target: exit code 1 if one does not hold
    python -m qfunc verify DIR      what artifact.save or qfunc.save wrote: exit code 1 if a check fails

A and B: a name in qfunc.targets ("tensorrt", "academic(4, 8)"), "module:attribute", or a JSON file that
specs.to_json or artifact.save wrote.  Wrong use is one line on standard error, and exit code 2.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from qfunc.errors import QfuncError, SpecError, a_or_an
from qfunc.specs import Target, diff, from_json

_DO = "Give a name in qfunc.targets, module:attribute, or a JSON file."


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code of one command line.

    >>> main(["diff", "tensorrt", "tensorrt"])
    0
    """
    given = _parser().parse_args(arguments)
    try:
        return int(given.command(given))
    except QfuncError as e:
        print(f"qfunc: {' '.join(str(e).split())}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # ... | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser() -> argparse.ArgumentParser:
    kept = argparse.RawDescriptionHelpFormatter
    parser = _Parser("python -m qfunc", description=__doc__, formatter_class=kept)
    commands = parser.add_subparsers(required=True, metavar="show | diff | check | verify")
    show = commands.add_parser("show", help="print a target")
    show.add_argument("a", metavar="A")
    show.set_defaults(command=_show)
    compared = commands.add_parser("diff", help="print where two targets differ")
    compared.add_argument("a", metavar="A")
    compared.add_argument("b", metavar="B")
    compared.set_defaults(command=_diff)
    check = commands.add_parser("check", help="test a target against the library's laws")
    check.add_argument("a", metavar="A")
    check.add_argument("--examples", type=int, default=15, help="how many random models (15)")
    check.set_defaults(command=_check)
    verify = commands.add_parser("verify", help="check a saved artifact or model")
    verify.add_argument("directory", metavar="DIR")
    verify.set_defaults(command=_verify)
    return parser


def _show(given: argparse.Namespace) -> int:
    print(target_of(given.a), flush=True)
    return 0


def _diff(given: argparse.Namespace) -> int:
    found = diff(target_of(given.a), target_of(given.b))
    print(found, end="\n" if found else "")
    return int(bool(found))


def _check(given: argparse.Namespace) -> int:
    target = target_of(given.a)
    try:
        from qfunc.testing import check_target
    except ModuleNotFoundError as e:
        do = "Install the extra: pip install 'qfunc-torch[testing]'."
        raise SpecError(where="check", found=f"no module {e.name!r}", wanted="hypothesis", do=do) from e
    try:
        check_target(target, examples=given.examples)
    except AssertionError as e:
        print(f"{target.name}: {e}")
        return 1
    print(f"{target.name}: every law holds on {given.examples} networks")
    return 0


def _verify(given: argparse.Namespace) -> int:
    from qfunc.analysis.report_format import table
    from qfunc.lowering.saved_check import check_saved

    found = check_saved(given.directory)
    skipped = sum(r.outcome == "skipped" for r in found.rows)
    passed = f"no check failed, {skipped} skipped" if skipped else "every check passed"
    print(f"{found.kind} for {found.target}: {passed if found.good else 'FAILED'}")
    print(table(("check", "outcome", "seen"), [(r.name, r.outcome, r.seen) for r in found.rows], 200))
    return int(not found.good)


def target_of(text: str) -> Target:
    """Return the target that a word of the command line names.

    Raises:
        SpecError: none of that name, or something that is no target.

    >>> target_of("academic(4, 8)").name
    'academic_w4a8'
    """
    if text.endswith(".json"):
        found = _of_file(Path(text))
    elif ":" in text:
        found = _of_module(*text.split(":", 1))
    else:
        found = _of_targets(text)
    if not isinstance(found, Target):
        said, do = a_or_an(type(found)), _DO
        if callable(found):
            do = "Give what it returns a name in that module." if ":" in text else "Call it, as in 'academic(4, 8)'."
        raise SpecError(where=repr(text), found=said, wanted="a Target", do=do)
    return found


def _of_file(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as e:
        raise SpecError(where=repr(str(path)), found=(e.strerror or str(e)).lower(), wanted="a JSON file", do=_DO) from e
    except UnicodeDecodeError as e:
        raise SpecError(where=repr(str(path)), found="no text in UTF-8", wanted="a JSON file", do=_DO) from e
    try:
        report = json.loads(text)
    except ValueError:
        report = None  # from_json says what is wrong
    if isinstance(report, dict) and isinstance(report.get("target"), dict):
        return from_json(json.dumps(report["target"]))
    return from_json(text)


def _of_module(module: str, attribute: str) -> Any:
    where = repr(f"{module}:{attribute}")
    try:
        value: Any = importlib.import_module(module)
        for name in attribute.split("."):
            value = getattr(value, name)
    except QfuncError:
        raise
    except Exception as e:  # whatever the user's module does when it is imported
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
        raise SpecError(where=repr(text), found="a target, called", wanted="its name alone", do=f"Write {match[1]}.")
    try:
        given = ast.literal_eval(f"({match[2][1:-1]},)" if match[2] != "()" else "()")
    except (ValueError, SyntaxError) as e:
        found, do = f"the arguments {match[2]}", "Write numbers, as in 'academic(4, 8)'."
        raise SpecError(where=repr(text), found=found, wanted="numbers", do=do) from e
    try:
        return value(*given)
    except TypeError as e:
        raise SpecError(where=repr(text), found=f"TypeError: {e}", wanted="numbers that it takes", do=_DO) from e


if __name__ == "__main__":
    sys.exit(main())
