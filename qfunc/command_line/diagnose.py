"""The command `diagnose`: why an exported program loses accuracy on a target, and what recovers it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from qfunc.command_line.calibration_data import inputs_of, read_batches
from qfunc.command_line.quantize import read_model
from qfunc.command_line.target_argument import attribute_of, target_of
from qfunc.diagnosis.diagnose import diagnose
from qfunc.diagnosis.report import Trial


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("model", metavar="MODEL", type=Path, help="a file of torch.export.save")
    parser.add_argument("--target", required=True, metavar="A", help="the target")
    parser.add_argument(
        "--data", required=True, metavar="DATA", help="an .npz file with one array per input, or module:batches"
    )
    parser.add_argument("--calibration", metavar="DATA", help="the data of the calibration (default: the data of --data)")
    parser.add_argument("--metric", metavar="module:function", help="(outputs, batch) -> a number per example (SQNR)")
    parser.add_argument("--batch", type=int, default=32, metavar="N", help="examples a batch (32)")
    parser.add_argument("-o", "--output", metavar="FILE.html", type=Path, help="write the report as a page")


def run(parsed: argparse.Namespace) -> tuple[dict[str, Any], str, int]:
    """Diagnose the program; return a JSON value, a text and the exit code 0.

    Raises:
        QfuncError: of any step.
    """
    target, program = target_of(parsed.target), read_model(parsed.model)
    inputs = inputs_of(program)
    batches = read_batches(parsed.data, inputs, parsed.batch)
    calibration = None if parsed.calibration is None else read_batches(parsed.calibration, inputs, parsed.batch)
    do = "Give module:function, a function (outputs, batch) -> a number per example."
    metric = None if parsed.metric is None else attribute_of(parsed.metric, do)
    study = diagnose(target, batches, metric=metric, calibration=calibration, progress=not parsed.json)
    report = study(program)
    if parsed.output is not None:
        report.save(parsed.output)
    value = {
        "target": report.target,
        "metric": report.metric,
        "float": report.best,
        "causes": [{"kind": c.kind, "share": c.share, "text": c.text, "sites": list(c.sites)} for c in report.causes],
        "plans": [_plan(t) for t in (report.base, *report.trials)],
        "refused": [list(row) for row in report.refused],
    }
    return value, str(report), 0


def _plan(trial: Trial) -> dict[str, Any]:
    figures = {"score": trial.score.value, "recovered": trial.recovered, "integer": trial.integer, "bits": trial.bits}
    return {"plan": repr(trial.plan), **figures}
