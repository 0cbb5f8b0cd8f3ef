"""Compare the emulation with every runtime that runs here, code by code, on several networks.

    python benchmarks/conformance.py --data DIR [--rows FILE] [--only WORD ...] [--quick] [--cpu NAME] [--page FILE]

DIR is described in fidelity.py.  Each cell (a network and a target) is one process.  The network is quantized, calibrated on
200 inputs, emulated, deployed and run.  Every tensor of codes and every output is compared, on 1,000 inputs of up to 64x64
pixels or on 64 larger ones (8 for kernels that interpret).  A cell's row is appended to FILE (conformance.jsonl).  Cells that
are in FILE are not measured again, but cells that could not run are tried again.  `--only` selects cells whose network or
target contains each of the words.  `--quick` uses 100, 4 and 2 inputs.  `--page` writes the table of all rows in FILE, with
rows of `--quick` for cells that have no other.

`--cpu` compares on another processor instead, one of `specs.cpus`, with the machines that `.ci/machines` sets up: four
networks, 16 inputs, or one of the centre of a large image, in one process.

A row has the number of codes compared and the number that differ.  If any differ, it has the first tensor that differs, the
rate, and the number of differences when each unit gets the runtime's own inputs.  The latency is the time for one input of
the deployed model, as a ratio to the same network in float in the same runtime: medians of interleaved runs.

The exit status is 1 if a cell of an exact target differs in a guaranteed value.  Unknown float units, and the values that
depend on them, are not guaranteed.
"""

from __future__ import annotations

import argparse
import functools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from artifacts import runnable
from attrs import evolve
from conformance_page import HEAD, HEAD_ELSEWHERE, line, line_elsewhere, page
from conformance_places import PLACES, Call, Place
from fidelity import NETWORKS as IMAGES
from fidelity import loader
from interleave import interleaved, ratio
from minilm import batches as by_length
from minilm import sentences
from networks import DenseNet
from torch import nn
from zoo_own import UNet

import qfunc
from qfunc import targets
from qfunc.analysis.report_format import table
from qfunc.errors import QfuncError
from qfunc.lowering import Browser, Node, Qemu
from qfunc.lowering.machines.process import Machine
from qfunc.specs import Everything, cpus, edit

sys.path.append(str(Path(__file__).parents[1]))
from tests.lowering.machines.hidden import Hidden

# Networks with concatenations and with transposed convolutions, which the trained networks lack.
RANDOM: dict[str, Callable[[], nn.Module]] = {"DenseNet, random weights": DenseNet, "U-Net, random weights": lambda: UNet(8)}
NETWORKS = IMAGES | dict.fromkeys(RANDOM, ("cifar10", 20)) | {"MiniLM-L6, STS-B": ("sts",)}
ELSEWHERE = ("LeNet, MNIST", "ResNet-20, CIFAR-10", "MobileNetV1 0.75, ImageNet", "DenseNet, random weights")
"""The networks that are compared on other processors."""
CENTRE = 64
"""The height and width of the centre of large images there."""


class Given(NamedTuple):
    """A network, its calibration batches, the batches to compare, and the labels of images."""

    model: Any
    calibration: list[Any]
    batches: list[Any]
    inputs: int
    labels: Any = None


