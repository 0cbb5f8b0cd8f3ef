"""Measure 8-bit embeddings of a trained sentence transformer: distance from float, simulation and emulation to runtime.

    python benchmarks/minilm.py --data DIR [--pairs N]

DIR contains `load.py` with `load("sts") -> (model, calibration, (sentence pairs, scores))`: MiniLM-L6 and the STS
benchmark, with sentences as token ids and masks.  Without it, nothing is measured and the reason is printed.

The model is exported with dynamic batch and length, calibrated on 256 sentences in batches of 32, and run in batches of
other sizes and lengths.  The table shows for each target:

- the cosine of float and runtime embeddings (mean, 1 % quantile);
- the cosine of simulation and runtime, and of emulation and runtime: the median, the mean, the minimum, and the share of
  sentences at 0.9999 or more (single codes flip where sums round differently, as in the simulation);
- 100 x Spearman's correlation with the scores;
- recall@10: the share of the ten nearest second sentences by float embeddings that are also among the ten nearest by
  quantized ones.

The exit status is 1 if the edited target for ONNX Runtime loses more than 0.5 points of Spearman, or if a runtime differs
from its simulation, or from its emulation where the target has one.

On a CPU whose int8 kernels saturate (x86-64 without VNNI), ONNX Runtime runs without optimisation, in float; this is printed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from fidelity import loader
from torch import Tensor

import qfunc
from qfunc import targets
from qfunc.analysis.report_format import table
from qfunc.specs import KeepFloat, Unknown, edit
from qfunc.targets.runtimes import OnnxRuntimeRunner

RESIDUAL_IN_FLOAT = edit.skip(edit.op("add")), edit.outputs(edit.op("linear"), KeepFloat())
"""Some channels of the residual stream are tens of times larger than the others.  So its sums and their terms stay in float,
and the operands of all products are quantized."""

TARGETS = {
    "onnxruntime": targets.onnxruntime,
    "onnxruntime, residual stream in float": edit.pipe(targets.onnxruntime, *RESIDUAL_IN_FLOAT),
    "tensorrt_nlp": targets.tensorrt_nlp,
    "tensorrt_nlp, additions in float": edit.pipe(targets.tensorrt_nlp, edit.skip(edit.op("add"))),
}
CHECKED = "onnxruntime, residual stream in float"

Embed = Callable[[Tensor, Tensor], Tensor]


def sentences(pairs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return (token ids, masks) of all first sentences, then of all second ones."""
    width = max(pairs[k].shape[1] for k in "ab")
    wide = {k: F.pad(v, (0, width - v.shape[1])) for k, v in pairs.items()}
    return torch.cat([wide["a"], wide["b"]]), torch.cat([wide["mask_a"], wide["mask_b"]])


