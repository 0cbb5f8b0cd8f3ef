"""The command `deploy`: from an exported program and what `qfunc.save` stored of it to the files for a runtime."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from qfunc.command_line.calibration_data import inputs_of, read_batches
from qfunc.command_line.quantize import add_output, read_model, reference_of, write
from qfunc.command_line.target_argument import HOLDER, naming, target_of
from qfunc.graph.record import record_of
from qfunc.specs._values import classes_and_functions
from qfunc.transforms.storage.save_load import load
from qfunc.transforms.validate import require_target


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("model", metavar="MODEL", type=Path, help="the file that was quantized")
    parser.add_argument("saved", metavar="SAVED", type=Path, help="a folder of qfunc.save, or of quantize --save")
    parser.add_argument("--data", metavar="DATA", help="examples to verify the files with, as for quantize")
    help_text = "the target that the model was quantized for, if it holds classes of your own"
    parser.add_argument("--target", metavar="A", help=help_text)
    add_output(parser)


def run(parsed: argparse.Namespace) -> tuple[dict[str, Any], str, int]:
    """Load the quantized model, verify it if there are examples, and write its artifact; return as `quantize`.

    Raises:
        QfuncError: of any step.
    """
    given = read_model(parsed.model)
    batches = None if parsed.data is None else read_batches(parsed.data, inputs_of(given), parsed.batch)
    target = None if parsed.target is None else target_of(parsed.target)
    with naming(HOLDER):
        model = load(parsed.saved, classes=tuple(classes_and_functions(target)))(given)
    record = record_of(model)
    assert record is not None
    assert record.target is not None
    if target is not None:
        require_target(model, target, "deploy")
    return write(parsed, record.target, model, batches, reference_of(parsed.model))
