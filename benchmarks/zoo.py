"""The zoo: are real architectures captured, quantized, calibrated, deployed and run as they were simulated?

    pip install -c constraints.txt -e ".[zoo]"
    python benchmarks/zoo.py [--only WORD] [--file FILE] [--again] [--seconds 180]
    python benchmarks/zoo.py --nncf PYTHON --torchao PYTHON

Architectures of torchvision, timm and transformers, and some of zoo_own.py, with random weights: nothing is downloaded.
torchvision's metadata pins its torch, so without the constraints it brings another (or: pip install --no-deps
torchvision==0.28.0).  Its C++ extension does not load beside a torch without CUDA, so the benchmark declares the two ops
that its import needs (`zoo_models.shim`).

A network passes when at least 99 % of the multiply-accumulates of its convolutions, linears and matrix products have
quantized operands, the artifact runs in ONNX Runtime at full optimisation, and each output's cosine between artifact and
simulation is at least 0.9999; of a convolutional one the runtime's integer units must be the predicted ones too.
On a CPU whose int8 kernels saturate (x86-64 without VNNI) weights have 7 bits.

Each network runs in a process of its own, within --seconds; its row is appended to FILE (JSON lines), and rows that are
there are not run again.  PYTHON is the interpreter of an environment with NNCF or torchao (see zoo_others.py).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

from tqdm import tqdm
from zoo_models import ZOO

HERE = Path(__file__).parent
HEAD = ("network", "passed", "road", "GMAC", "quantized %", "integer %", "units", "cosine", "float", "s", "MiB", "why not")
SIDE = ("network", "qfunc", "nncf", "torchao pt2e")


def rows_of(file: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """(network, tool) -> its last row in a file."""
    lines = file.read_text().splitlines() if file.exists() else []
    return {(r["name"], r["tool"]): r for r in map(json.loads, lines)}


def one(name: str, tool: str, python: str, seconds: int) -> dict[str, Any]:
    """The row of one network, from a process of its own."""
    row = {"name": name, "tool": tool, "passed": False, "stage": "process", "reason": ""}
    if tool == "qfunc":
        return row | _forked(name, seconds)
    try:
        command = [python, "-W", "ignore", str(HERE / "zoo_others.py"), tool, name]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return row | {"reason": f"took more than {seconds} s"}
    last = (ran.stdout.strip().splitlines() or [""])[-1]
    if not last.startswith("{"):
        return row | {"reason": f"ended with {ran.returncode}: {(ran.stderr.strip().splitlines() or [''])[-1]}"}
    return row | json.loads(last)


def _forked(name: str, seconds: int) -> dict[str, Any]:
    # Forked from a server that has imported everything once.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["zoo_check"])
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(name, sender))
    process.start()
    sender.close()
    try:
        return receiver.recv() if receiver.poll(seconds) else {"reason": f"took more than {seconds} s"}
    except EOFError:
        process.join()
        return {"reason": f"ended with {process.exitcode}"}
    finally:
        process.kill()


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
    closeness = [f"{row[k]:.6f}" if k in row else "" for k in ("cosine", "cosine_float")]
    resources = [f"{row[k]:.0f}" if k in row else "" for k in ("total_seconds", "peak_mib")]
    why = f"{row['stage']}: {row['reason']}"[:150] if row["reason"] else ""
    passed = "yes" if row["passed"] else "NO"
    return [row["name"], passed, row.get("road", ""), *figures, str(row.get("units", "")), *closeness, *resources, why]


def beside(rows: dict[tuple[str, str], dict[str, Any]], names: list[str]) -> list[list[str]]:
    """The cells of SIDE."""

    def cell(row: dict[str, Any] | None) -> str:
        if row is None:
            return "not run"
        if "cosine" not in row:
            return f"no: {row['stage']}, {row['reason']}"[:60]
        return f"{100 * row['quantized']:.1f} % quantized, {row['cosine']:.6f}, {row['total_seconds']:.0f} s"

    return [[name, *(cell(rows.get((name, tool))) for tool in ("qfunc", "nncf", "torchao"))] for name in names]


def main() -> int:
    """Runs what is missing and prints the tables; 0 if 95 % passed, and every convolutional network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="networks whose names hold this word")
    parser.add_argument("--file", type=Path, default=Path("zoo.jsonl"))
    parser.add_argument("--again", action="store_true", help="also networks that failed before")
    parser.add_argument("--seconds", type=int, default=180, help="limit for each network")
    parser.add_argument("--nncf", default="", metavar="PYTHON")
    parser.add_argument("--torchao", default="", metavar="PYTHON")
    options = parser.parse_args()
    entries = [e for e in ZOO if options.only in e.name]
    tools = {"qfunc": sys.executable, "nncf": options.nncf, "torchao": options.torchao}
    have = rows_of(options.file)
    wanted = [(e.name, tool) for tool, python in tools.items() if python for e in entries]
    missing = [k for k in wanted if k not in have or (options.again and not have[k]["passed"])]
    bar = tqdm(missing, "networks", disable=not sys.stderr.isatty())
    for name, tool in bar:
        bar.set_postfix_str(f"{name}, {tool}")
        have[name, tool] = one(name, tool, tools[tool], options.seconds)
        with options.file.open("a") as out:
            out.write(json.dumps(have[name, tool]) + "\n")
    return summary(have, entries, any(python for tool, python in tools.items() if tool != "qfunc"))


def summary(have: dict[tuple[str, str], dict[str, Any]], entries: list[Any], others: bool) -> int:
    """Prints the tables; the exit status."""
    from qfunc.transforms.table import table

    rows = [have[e.name, "qfunc"] for e in entries]
    print(table(HEAD, [cells(r) for r in rows], 260))
    if others:
        print("\nshare of quantized MACs, cosine between what is deployed and what was simulated, seconds")
        print(table(SIDE, beside(have, [e.name for e in entries]), 260))
    convolutional = [have[e.name, "qfunc"] for e in entries if e.convolutional]
    passed, all_of = sum(r["passed"] for r in rows), sum(r["passed"] for r in convolutional)
    print(f"{passed} of {len(rows)} pass; {all_of} of {len(convolutional)} convolutional ones")
    for row in rows:
        if not row["passed"]:
            print(f"  {row['name']}, {row['stage']}: {row['reason']}")
    return 0 if all_of == len(convolutional) and passed >= 0.95 * len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
