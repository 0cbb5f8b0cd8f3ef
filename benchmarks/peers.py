"""Compare qfunc with other tools: the same trained networks, images and runtimes.

    pip install nncf ai-edge-quantizer torchao    # beside ".[openvino,litert,ncnn]" and ExecuTorch
    python benchmarks/peers.py --data DIR [--rows FILE] [--only WORD ...] [--page FILE]

DIR is described in fidelity.py.  Each cell (a network and a tool) is one process, and its row is appended to FILE
(peers.jsonl).  Cells that are in FILE are not measured again.  A tool that is not installed is omitted.  Every tool has its
defaults and 200 images to calibrate with, in batches of 10; peer_tools.py has the calls.  `--page` writes the rows in FILE to
the page (docs/peers.md), keeps the page's rows of other cells, and prints the README's table.

The columns are

- accuracy of the float and of the quantized network, in percent of 5,000 images (800 for MobileNetV1), both in the runtime;
- latency of a batch of 10 with one thread, as a ratio to the float network in the same runtime: medians of interleaved runs;
- bytes of the files, as a ratio to the float network's files;
- outputs that differ between the runtime and what the tool says that it computes: its simulation in float, and its emulation
  in integers if it has one.  Outputs differ if their distance exceeds half a step of 8 bits over the range of the batch's
  outputs, because some tools keep the outputs in float.  They are counted on 1,000 images (100 for MobileNetV1).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from fidelity import NETWORKS, loader
from interleave import interleaved, ratio
from peer_tools import TOOLS, Shipped
from torch import Tensor

from qfunc.analysis.report_format import table

BATCH = 10
HALF_STEP = 0.5 / 255
MODULES = {"NNCF": "nncf", "ai-edge-quantizer": "ai_edge_quantizer", "torchao": "torchao"}


def measured(folder: Path, network: str, tool: str) -> dict[str, Any]:
    """Return the row of a cell."""
    torch.set_num_threads(1)
    model, (calib, _), (x, y) = loader(folder)(*NETWORKS[network])
    large = x[0].numel() > 3 * 64 * 64
    x, y = (x[:800], y[:800]) if large else (x[:5000], y[:5000])
    with torch.no_grad():
        shipped = TOOLS[tool](model, calib[:200].split(BATCH))
        row: dict[str, Any] = {"network": network, "tool": tool, "size": [shipped.size, shipped.plain_size]}
        row["float"], row["quantized"] = (accuracy(run, x, y) for run in (shipped.plain, shipped.run))
        row["differ"] = {k: differing(shipped, k, x[: 100 if large else 1000]) for k in shipped.predictions}
        works = {"quantized": lambda: shipped.run(x[:BATCH]), "float": lambda: shipped.plain(x[:BATCH])}
        row["latency"] = ratio(interleaved(works, 50), "quantized", "float")
    return row


def accuracy(run: Any, x: Tensor, y: Tensor) -> float:
    """Return the top-1 accuracy in percent."""
    found = torch.cat([torch.as_tensor(run(part)).argmax(1) for part in x.split(BATCH)])
    return 100 * float((found == y).double().mean())


def differing(shipped: Shipped, prediction: str, x: Tensor) -> list[int]:
    """Return (the number of outputs that differ, the number of outputs)."""
    wrong = total = 0
    for part in x.split(BATCH):
        told, real = (torch.as_tensor(run(part)) for run in (shipped.predictions[prediction], shipped.run))
        wrong += int(((told - real).abs() > HALF_STEP * (real.max() - real.min())).sum())
        total += real.numel()
    return [wrong, total]


HEAD = ("network", "tool, runtime", "float", "int8", "latency", "size", "simulation differs", "emulation differs")


def line(row: dict[str, Any]) -> list[str]:
    """Return a row of the table."""
    cells = [row["network"], row["tool"]]
    if "failed" in row:
        return [*cells, "-", row["failed"], *["-"] * 4]
    size = f"{row['size'][0] / row['size'][1]:.2f}"
    shares = [row["differ"].get(k) for k in ("simulated", "emulated")]
    told = ["none" if s is None else f"{100 * s[0] / s[1]:.3g} %" if s[0] else f"0 of {s[1]:,}" for s in shares]
    return [*cells, f"{row['float']:.2f}", f"{row['quantized']:.2f}", row["latency"].split(" ")[0], size, *told]


HEADING = """# The same networks in other tools

`python benchmarks/peers.py --data DIR --page docs/peers.md` generated this page, in several runs.

