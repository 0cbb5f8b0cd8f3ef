"""The rows of conformance.py as lines of tables, and the page docs/conformance.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from conformance_places import PLACES

from qfunc.specs import cpus

HEAD = ("network", "target", "inputs", "tensors", "codes", "differ", "first that differs", "alone", "float units", "latency")


def line(row: dict[str, Any]) -> list[str]:
    """Return a row of the table."""
    name = [row["network"], row["as"]]
    if "refused" in row:
        return [*name, *["-"] * 4, row["refused"].split(". ")[0], *["-"] * 3]
    first = "-"
    if "first" in row:
        tensor, wrong, of, lsb = row["first"]
        first = f"{tensor}: {wrong / of:.2g}, by {lsb:.3g}"
    alone = f"{row['alone'][0]:,} of {row['alone'][1]:,}" if row["alone"][1] else "-"
    counts = [f"{row[k]:,}" for k in ("inputs", "tensors", "codes", "differ")]
    return [*name, *counts, first, alone, str(row["float_units"]), row["latency"]]


HEAD_ELSEWHERE = ("network", "target", "processor", "inputs", "tensors", "elements", "differ", "first that differs", "seconds")


def line_elsewhere(row: dict[str, Any]) -> list[str]:
    """Return a row of the table of other processors."""
    tensor, wrong, of, lsb = row.get("first", ["", 0, 1, 0])
    first = f"{tensor}: {wrong / of:.2g}, by {lsb:.3g}" if tensor else "-"
    counts = [f"{row[k]:,}" for k in ("inputs", "tensors", "codes", "differ")]
    return [row["network"], row["as"], f"{row['cpu']}, {row['on']}", *counts, first, f"{row['seconds']:.0f}"]


HEADING = """# Networks on every runtime that runs here

`python benchmarks/conformance.py --data DIR --page docs/conformance.md` generated this page, in several runs.

Each row is a network, trained or with random weights. It is quantized for a target, emulated, deployed and run in the target's
own runtime. Every tensor of codes that the runtime exposes and every output are compared. The columns are:

- *differ*: the number of elements that are not equal;
- *first that differs*: the first such tensor in the order of execution, with the share of its codes and the largest difference
  in LSB;
- *alone*: the number of differences when each unit gets the runtime's own inputs;
- *latency*: the time for one input of the deployed model, as a ratio to the same network in float. The float network is written
  by the same lowering and runs in the same runtime. The ratio is of the medians (of the minima).

ONNX Runtime and OpenVINO have 7-bit weights where the CPU's int8 kernels saturate (x86-64 without VNNI).

"""


PROCESSORS = """## On other processors

The same comparison with `--cpu NAME`: the target is `edit.cpu(NAME)` of the one above, and the runtime runs on that processor,
as QEMU emulates it, or as WebAssembly in Node or Chromium. For x86-64-avxvnni it runs here, and finds no AVX-512 by CPUID. The
images of ImageNet are cut to their centre of 64x64 pixels. The seconds are for the whole comparison, with the start of the
emulator in the first one of a processor.

"""
DISTANCES = """Where a runtime's arithmetic is not public, its outputs are compared with the simulation's. These shares of the
outputs differ, by the given number of steps of their scale:
"""


def page(rows: list[dict[str, Any]], networks: Sequence[str]) -> str:
    """Return the page in Markdown: the description, the command, and the table with the networks in order."""
    names = [str(cpu) for cpu in cpus.EVERY]
    order = sorted(rows, key=lambda r: (networks.index(r["network"]), list(PLACES).index(r["target"])))
    away = sorted((r for r in order if "cpu" in r), key=lambda r: names.index(r["cpu"]))
    order = [r for r in order if "cpu" not in r]
    written = _markdown(HEAD, map(line, order))
    others = f"\n{PROCESSORS}{_markdown(HEAD_ELSEWHERE, map(line_elsewhere, away))}" if away else ""
    far = "".join(f"- {r['network']}, {r['as']}: {r['distances']}\n" for r in order if "distances" in r)
    return HEADING + written + (f"\n{DISTANCES}\n{far}" if far else "") + others


def _markdown(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    cells = [head, ["---"] * len(head), *lines]
    return "".join("| " + " | ".join(c.replace("|", "\\|") for c in row) + " |\n" for row in cells)


__all__ = ["HEAD", "HEAD_ELSEWHERE", "line", "line_elsewhere", "page"]
