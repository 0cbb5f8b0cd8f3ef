"""python -m qfunc: quantize models, inspect and verify the files, and show, compare and check targets.

    python -m qfunc quantize MODEL --target A --data DATA.npz -o DIR
                                    from a model and examples to the files for a runtime: exit code 1 if the runtime and the
                                    emulation differ
    python -m qfunc deploy MODEL SAVED -o DIR
                                    from a model and a folder of qfunc.save, or of quantize --save, to the files; with
                                    --data, exit code 1 if the runtime and the emulation differ
    python -m qfunc diagnose MODEL --target A --data DATA.npz
                                    print why a model loses accuracy on a target, and what recovers it
    python -m qfunc inspect DIR     print the quantized tensors and the units of an artifact
    python -m qfunc verify DIR      check the files of artifact.save or qfunc.save, and the proof of qfunc.prove, if they have
                                    one: exit code 1 if a check fails
    python -m qfunc targets         list the targets
    python -m qfunc show A          print a target as the code that builds it
    python -m qfunc diff A B        print the differences of two targets: exit code 1 if there are any
    python -m qfunc check A         check the laws of qfunc.testing.check_target: exit code 1 if one fails

MODEL: a float ONNX file (.onnx), or an exported program of torch.export.save (.pt2).

A and B: a name in qfunc.targets ("tensorrt", "academic(4, 8)"), "module:attribute", or a JSON file of specs.to_json or
artifact.save.  A file of a target with classes of your own names them, and imports no module: give deploy and verify
--target module:attribute, the target that holds them.  With --json a command prints one JSON value.  Errors are one line on
standard error, with exit code 2.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from attrs import asdict

from qfunc import specs
from qfunc.command_line.target_argument import target_of
from qfunc.errors import QfuncError, SpecError
from qfunc.specs._values import classes_and_functions

Result = tuple[Any, str, int]
"""The result of a command: a JSON value, a text, and the exit code."""


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
        value, text, code = parsed.command(parsed)
        text = json.dumps(value, indent=1, sort_keys=True) if parsed.json else text
        print(text, end="\n" if text else "", flush=True)
        return int(code)
    except QfuncError as e:
        print(f"qfunc: {' '.join(str(e).split())}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # ... | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser() -> argparse.ArgumentParser:
    from qfunc.command_line import deploy, diagnose, quantize

    formatter = argparse.RawDescriptionHelpFormatter
    parser = _Parser("python -m qfunc", description=__doc__, formatter_class=formatter)
    names = "quantize | deploy | diagnose | inspect | verify | targets | show | diff | check"
    commands = parser.add_subparsers(required=True, metavar=names)

    def add(name: str, command: Any, help_text: str, *arguments: str) -> argparse.ArgumentParser:
        found: argparse.ArgumentParser = commands.add_parser(name, help=help_text)
        for argument in arguments:
            found.add_argument(argument.lower(), metavar=argument)
        found.add_argument("--json", action="store_true", help="print one JSON value")
        found.set_defaults(command=command)
        return found

    quantize.add_arguments(add("quantize", quantize.run, "quantize an ONNX file or an exported program"))
    deploy.add_arguments(add("deploy", deploy.run, "write the files of a saved quantized model"))
    diagnose.add_arguments(add("diagnose", diagnose.run, "find out why a model loses accuracy"))
    add("inspect", _inspect, "print the tensors and units of an artifact", "DIR")
    verify = add("verify", _verify, "check a saved artifact or model", "DIR")
    verify.add_argument("--target", metavar="A", help="the target of the files, if it holds classes of your own")
    add("targets", _targets, "list the targets")
    add("show", _show, "print a target", "A")
    add("diff", _diff, "print where two targets differ", "A", "B")
    check = add("check", _check, "test a target against the library's laws", "A")
    check.add_argument("--examples", type=int, default=15, help="number of random models (15)")
    return parser


def _show(parsed: argparse.Namespace) -> Result:
    target = target_of(parsed.a)
    return (json.loads(specs.to_json(target)) if parsed.json else None), str(target), 0


def _diff(parsed: argparse.Namespace) -> Result:
    differences = str(specs.diff(target_of(parsed.a), target_of(parsed.b)))
    return differences.splitlines(), differences, int(bool(differences))


def _check(parsed: argparse.Namespace) -> Result:
    target = target_of(parsed.a)
    try:
        from qfunc.testing import check_target
    except ModuleNotFoundError as e:
        do = "Install the extra: pip install 'qfunc-torch[testing]'."
        raise SpecError(where="check", found=f"no module {e.name!r}", wanted="hypothesis", do=do) from e
    failed = ""
    try:
        check_target(target, examples=parsed.examples)
    except AssertionError as e:
        failed = str(e)
    text = failed or f"every law holds on {parsed.examples} networks"
    value = {"target": target.name, "examples": parsed.examples, "failed": failed}
    return value, f"{target.name}: {text}", int(bool(failed))


def _verify(parsed: argparse.Namespace) -> Result:
    from qfunc.analysis.report_format import table
    from qfunc.proof.saved import with_proof_check
    from qfunc.proof.saved_check import check_saved

    classes = () if parsed.target is None else tuple(classes_and_functions(target_of(parsed.target)))
    result = with_proof_check(parsed.dir, check_saved(parsed.dir, classes))
    skipped = sum(r.outcome == "skipped" for r in result.rows)
    passed = f"no check failed, {skipped} skipped" if skipped else "every check passed"
    text = f"{result.kind} for {result.target}: {passed if result.good else 'FAILED'}\n"
    text += table(("check", "outcome", "seen"), [(r.name, r.outcome, r.seen) for r in result.rows], 200)
    return asdict(result), text, int(not result.good)


def _inspect(parsed: argparse.Namespace) -> Result:
    from qfunc.command_line.inspect import inspect

    return *inspect(Path(parsed.dir)), 0


def _targets(parsed: argparse.Namespace) -> Result:
    from qfunc.command_line.inspect import targets_table

    return *targets_table(), 0


if __name__ == "__main__":
    sys.exit(main())
