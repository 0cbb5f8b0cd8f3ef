"""The file of the float network in the same runtime, and the time of both files."""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from qfunc.analysis.gain import Latency
from qfunc.errors import QfuncError, first_line
from qfunc.lowering.artifact import REPORT, Artifact
from qfunc.specs import Everything, Target, edit
from qfunc.specs.protocols import LoadingRunner, Runner, ThreadedRunner
from qfunc.transforms.deploy import Deployment, deploy
from qfunc.transforms.quantize import quantize

SECONDS = 2.0
"""The time that the measurement takes at most."""
_BLOCKS, _LEAST, _MOST = 3, 3, 300
_BUSY = 0.2
"""The spread beyond which a ratio is not reported."""


def float_file(deployed: Deployment, target: Target) -> Artifact | str:
    """Return the artifact of the float network, for the same target with every op in float, or why there is none."""
    inputs = tuple(torch.zeros(i.shape, dtype=getattr(torch, i.dtype.removeprefix("torch."))) for i in deployed.inputs)
    unquantized = edit.skip(Everything())(target)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the caller asked for no float model
            return deploy(unquantized, inputs)(quantize(unquantized)(deployed.partition.network))
    except QfuncError as e:
        return f"{target.name} has no float file ({e.found})"


def size_ratio(artifact: Artifact, plain: Artifact) -> float:
    """Return the bytes of a file over the bytes of the float file, without the report, which no runtime loads."""
    size, whole = (sum(len(v) for name, v in a.files.items() if name != REPORT) for a in (artifact, plain))
    return size / max(1, whole)


def latency(runner: Any, artifact: Artifact, plain: Artifact, inputs: Sequence[Tensor]) -> Latency:
    """Return the time of one example as a ratio of two files, which run in turns.

    Args:
        runner: The runner of both.
        artifact: The quantized file.
        plain: The float file.
        inputs: The inputs of one example.
    """
    if not isinstance(runner, Runner):
        return Latency(why="the runtime is a function")
    if not isinstance(runner, LoadingRunner):
        return Latency(why="the runner loads the file in each call")
    if getattr(runner, "machine", None) is not None:
        return Latency(why="the processor is not this one")
    threads = runner.threads if isinstance(runner, ThreadedRunner) else 0
    try:
        runs = [runner.loaded(each) for each in (artifact, plain)]
        times = _turns(runs, inputs)
    except Exception as e:  # of the runtime
        return Latency(threads=threads, why=f"the runtime failed: {first_line(e)}")
    if len(times) < _LEAST:
        return Latency(threads=threads, why=f"fewer than {_LEAST} runs of both files fit into {SECONDS:g} s")
    ratio = _ratio(times)
    blocks = [_ratio(times[i::_BLOCKS]) for i in range(_BLOCKS)]
    spread = (max(blocks) - min(blocks)) / statistics.median(blocks)
    if spread > _BUSY:
        why = f"the ratio varied by {100 * spread:.0f} % around {ratio:.2f}, as on a busy machine"
        return Latency(None, spread, threads, why)
    return Latency(ratio, spread, threads)


def _turns(runs: Sequence[Callable[[Sequence[Tensor]], Any]], inputs: Sequence[Tensor]) -> list[tuple[float, ...]]:
    # The seconds of each function in each turn; the first turn, which prepares kernels, is left out.
    times: list[tuple[float, ...]] = []
    start = time.perf_counter()
    for count in range(_MOST):
        taken = []
        for run in runs:
            before = time.perf_counter()
            run(inputs)
            taken.append(time.perf_counter() - before)
        if count:
            times.append(tuple(taken))
        if time.perf_counter() - start + sum(taken) > SECONDS:
            break
    return times


def _ratio(times: Sequence[tuple[float, ...]]) -> float:
    quantized, plain = (min(taken[i] for taken in times) for i in (0, 1))
    return float(quantized / plain)
