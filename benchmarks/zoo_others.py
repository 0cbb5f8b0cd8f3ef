"""Quantize the zoo's networks by NNCF and by torchao's pt2e flow, and compare with qfunc.

    pip install nncf openvino            # and torchao, each in a separate environment with ".[zoo]"
    python benchmarks/zoo_others.py --tool nncf|torchao [--only WORD] [--file FILE] [--seconds 180] [--ours FILE]

Models, inputs and calibration batches are those of zoo.py, with 8 bits.  Each tool has its defaults for x86-64:

* NNCF: `nncf.torch.wrap_model`, `nncf.quantize`; OpenVINO converts and runs the result.  On first use NNCF builds a C++
  extension, which takes a minute and a half of CPU time.  It gives up after 60 s of wall time, unless the environment has
  NNCF_EXTENSION_LOAD_TIMEOUT=0.
* torchao: `torch.export`, `prepare_pt2e` and `convert_pt2e` with X86InductorQuantizer; the converted program is exported
  again and run by PyTorch.

A row has the last stage that a network reached (captured, quantized, run), the cosine of its outputs to those of the float
network, and the seconds.  A higher cosine is not always better, because a tool that quantizes less also reaches it.  Rows are
appended and resumed as in zoo.py.  --ours is the file of zoo.py, whose rows are printed for comparison.
`python benchmarks/zoo_others.py --tool table` prints the existing rows.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from one_by_one import add_options, is_chosen, rows_of, run
from torch import Tensor, nn
from torchvision_ops import shim
from zoo_check import cosine
from zoo_models import ZOO, Entry

shim()
Row = dict[str, Any]
STAGES = ("captured", "quantized", "run")
TOOLS = ("nncf", "torchao")


def nncf_steps(entry: Entry, model: nn.Module) -> Iterator[Any]:
    """Run NNCF's stages in order.  The last one returns run(inputs) -> outputs."""
    import nncf
    import nncf.torch
    import openvino

    example = entry.inputs(2, 3)
    yield nncf.torch.wrap_model(model, example_input=example, trace_parameters=True)
    kind = None if entry.convolutional else nncf.ModelType.TRANSFORMER
    quantized = nncf.quantize(model, nncf.Dataset([entry.inputs(4, 3)], lambda i: i[0]), model_type=kind)
    yield quantized
    compiled = openvino.compile_model(openvino.convert_model(quantized, example_input=example), "CPU")
    yield lambda inputs: [torch.as_tensor(v) for v in compiled([t.numpy() for t in inputs]).values()]


def torchao_steps(entry: Entry, model: nn.Module) -> Iterator[Any]:
    """Run torchao's stages in order.  The last one returns run(inputs) -> outputs."""
    from torchao.quantization.pt2e import move_exported_model_to_eval
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    example = entry.inputs(2, 3)
    program = torch.export.export(model, example, strict=True)  # the quantizer's patterns need the metadata of strict tracing
    yield program
    quantizer = x86.X86InductorQuantizer().set_global(x86.get_default_x86_inductor_quantization_config())
    observed = prepare_pt2e(program.module(), quantizer)
    for half in entry.inputs(4, 3)[0].chunk(2):  # the program has the example's batch
        observed(half)
    quantized = move_exported_model_to_eval(convert_pt2e(observed))
    yield quantized
    exported = torch.export.export(quantized, example, strict=False).module()
    yield lambda inputs: tensors(exported(*inputs))


STEPS: dict[str, Callable[[Entry, nn.Module], Iterator[Any]]] = {"nncf": nncf_steps, "torchao": torchao_steps}


def tensors(value: Any) -> list[Tensor]:
    """Return the tensors of an output, in order."""
    if isinstance(value, Tensor):
        return [value]
    entries = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [t for v in entries for t in tensors(v)]


def check(entry: Entry, tool: str) -> Row:
    """Return the row of one network and one tool."""
    row: Row = {"stage": STAGES[0], "reason": "", "passed": False}
    torch.set_num_threads(1)
    model, held = entry.make(), entry.inputs(2, 4)
    with torch.no_grad():
        real = tensors(model(*held))
    began = time.monotonic()
    try:
        steps = STEPS[tool](entry, model)
        for row["stage"] in STAGES[:2]:
            next(steps)
            row[row["stage"]] = True
        row["stage"] = STAGES[2]
        run = next(steps)
        with torch.no_grad():
            found = run(held)
        row["run"] = True
        row["cosine"] = min(cosine(a, b) for a, b in zip(real, found, strict=False))
        row["passed"], row["stage"] = True, ""
    except Exception as e:
        row["reason"] = f"{type(e).__name__}: {' | '.join(str(e).strip().splitlines())[:400]}"
    row["total_seconds"] = time.monotonic() - began
    return row


def child(name: str, sender: Any) -> None:
    """Send the row of `TOOL NETWORK`."""
    tool, _, network = name.partition(" ")
    warnings.simplefilter("ignore")
    sender.send(check(next(e for e in ZOO if e.name == network), tool))


def cells(row: Row | None) -> list[str]:
    """Return the last stage reached, the cosine and the seconds."""
    if row is None:
        return ["", "", ""]
    reached = [s for s in STAGES if row.get(s)]
    seconds = f"{row['total_seconds']:.0f}" if "total_seconds" in row else ""
    return [reached[-1] if reached else "NO", f"{row['cosine']:.4f}" if "cosine" in row else "", seconds]


def summary(have: dict[str, Row], ours: dict[str, Row]) -> None:
    """Print the existing rows side by side."""
    from qfunc.analysis.report_format import table

    names = [e.name for e in ZOO if any(f"{t} {e.name}" in have for t in TOOLS)]
    rows = []
    for name in names:
        own = ours.get(name)
        mine = ["", "", ""] if own is None else ["run" if "cosine" in own else f"NO: {own['stage']}",
            f"{own['cosine_float']:.4f}" if "cosine_float" in own else "", f"{own.get('total_seconds', 0):.0f}"]  # fmt: skip
        rows.append([name, *mine, *(c for t in TOOLS for c in cells(have.get(f"{t} {name}")))])
    print(table(("network", "qfunc", "cosine", "s", *(c for t in TOOLS for c in (t, "cosine", "s"))), rows, 200))
    for tool in TOOLS:
        of = [have[f"{tool} {n}"] for n in names if f"{tool} {n}" in have]
        print(f"{tool}: " + ", ".join(f"{sum(bool(r.get(s)) for r in of)} of {len(of)} {s}" for s in STAGES))
    for key, row in have.items():
        if not row["passed"]:
            print(f"  {key}, {row['stage']}: {row['reason']}"[:300])


def main() -> int:
    """Run the missing networks and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", required=True, choices=(*TOOLS, "table"))
    add_options(parser, "zoo_others.jsonl", 180)
    parser.add_argument("--ours", type=Path, default=Path("zoo.jsonl"), help="the file of zoo.py")
    options = parser.parse_args()
    chosen = [f"{options.tool} {e.name}" for e in ZOO if options.tool != "table" and is_chosen(e.name, options)]
    have = run(chosen, options, child, "zoo_others")
    summary(have, rows_of(options.ours))
    return 0


if __name__ == "__main__":
    sys.exit(main())
