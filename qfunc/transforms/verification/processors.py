"""Whether the processor of a runner computes what the target describes."""

from __future__ import annotations

from typing import Any

from torch import fx

from qfunc.emulation.writer import build_emulation
from qfunc.graph.view import QuantizedModel
from qfunc.placement.partition import Partition
from qfunc.specs import Target, edit
from qfunc.specs.protocols import ConditionalRunner, LocatedRunner


def incomparable(runner: Any, artifact: Any, model: fx.GraphModule, target: Target, emulation: fx.GraphModule) -> str:
    """Return the reason why the runner may compute an artifact of the quantized model in another way, or "".

    Args:
        emulation: The emulation of the model on the target.
    """
    runtime = target.runtime
    if not runtime.builds or not isinstance(runner, LocatedRunner) or runner.cpu is None:
        return runner.comparable(artifact) if isinstance(runner, ConditionalRunner) else ""
    if runner.cpu not in (build.cpu for build in runtime.builds):
        return f"the target {target.name} describes no {runner.cpu}"
    there = edit.cpu(runner.cpu)(target)
    if there.kernels == target.kernels or _has_emulation(model, there, emulation):
        return ""
    return f"{runner.cpu} computes other integers than {runtime.cpu}, which edit.cpu({str(runner.cpu)!r}) describes"


def _has_emulation(model: fx.GraphModule, target: Target, emulation: fx.GraphModule) -> bool:
    # Two processors may compute a model alike, such as one whose weights are too small for sums to saturate.
    return str(build_emulation(Partition(QuantizedModel(model), target)).graph) == str(emulation.graph)