Each row is a trained network, quantized by a tool and run by the runtime that the tool deploys to. Every tool has its defaults
and the same 200 images for calibration. The columns are:

- *float*, *int8*: accuracy in percent on 5,000 images (800 for MobileNetV1), both in the runtime;
- *latency*: the time of a batch of 10 with one thread, as a ratio to the float network in the same runtime;
- *size*: the bytes of the files, as a ratio to the bytes of the float network;
- *simulation differs*, *emulation differs*: outputs that differ between the runtime and what the tool says that it computes, in
  float and in integers. Outputs differ if their distance exceeds half a step of 8 bits over the range of the batch's outputs.

The calls are in `benchmarks/peer_tools.py`. qfunc also corrects the biases (`qfunc.correct_bias`), as NNCF does by default.
torchao's size counts the tensors in its graph. ai-edge-quantizer has no simulation; it and onnxruntime.quantization start
from float files that qfunc wrote. Latencies are ratios of medians on one x86-64 core with AVX-512 VNNI.

"""


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown; the first line is its head."""
    head, *rest = lines
    return "".join("| " + " | ".join(cells) + " |\n" for cells in (head, ["---"] * len(head), *rest))


def with_page(page: Path, rows: list[dict[str, Any]]) -> list[list[str]]:
    """Return the lines of the page's table: those of `rows`, and the page's own for other cells."""
    text = page.read_text() if page.exists() else ""
    found = [[cell.strip() for cell in t.strip("| ").split("|")] for t in text.splitlines() if t.startswith("|")][2:]
    cells = {(c[0], c[1]): c for c in [*found, *map(line, rows)]}
    return [cells[n, t] for n in NETWORKS for t in TOOLS if (n, t) in cells]


def compact(lines: list[list[str]]) -> str:
    """Return the README's table: a row for each tool and a column for each network."""
    cells = {(c[0], c[1]): c for c in lines if c[2] != "-"}
    networks = [n for n in NETWORKS if any(m == n for m, _ in cells)]
    head = ["tool, runtime", *(f"{n}: {max(c[2] for (m, _), c in cells.items() if m == n)} %" for n in networks)]
    return markdown([head, *([tool, *(_short(cells.get((n, tool))) for n in networks)] for tool in TOOLS)])


def _short(cells: list[str] | None) -> str:
    if cells is None:
        return "-"
    simulated, emulated = cells[6:]
    differs = simulated if emulated == "none" else emulated
    return f"{cells[3]} %, {cells[4]}x, {'no simulation' if differs == 'none' else differs}"


def done(path: Path) -> list[dict[str, Any]]:
    """Return the last row of each cell, in the order of the table."""
    rows = [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []
    last = {(r["network"], r["tool"]): r for r in rows}
    return [last[n, t] for n in NETWORKS for t in TOOLS if (n, t) in last]


def cell(options: argparse.Namespace, network: str, tool: str) -> None:
    """Run one cell in a process and append its row."""
    command = [sys.executable, __file__, "--data", str(options.data), "--cell", network, tool]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        print(f"{network}, {tool}: failed\n{ran.stderr[-2000:]}", flush=True)
        return
    with options.rows.open("a") as file:
        file.write(ran.stdout.splitlines()[-1] + "\n")
    print(" | ".join(line(json.loads(ran.stdout.splitlines()[-1]))), flush=True)


def installed(tool: str) -> bool:
    """Return True if the tool can be imported."""
    from importlib.util import find_spec

    module = MODULES.get(tool.split(",")[0])
    return module is None or find_spec(module) is not None


def main() -> None:
    """Measure the missing cells and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder with load.py")
    parser.add_argument("--rows", type=Path, default=Path("peers.jsonl"))
    parser.add_argument("--only", nargs="*", default=[], help="cells whose network and tool contain each of the words")
    parser.add_argument("--page", type=Path, help="the Markdown file to write")
    parser.add_argument("--cell", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cell:
        print(json.dumps(measured(options.data, *options.cell)))
        return
    kept = {(r["network"], r["tool"]) for r in done(options.rows)}
    cells = ((n, t) for n in NETWORKS for t in TOOLS if (n, t) not in kept and installed(t))
    for network, tool in cells:
        if all(word in f"{network} {tool}" for word in options.only):
            cell(options, network, tool)
    rows = done(options.rows)
    print(table(HEAD, [line(r) for r in rows], 250))
    if options.page:
        lines = with_page(options.page, rows)
        options.page.write_text(HEADING + markdown([HEAD, *lines]))
        print(compact(lines))


if __name__ == "__main__":
    main()