def given(folder: Path, network: str, quick: bool, interprets: bool) -> Given:
    """Return the network and its data from DIR."""
    model, (calib, _), (test, labels) = loader(folder)(*NETWORKS[network])
    small, large, few = (100, 4, 2) if quick else (1000, 64, 8)
    if isinstance(test, dict):
        _, ids, mask = by_length(*sentences(calib), 32)[-1]
        both = {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}
        program = torch.export.export(model, (ids, mask), dynamic_shapes=(both, both), strict=False)
        calibration, tried = (
            [(i, m) for _, i, m in by_length(*sentences({k: v[:count] for k, v in part.items()}), 32)]
            for part, count in ((calib, 100), (test, small // 2))
        )
        return Given(program, calibration, tried, small)
    model = with_statistics(RANDOM[network], calib[:50]) if network in RANDOM else model
    big = test[0].numel() > 3 * 64 * 64
    count = (few if interprets else large) if big else small
    calibration, tried = calib[: 50 if quick else 200].split(50), test[:count].split(4 if big else 100)
    return Given(model, list(calibration), list(tried), count, labels[:count])


def with_statistics(made_by: Callable[[], nn.Module], images: torch.Tensor) -> nn.Module:
    """Return a network with BatchNorm statistics from some images."""
    torch.manual_seed(0)
    made = made_by()
    with torch.no_grad():
        for _ in range(30):
            made(images)
    return made.eval()


def measured(folder: Path, network: str, name: str, quick: bool) -> dict[str, Any]:
    """Return the row of a cell."""
    place, target, start = PLACES[name], runnable(getattr(targets, name)), time.perf_counter()
    bits = "" if target == getattr(targets, name) else ", 7-bit weights"
    row: dict[str, Any] = {"network": network, "target": name, "quick": quick, "as": name + bits}
    case = given(folder, network, quick, place.interprets)
    try:
        model = qfunc.calibrate(case.calibration, progress=False)(qfunc.quantize(target)(case.model))
        kept = None if place.public else Kept(place.load(target.runtime.runner, qfunc.deploy(target)(model).files), [])
        report = qfunc.verify(target, kept)(model, case.batches)
        row["latency"] = latency(target, place, model, case) if place.real else "-"
    except QfuncError as e:
        return row | {"refused": f"{type(e).__name__}: {e}"}
    inside = [r for r in report.of("alone") if not r.name.startswith("output ")]
    if kept is not None:
        row["distances"] = distances(target, model, case, kept.outputs)
    row |= {
        "inputs": case.inputs, "tensors": report.tensors, "codes": report.elements, "differ": report.mismatches,
        "alone": [sum(r.mismatches for r in inside), sum(r.elements for r in inside)],
        "float_units": len(report.float_units), "verdict": report.agreement, "seconds": round(time.perf_counter() - start, 1),
    }  # fmt: skip
    if (first := report.first) is not None:
        row["first"] = [first.name, first.mismatches, first.elements, first.largest_lsb]
    return row


def distances(target: Any, model: Any, case: Given, outputs: Sequence[Any]) -> str:
    """Return the outputs' distances from the simulation, in steps of their scale; for images, also the accuracies."""
    scale = qfunc.deploy(target)(model).report["tensors"][-1]["scale"][0]
    with torch.inference_mode():
        want, real = (torch.cat([called(x) for x in case.batches]) for called in (model, case.model))
    found = torch.cat([torch.as_tensor(o) for o in outputs])
    steps = ((found - want) / scale).abs().round().int().flatten().bincount()
    told = ", ".join(f"{100 * int(n) / found.numel():.2g} % by {k}" for k, n in enumerate(steps) if k and n) or "none"
    if case.labels is None or found.ndim != 2:
        return told
    right = [f"{100 * float((v.argmax(1) == case.labels).double().mean()):.1f}" for v in (real, want, found)]
    return f"{told}; accuracy {right[0]} % in float, {right[1]} % simulated, {right[2]} % run"


class Kept(NamedTuple):
    """A runner of one loaded model that keeps the first output of each batch."""

    call: Call
    outputs: list[Any]

    def run(self, artifact: Any, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs for one batch."""
        found = list(self.call(inputs))
        self.outputs.append(found[0])
        return found


def latency(target: Any, place: Place, model: Any, case: Given) -> str:
    """Return the latency for one input, relative to float in the same runtime: ratio of medians (of minima)."""
    real = edit.skip(Everything())(target)
    plain = qfunc.calibrate(case.calibration[:1], progress=False)(qfunc.quantize(real)(case.model))
    batch = case.batches[0] if isinstance(case.batches[0], tuple) else (case.batches[0],)
    one, calls = [t[:1].contiguous() for t in batch], {}
    for name, at, made in (("int8", target, model), ("float", real, plain)):
        run = place.load(target.runtime.runner, qfunc.deploy(at)(made).files)
        calls[name] = lambda run=run: run(one)
    return ratio(interleaved(calls, 5 if place.interprets else 30), "int8", "float")


def elsewhere(folder: Path, network: str, name: str, cpu: cpus.Cpu, on: str) -> dict[str, Any]:
    """Return the row of a cell on another processor."""
    target, start = edit.cpu(cpu)(getattr(targets, name)), time.perf_counter()
    row: dict[str, Any] = {"network": network, "target": name, "quick": False, "as": name, "cpu": str(cpu), "on": on}
    model, calibration, images = few(folder, network)
    runner = evolve(target.runtime.runner, machine=machines(cpu)[on])
    calibrated = qfunc.calibrate(calibration, progress=False)(qfunc.quantize(target)(model))
    report = qfunc.verify(target, runner)(calibrated, [images])
    row |= {"inputs": len(images), "tensors": report.tensors, "codes": report.elements, "differ": report.mismatches,
            "verdict": report.agreement, "seconds": round(time.perf_counter() - start, 1)}  # fmt: skip
    if (first := report.first) is not None:
        row["first"] = [first.name, first.mismatches, first.elements, first.largest_lsb]
    return row


def machines(cpu: cpus.Cpu) -> dict[str, Machine]:
    """Return what runs programs for a processor here, by name."""
    if cpu == cpus.wasm_simd:
        return {"Node": Node(), "Chromium": Browser()}
    return {"CPUID": Hidden()} if cpu == cpus.x86_64_avxvnni else {"QEMU": Qemu(cpu)}


@functools.cache
def few(folder: Path, network: str) -> tuple[nn.Module, list[torch.Tensor], torch.Tensor]:
    """Return a network, batches to calibrate it, and the images that other processors run."""
    model, (calib, _), (test, _) = loader(folder)(*NETWORKS[network])
    large = max(test.shape[2:]) > CENTRE
    if large:
        at = (test.shape[2] - CENTRE) // 2
        calib, test = (t[:, :, at : at + CENTRE, at : at + CENTRE] for t in (calib, test))
    model = with_statistics(RANDOM[network], calib[:50]) if network in RANDOM else model
    return model, list(calib[:100].split(50)), test[: 1 if large else 16].contiguous()


def cells_on(options: argparse.Namespace, cpu: cpus.Cpu) -> None:
    """Append the rows of the missing cells on a processor, in this process, so that one emulator runs all."""
    kept = {(r["network"], r["target"], r["on"]) for r in done(options.rows, False) if r.get("cpu") == str(cpu)}
    for network, name, on in product(ELSEWHERE, PLACES, machines(cpu)):
        builds = {build.cpu for build in getattr(targets, name).runtime.builds}
        words = all(w in f"{network} {name} {on}" for w in options.only)
        if cpu not in builds or (network, name, on) in kept or not words:
            continue
        try:
            row = elsewhere(options.data, network, name, cpu, on)
        except (QfuncError, RuntimeError) as e:
            print(f"{network}, {name}, {cpu}, {on}: failed, {e}".splitlines()[0], flush=True)
            continue
        with options.rows.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(" | ".join(line_elsewhere(row)), flush=True)


def done(path: Path, *quick: bool) -> list[dict[str, Any]]:
    """Return the last row of each cell in a file.  A later value of `quick` takes precedence over an earlier one."""
    rows = [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []
    return list(
        {(r["network"], r["target"], r.get("cpu"), r.get("on")): r for q in quick for r in rows if r["quick"] == q}.values()
    )


def wrong(row: dict[str, Any]) -> bool:
    """Return True if a target that must be exact differs in a guaranteed value."""
    return PLACES[row["target"]].exact and bool(row.get("differ")) and not row["verdict"].startswith("bit-exact")


def main() -> int:
    """Measure the missing cells and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder with load.py")
    parser.add_argument("--rows", type=Path, default=Path("conformance.jsonl"))
    parser.add_argument("--only", nargs="*", default=[], help="cells whose network or target contains each of these words")
    parser.add_argument("--quick", action="store_true", help="100, 4 and 2 inputs; calibrate by 50")
    parser.add_argument("--cpu", type=cpus.named, help="another processor: its name in specs.cpus")
    parser.add_argument("--page", type=Path, help="the Markdown file to write")
    parser.add_argument("--cell", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cell:
        print(json.dumps(measured(options.data, *options.cell, options.quick)))
        return 0
    if options.cpu:
        cells_on(options, options.cpu)
        rows = [r for r in done(options.rows, False) if r.get("cpu") == str(options.cpu)]
        print(table(HEAD_ELSEWHERE, [line_elsewhere(r) for r in rows], 250))
    else:
        here = [r for r in done(options.rows, options.quick) if "cpu" not in r]
        kept = {(r["network"], r["target"]) for r in here if "refused" not in r}
        for network in NETWORKS:
            for name in PLACES:
                if all(word in f"{network} {name}" for word in options.only) and (network, name) not in kept:
                    cell(options, network, name)
        rows = [r for r in done(options.rows, options.quick) if "cpu" not in r]
        print(table(HEAD, [line(r) for r in rows], 250))
    if options.page:
        options.page.write_text(page(done(options.rows, True, False), list(NETWORKS)))
    return int(any(map(wrong, rows)))


def cell(options: argparse.Namespace, network: str, name: str) -> None:
    """Run one cell in a process and append its row."""
    runner = getattr(targets, name).runtime.runner
    if reason := runner.missing() if hasattr(runner, "missing") else "":
        return print(f"{network}, {name}: omitted, {reason}", flush=True)
    command = [sys.executable, __file__, "--data", str(options.data), "--cell", network, name, *["--quick"] * options.quick]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        return print(f"{network}, {name}: failed\n{ran.stderr[-2000:]}", flush=True)
    row = ran.stdout.splitlines()[-1]
    with options.rows.open("a") as file:
        file.write(row + "\n")
    print(" | ".join(line(json.loads(row))), flush=True)


if __name__ == "__main__":
    sys.exit(main())
