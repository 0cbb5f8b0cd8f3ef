"""Capture, quantize, calibrate, deploy and run a hundred architectures, and compare them with the simulation.

    pip install -c constraints.txt -e ".[zoo]"
    python benchmarks/zoo.py [--only WORD] [--file FILE] [--again] [--seconds 180]

The architectures are from torchvision, timm, transformers and zoo_own.py, with random weights: nothing is downloaded.
torchvision's metadata pins its torch, so without the constraints it installs another one (or: pip install --no-deps
torchvision==0.28.0).  Its C++ extension does not load with a torch without CUDA.  So the benchmark declares the two ops that
its import needs (`torchvision_ops.shim`).

A network passes if

- at least 99 % of the multiply-accumulates of its convolutions, linears and matrix products have quantized operands,
- the artifact runs in ONNX Runtime at full optimisation,
- each output's cosine between artifact and simulation is at least 0.9999, and
- in a convolutional network, the runtime's integer units are the predicted ones.

If that cosine is lower, the cosine between artifact and emulation must reach the limit.  Sums in float32 move single codes
across a tie, and these push others across theirs, layer by layer (docs/exactness.md); the emulation's sums are the runtime's.
In the table, "float" is the cosine of float network and simulation, and "alike" that of the outputs for two images.
On a CPU whose int8 kernels saturate (x86-64 without VNNI), weights have 7 bits.

Each network runs in a separate process, on one thread, within --seconds of processor time.  Its row is appended to FILE (JSON
lines), and existing rows are not run again.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from typing import Any

from one_by_one import add_options, is_chosen, run
from zoo_models import ZOO

HEAD = (
    "network", "passed", "road", "GMAC", "quantized %", "integer %", "units", "cosine",
    "emulation", "float", "alike", "s", "CPU s", "MiB",
    "why not",
)  # fmt: skip


def _child(name: str, sender: Any) -> None:
    from zoo_check import check

    warnings.simplefilter("ignore")
    sender.send(check(next(e for e in ZOO if e.name == name)))


def cells(row: dict[str, Any]) -> list[str]:
    """Return the cells of HEAD."""
    figures = [
        f"{row[k] / 1e9:.2f}" if k == "macs" else f"{100 * row[k]:.2f}" for k in ("macs", "quantized", "integer") if k in row
    ]
    figures += [""] * (3 - len(figures))
    closeness = [f"{row[k]:.6f}" if k in row else "" for k in ("cosine", "emulation", "cosine_float", "alike")]
    resources = [f"{row[k]:.0f}" if k in row else "" for k in ("total_seconds", "cpu_seconds", "peak_mib")]
    why = f"{row['stage']}: {row['reason']}"[:150] if row["reason"] else ""
    passed = "yes" if row["passed"] else "NO"
    return [row["name"], passed, row.get("road", ""), *figures, str(row.get("units", "")), *closeness, *resources, why]


def main() -> int:
    """Run the missing networks and print the table.  Return 0 if 95 % and every convolutional network passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, "zoo.jsonl", 180)
    options = parser.parse_args()
    entries = [e for e in ZOO if is_chosen(e.name, options)]
    have = run([e.name for e in entries], options, _child, "zoo_check")
    return summary(have, entries)


def summary(have: dict[str, dict[str, Any]], entries: list[Any]) -> int:
    """Print the table.  Return the exit status."""
    from qfunc.analysis.report_format import table

    rows = [have[e.name] for e in entries]
    print(table(HEAD, [cells(r) for r in rows], 260))
    convolutional = [have[e.name] for e in entries if e.convolutional]
    passed, all_of = sum(r["passed"] for r in rows), sum(r["passed"] for r in convolutional)
    print(f"{passed} of {len(rows)} pass; {all_of} of {len(convolutional)} convolutional ones")
    for row in rows:
        if not row["passed"]:
            print(f"  {row['name']}, {row['stage']}: {row['reason']}")
    return 0 if all_of == len(convolutional) and passed >= 0.95 * len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
