"""The command `quantize`: from an ONNX file or an exported program, and examples, to the files for a runtime, verified."""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from attrs import asdict
from torch import fx

from qfunc.command_line.calibration_data import inputs_of, read_batches
from qfunc.command_line.target_argument import target_of
from qfunc.errors import FileError, VerifyError
from qfunc.files.folder import open_file
from qfunc.reading.read import read
from qfunc.specs import Target
from qfunc.transforms.calibrate import calibrate
from qfunc.transforms.deploy import deploy
from qfunc.transforms.quantize import quantize
from qfunc.transforms.storage.save_load import save
from qfunc.transforms.verify import verify


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("model", metavar="MODEL", type=Path, help="an .onnx file in float, or a file of torch.export.save")
    parser.add_argument("--target", required=True, metavar="A", help="the target")
    parser.add_argument(
        "--data", required=True, metavar="DATA", help="an .npz file with one array per input, or module:batches"
    )
    parser.add_argument("--save", metavar="SAVED", type=Path, help="a folder for the calibrated model, which deploy reads")
    add_output(parser)


def add_output(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `write`."""
    parser.add_argument("-o", "--output", required=True, metavar="DIR", type=Path, help="the folder for the files")
    parser.add_argument("--batch", type=_positive, default=32, metavar="N", help="examples a batch (32)")
    parser.add_argument("--verify", type=_count, default=4, metavar="N", help="batches that verify compares (4; 0: none)")
    parser.add_argument("--no-latency", dest="latency", action="store_false", help="do not time the file beside the float file")


def run(parsed: argparse.Namespace) -> tuple[dict[str, Any], str, int]:
    """Quantize, calibrate, verify and write the artifact; return a JSON value, a text and the exit code.

    Raises:
        QfuncError: of any step.
    """
    target = target_of(parsed.target)
    given = read_model(parsed.model)
    batches = read_batches(parsed.data, inputs_of(given), parsed.batch)
    model = calibrate(batches, progress=not parsed.json)(quantize(target)(given))
    if parsed.save is not None:
        save(parsed.save)(model)
    return write(parsed, target, model, batches, reference_of(parsed.model))


def write(
    parsed: argparse.Namespace,
    target: Target,
    model: fx.GraphModule,
    batches: Iterable[Any] | None,
    reference: Callable[..., Any] | None = None,
) -> tuple[dict[str, Any], str, int]:
    """Verify a calibrated model on batches, if there are any, and write its artifact; return as `run`.

    The outputs are compared with `reference`, such as the original file in its own runtime; None for the float network.

    The artifact is written even if the runtime disagrees with the emulation; the exit code is 1 then.

    Raises:
        QfuncError: of a step.
    """
    artifact = deploy(target)(model)
    value: dict[str, Any] = {"target": target.name, "files": sorted(artifact.files), "folder": str(parsed.output)}
    code, gained = 0, list[str]()
    if parsed.verify and batches is not None:
        try:
            report = verify(target, reference=reference, latency=parsed.latency)(
                model, itertools.islice(batches, parsed.verify)
            )
        except VerifyError as e:
            value["verdict"] = f"not verified: {e}"
        else:
            value |= {"verdict": report.verdict, "mismatches": report.mismatches, "elements": report.elements}
            value |= {"sqnr": _finite(report.sqnr), "top1": report.top1, "size_ratio": report.size_ratio}
            value |= {"latency": asdict(report.latency), "remarks": report.gain.remarks}
            gained = [str(report.gain), *report.gain.remarks]
            code = int(report.mismatches > 0)
    artifact.save(parsed.output)
    text = [f"{target.name}: {value['verdict']}"] if "verdict" in value else [f"{target.name}: not verified"]
    text += gained
    text += [f"written to {parsed.output}: {', '.join(value['files'])}"]
    return value, "\n".join(text), code


def read_model(path: Path) -> torch.export.ExportedProgram | fx.GraphModule:
    """Read the float model of an ONNX file, by its suffix, or an exported program.

    Raises:
        FileError: the file is damaged.
        CaptureError: operators that qfunc does not read.
    """
    return read(path) if is_onnx(path) else read_program(path)


def reference_of(path: Path) -> Callable[..., Any] | None:
    """Return an ONNX file as its own runtime computes it; None for an exported program, whose float network is at hand."""
    if not is_onnx(path):
        return None
    from qfunc.reading.onnx.original import original

    return original(path)


def is_onnx(path: Path) -> bool:
    """Return True for the name of an ONNX file."""
    return path.suffix.lower() == ".onnx"


def read_program(path: Path) -> torch.export.ExportedProgram:
    """Read an exported program.

    Raises:
        FileError: torch.export cannot load the file.
    """
    do = "Write it by torch.export.save(torch.export.export(model, inputs), path)."
    with open_file(path) as file:
        try:
            return torch.export.load(file)
        except Exception as e:  # torch raises many kinds of errors for files that it did not write
            found = f"{type(e).__name__}: {' '.join(str(e).split())[:200]}"
            raise FileError(where=str(path), found=found, wanted="a program of torch.export", do=do) from e


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None  # JSON has no infinity


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"found {text!r}, wanted a number of 1 or more")
    return int(text)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"found {text!r}, wanted a number of 0 or more")
    return int(text)
