"""The zoo: are real architectures captured, quantized, calibrated, deployed and run as they were simulated?

    pip install -c constraints.txt -e ".[zoo]"
    python benchmarks/zoo.py [--only WORD] [--file FILE] [--again] [--seconds 180]

Architectures of torchvision, timm and transformers, and some of zoo_own.py, with random weights: nothing is downloaded.
torchvision's metadata pins its torch, so without the constraints it brings another (or: pip install --no-deps
torchvision==0.28.0).  Its C++ extension does not load beside a torch without CUDA, so the benchmark declares the two ops
that its import needs (`zoo_models.shim`).

A network passes when at least 99 % of the multiply-accumulates of its convolutions, linears and matrix products have
quantized operands, the artifact runs in ONNX Runtime at full optimisation, and each output's cosine between artifact and
simulation is at least 0.9999 ("float" is that of float network and simulation, "alike" that of the outputs for two
images); of a convolutional one the runtime's integer units must be the predicted ones too.
Where that cosine is lower, the emulation has to have it: sums in float32 put single codes to the other side of a tie, which
push others over theirs, layer by layer (docs/exactness.md); the emulation's are the runtime's own.
On a CPU whose int8 kernels saturate (x86-64 without VNNI) weights have 7 bits.

Each network runs in a process of its own, on one thread, within --seconds of processor time; its row is appended to FILE
(JSON lines), and rows that are there are not run again.
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
    """The cells of HEAD."""
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
    """Runs what is missing and prints the table; 0 if 95 % passed, and every convolutional network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, "zoo.jsonl", 180)
    options = parser.parse_args()
    entries = [e for e in ZOO if is_chosen(e.name, options)]
    have = run([e.name for e in entries], options, _child, "zoo_check")
    return summary(have, entries)


def summary(have: dict[str, dict[str, Any]], entries: list[Any]) -> int:
    """Prints the table; the exit status."""
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
