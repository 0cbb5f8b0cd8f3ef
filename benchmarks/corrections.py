"""Check on the zoo that equalization, smoothing and BatchNorm folding preserve the result of each op.

    pip install -c constraints.txt -e ".[zoo]"
    python benchmarks/corrections.py [--only WORD] [--file FILE] [--again] [--seconds 240]

In each network of zoo_models.py, clips become ReLUs.  Then `equalize`, `smooth` and folding are applied separately to the float
network.  The table shows the largest difference of any op's output, divided by its bound.  The bound follows from the rounding
of the weights to float32 alone (qfunc/testing/laws/corrections.py).  The law holds if the value is at most 1.  "-" means that
there is nothing to change; attention, for example, has no BatchNorms to fold.  "outputs" is the largest relative change of the
outputs in float64, over the three.

Each network runs in a separate process, on one thread, within --seconds of processor time.  Its row is appended to FILE (JSON
lines), and existing rows are not run again.  The exit status is 1 if a law fails or a network did not run.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import sys
import time
import warnings
from typing import Any

import torch
from one_by_one import add_options, is_chosen, run
from torch import Tensor, fx
from zoo_check import tensors
from zoo_models import ZOO, Entry

import qfunc
from qfunc.analysis.report_format import table
from qfunc.corrections.equalization_graph import equalization_links
from qfunc.errors import CaptureError, SpecError
from qfunc.ops.node import kind_of
from qfunc.passes.fold_batch_norm import fold_batch_norms
from qfunc.passes.fuse_norms import NORMS
from qfunc.passes.rewrite import rewrite
from qfunc.testing.laws.corrections import worst_violation

LAWS = ("equalize", "smooth", "folding")
HEAD = ("network", "road", "pairs", "equalize", "smoothed", "smooth", "norms", "folding", "outputs", "at", "CPU s", "why not")


def _captured(entry: Entry) -> tuple[fx.GraphModule, str]:
    model = entry.make()
    try:
        return rewrite(qfunc.capture()(model), *NORMS), "fx"
    except CaptureError:
        return rewrite(qfunc.capture(entry.inputs(2, 3))(model), *NORMS), "export"


def _wide(model: fx.GraphModule, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    wide = tuple(x.double() if x.is_floating_point() else x for x in inputs)
    with torch.no_grad():
        return tensors(copy.deepcopy(model).double().eval()(*wide))


def check(entry: Entry) -> dict[str, Any]:
    """Return the row of one network."""
    torch.set_num_threads(1)
    row: dict[str, Any] = {"name": entry.name, "passed": False, "reason": "", "worst": {}, "changed": {}}
    try:
        model, row["road"] = _captured(entry)
        inputs, changes = entry.inputs(1, 4), {}
        with contextlib.suppress(SpecError):  # nothing to change
            model = qfunc.corrections.replace_relu6()(model)
        wanted = _wide(model, inputs)
        found = equalization_links(model, gains=True)[0]
        row["changed"] = {
            "equalize": len(equalization_links(model)[0]),
            "smooth": sum(all(end.op.kind == "linear" for end in link.ends) for link in found),
            "folding": sum(kind_of(n) == "batch_norm" for n in model.graph.nodes),
        }
        changes = {
            "equalize": qfunc.equalize(),
            "smooth": qfunc.smooth_quant([entry.inputs(2, 3)], progress=False),
            "folding": fold_batch_norms,
        }
        row["outputs"], row["at"] = 0.0, ""
        for law in (law for law in LAWS if row["changed"][law]):
            changed = changes[law](model)
            row["worst"][law], at = worst_violation(model, changed, inputs)
            row["at"] = f"{law}: {at}" if row["worst"][law] == max(row["worst"].values()) else row["at"]
            for a, b in zip(_wide(changed, inputs), wanted, strict=True):
                row["outputs"] = max(row["outputs"], float((a - b).abs().max() / b.abs().max().clamp_min(1e-30)))
        row["passed"] = all(w <= 1 for w in row["worst"].values())
    except Exception as e:
        row["reason"] = f"{type(e).__name__}: {' | '.join(str(e).strip().splitlines())[:400]}"
    row["cpu_seconds"] = time.process_time()
    return row


def _child(name: str, sender: Any) -> None:
    warnings.simplefilter("ignore")
    sender.send(check(next(e for e in ZOO if e.name == name)))


def _cells(row: dict[str, Any]) -> list[str]:
    laws = [
        c
        for law in LAWS
        for c in (str(row["changed"].get(law, "")), f"{row['worst'][law]:.3f}" if law in row["worst"] else "-")
    ]
    outputs = f"{row['outputs']:.1e}" if "outputs" in row else ""
    return [
        row["name"],
        row.get("road", ""),
        *laws,
        outputs,
        row.get("at", ""),
        f"{row.get('cpu_seconds', 0):.0f}",
        row["reason"][:150],
    ]


def main() -> int:
    """Run the missing networks and print the table.  Return 0 if every law holds for every network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, "corrections.jsonl", 240)
    options = parser.parse_args()
    entries = [e for e in ZOO if is_chosen(e.name, options)]
    have = run([e.name for e in entries], options, _child, "corrections", {"worst": {}, "changed": {}})
    rows = [have[e.name] for e in entries]
    print(table(HEAD, [_cells(r) for r in rows], 240))
    for law in LAWS:
        worst = [r["worst"][law] for r in rows if law in r["worst"]]
        print(f"{law}: {sum(w <= 1 for w in worst)} of {len(worst)} networks, at most {max(worst, default=0):.3f} of the bound")
    return 0 if all(r["passed"] for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
