"""Count how often control crosses from file to file of the library while a residual block is quantized and verified.

    python benchmarks/crossings.py [--top [N]] [--cold] [--json FILE]

A crossing is a Python call whose caller and callee stand in different files of qfunc, specs and targets. A call that
passes through torch, attrs or another package in between is not one, and neither is the return. All steps run once before
they are counted, so that imports and caches that outlive a step do not count; `--cold` counts the first run.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import inspect
import json
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor, nn

import qfunc
from qfunc import specs, targets

WATCHED = {
    "evaluation form": "qfunc.graph.evaluation_form:evaluation_form",
    "quantizers stripped": "qfunc.graph.float_network:without_quantizers",
    "fusions matched": "qfunc.placement.fusion:match_fusions",
}
"""The functions whose calls are counted: a title, and module:name. Edit the names when they change."""

STEPS = ("capture", "quantize", "calibrate", "emulate", "deploy", "verify")
ROAD = STEPS[1:]
"""The steps of the totals: quantize captures by itself."""

ROOTS = tuple(Path(str(package.__file__)).parent for package in (specs, targets, qfunc))
PREFIXES = tuple(f"{root}/" for root in ROOTS)
NOT_FUNCTIONS = ("<module>", "<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")


class Block(nn.Module):
    """conv-bn-relu, conv-bn, the input added, relu."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)
        self.conv2, self.bn2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """[N, channels, H, W] -> [N, channels, H, W]."""
        out: Tensor = self.relu(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))) + x)
        return out


class Count:
    """The crossings, the files entered and the calls of each function in one step."""

    def __init__(self) -> None:
        self.crossings: Counter[tuple[str, str]] = Counter()
        self.calls: Counter[CodeType] = Counter()

    def see(self, frame: FrameType, event: str, arg: Any) -> None:
        """Count a call; the arguments are those of a profile function of `sys.setprofile`."""
        code = frame.f_code
        if event != "call" or code.co_name == "<module>" or not code.co_filename.startswith(PREFIXES):
            return
        self.calls[code] += 1
        caller = frame.f_back.f_code.co_filename if frame.f_back else ""
        if caller != code.co_filename and caller.startswith(PREFIXES):
            self.crossings[caller, code.co_filename] += 1

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count the calls in the block, those of threads started in it included."""
        threading.setprofile(self.see)
        sys.setprofile(self.see)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def files(self) -> set[str]:
        """Return the files whose code ran."""
        return {code.co_filename for code in self.calls}

    def row(self) -> dict[str, int]:
        """Return the figures of the step by title."""
        figures = {"crossings": self.crossings.total(), "files": len(self.files())}
        return figures | {title: self.calls[code_of(where)] for title, where in WATCHED.items()}


def code_of(where: str) -> CodeType:
    """Return the code of `module:name`, of a property its getter's.

    Raises:
        SystemExit: there is no such function.
    """
    module, _, name = where.partition(":")
    try:
        owner: Any = importlib.import_module(module)
        *outer, last = name.split(".")
        for part in outer:
            owner = getattr(owner, part)
        found = inspect.getattr_static(owner, last)
    except (ImportError, AttributeError) as e:
        raise SystemExit(f"crossings.py, WATCHED: no function {where}: {e}") from e
    if isinstance(found, functools.cached_property):
        found = found.func
    elif isinstance(found, property):
        found = found.fget
    code: CodeType = inspect.unwrap(found).__code__
    return code


def short(path: str) -> str:
    """Return the path of a file of the library from the folder qfunc, specs or targets on."""
    file = Path(path)
    return str(next(file.relative_to(root.parent) for root in ROOTS if file.is_relative_to(root)))


def road() -> dict[str, Count]:
    """Return what each step of a block's way through the library counts."""
    torch.manual_seed(0)
    model, batches, target = Block().eval(), [torch.randn(4, 8, 8, 8)], targets.onnxruntime
    counts = {step: Count() for step in STEPS}

    def run(step: str, work: Callable[[], Any]) -> Any:
        with counts[step].counting():
            return work()

    run("capture", lambda: qfunc.capture()(model))
    quantized = run("quantize", lambda: qfunc.quantize(target)(model))
    calibrated = run("calibrate", lambda: qfunc.calibrate(batches, progress=False)(quantized))
    run("emulate", lambda: qfunc.emulate(target)(calibrated))
    run("deploy", lambda: qfunc.deploy(target)(calibrated))
    run("verify", lambda: qfunc.verify(target)(calibrated, batches))
    return counts


def total(counts: dict[str, Count]) -> Count:
    """Return the sum of the steps from quantize to verify."""
    whole = Count()
    for step in ROAD:
        whole.crossings += counts[step].crossings
        whole.calls += counts[step].calls
    return whole


def most_called(count: Count, number: int) -> list[tuple[str, int]]:
    """Return the functions that are called most, with their calls."""
    calls: Counter[str] = Counter()
    for code, times in count.calls.items():
        if code.co_name not in NOT_FUNCTIONS:
            calls[f"{short(code.co_filename)}:{code.co_qualname}"] += times
    return calls.most_common(number)


def main() -> None:
    """Print the table, a row for each step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--top", type=int, nargs="?", const=10, default=0, help="also the functions called most (10)")
    parser.add_argument("--cold", action="store_true", help="count the first run")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to a file")
    options = parser.parse_args()
    for where in WATCHED.values():
        code_of(where)
    if not options.cold:
        road()
    counts = road()
    whole = total(counts)
    rows = {step: counts[step].row() for step in STEPS} | {f"{ROAD[0]} to {ROAD[-1]}": whole.row()}
    width = max(map(len, rows))
    print(" " * width, *rows["verify"], sep="  ")
    for step, row in rows.items():
        print(f"{step:{width}}", *(f"{number:>{len(title)},}" for title, number in row.items()), sep="  ")
    called = most_called(whole, options.top)
    if called:
        print(f"\nthe {len(called)} functions called most, {ROAD[0]} to {ROAD[-1]}")
    for name, times in called:
        print(f"{times:7,}  {name}")
    if options.json:
        written: dict[str, Any] = {"steps": rows, "watched": WATCHED, "most_called": dict(most_called(whole, 50))}
        written["entered"] = sorted(map(short, whole.files()))
        options.json.write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    main()