def batches(ids: Tensor, mask: Tensor, size: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return (places, ids, mask) of sentences of similar lengths."""
    order = torch.argsort(mask.sum(1), stable=True)
    found = []
    for start in range(0, len(order), size):
        places = order[start : start + size]
        length = int(mask[places].sum(1).max())
        found.append((places, ids[places, :length], mask[places, :length]))
    return found


def embedded(embed: Embed, ids: Tensor, mask: Tensor, size: int = 64) -> Tensor:
    """Return an embedding for each sentence."""
    parts = batches(ids, mask, size)
    with torch.no_grad():
        found = torch.cat([embed(i, m).float() for _, i, m in parts])
    return found[torch.argsort(torch.cat([places for places, _, _ in parts]))]


def spearman(values: Tensor, scores: Tensor) -> float:
    """Return 100 x the rank correlation; ties have their mean rank."""

    def ranks(v: Tensor) -> Tensor:
        _, inverse, count = v.unique(return_inverse=True, return_counts=True)
        return (count.cumsum(0) - (count - 1) / 2)[inverse]

    return 100 * float(torch.corrcoef(torch.stack([ranks(values), ranks(scores)]))[0, 1])


def nearest(embeddings: Tensor, count: int = 10) -> Tensor:
    """Return the nearest second sentences of each first sentence."""
    first, second = embeddings.chunk(2)
    return (first @ second.T).topk(min(count, len(second)), 1).indices


def recall(real: Tensor, found: Tensor) -> float:
    """Return the share of the entries of each row of `real` that are in the same row of `found`."""
    return float((real[:, :, None] == found[:, None, :]).any(2).float().mean())


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"), help="the folder with load.py")
    parser.add_argument("--pairs", type=int, default=0, help="number of sentence pairs")
    parser.add_argument("--only", default="", help="targets whose names contain this word")
    given = parser.parse_args()
    if not (given.data / "load.py").is_file():
        print(f"Not measured: {given.data / 'load.py'} does not exist; pass its folder by --data DIR.")
        return 0
    model, (calib, _), (test, scores) = loader(given.data)("sts")
    count = given.pairs or len(scores)
    test, scores = {k: v[:count] for k, v in test.items()}, scores[:count]
    both = {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}
    _, ids, mask = batches(*sentences(calib), 32)[-1]
    program = torch.export.export(model, (ids, mask), dynamic_shapes=(both, both), strict=False)
    calibration = [(i, m) for _, i, m in batches(*sentences({k: v[:128] for k, v in calib.items()}), 32)]
    exact = not OnnxRuntimeRunner().comparable()
    how = "with all" if exact else "without"
    print(f"ONNX Runtime {how} optimisations; {count} pairs, {len(calibration)} batches of calibration", flush=True)
    real = embedded(model, *sentences(test))
    rows = [["float", "", "", "", "", f"{_score(real, scores):.2f}", "", ""]]
    failed = 0
    for name, target in TARGETS.items():
        if given.only in name:
            row, bad = measured(name, target, program, calibration, test, scores, real, exact)
            print(" | ".join(row), flush=True)
            rows.append(row)
            failed += bad
    head = (
        "target",
        "cosine to float",
        "1 % quantile",
        "simulation-runtime",
        "emulation-runtime",
        "Spearman",
        "recall@10",
        "s",
    )
    print(table(head, rows, 200))
    return min(failed, 1)


def _score(embeddings: Tensor, scores: Tensor) -> float:
    first, second = embeddings.chunk(2)
    return spearman((first * second).sum(1), scores)


def measured(
    name: str, target: Any, program: Any, calibration: Any, test: Any, scores: Tensor, real: Tensor, exact: bool
) -> tuple[list[str], bool]:
    """Return a row of the table, and True if it exceeds a limit."""
    start = time.monotonic()
    calibrated = qfunc.calibrate(calibration, progress=False)(qfunc.quantize(target)(program))
    session = OnnxRuntimeRunner(optimise=exact).session(qfunc.deploy(target)(calibrated).files["model.onnx"])
    simulated = embedded(calibrated, *sentences(test))
    found = embedded(lambda *given: torch.from_numpy(session.run(given)[0]), *sentences(test))
    near, same = ((a * b).sum(1) for a, b in ((real, found), (simulated, found)))
    equal = (embedded(qfunc.emulate(target)(calibrated), *sentences(test)) * found).sum(1) if emulable(target) else None
    lost = _score(real, scores) - _score(found, scores)
    row = [
        name, f"{near.mean():.4f}", f"{near.quantile(0.01):.4f}", 
        *("" if c is None else f"{c.median():.6f}, {c.mean():.6f}, {(c >= 0.9999).float().mean():.1%}, {c.min():.6f}"
          for c in (same, equal)),
        f"{_score(found, scores):.2f} ({-lost:+.2f})", f"{recall(nearest(real), nearest(found)):.3f}",
        f"{time.monotonic() - start:.0f}",
    ]  # fmt: skip
    unlike = float(same.median()) < 0.9999 or (exact and equal is not None and float(equal.mean()) < 0.9999)
    return row, unlike or (name == CHECKED and lost > 0.5)


def emulable(target: Any) -> bool:
    """Return True if the target's arithmetic is public."""
    return not any(isinstance(k.arithmetic, Unknown) for k in target.kernels)


if __name__ == "__main__":
    sys.exit(main())
