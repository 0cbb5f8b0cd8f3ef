"""The time of each unit on integers and in float, by the profile of the runtime."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from qfunc.analysis.gain import UnitCost
from qfunc.lowering.artifact import Artifact
from qfunc.placement.partition import Partition
from qfunc.specs.protocols import ProfilingRunner

_LEAST = 1e-6
"""The seconds that a unit must cost more than in float; runtimes count whole microseconds."""


def unit_costs(
    runner: Any, artifact: Artifact, plain: Artifact, inputs: Sequence[Tensor], partition: Partition, count: int
) -> tuple[UnitCost, ...]:
    """Return the units that cost most beyond their time in the float file, `count` at most, the costliest first.

    Args:
        runner: The runner of both files.
        artifact: The quantized file.
        plain: The float file.
        inputs: The inputs of one example.
        partition: The units, which both files have.
        count: The largest number of units.
    """
    if not isinstance(runner, ProfilingRunner):
        return ()
    paths = _paths(partition)
    try:
        quantized, real = (_by_unit(runner.profiled(each, inputs), paths) for each in (artifact, plain))
    except Exception:  # of the runtime: the report has the latency already
        return ()
    costs = [UnitCost(path, seconds, real.get(path, 0.0)) for path, seconds in quantized.items()]
    worst = sorted((c for c in costs if c.seconds - c.plain > _LEAST), key=lambda c: c.plain - c.seconds)
    return tuple(worst[:count])


def _paths(partition: Partition) -> dict[str, str]:
    # The unit's path by each name that its operations may have in a file.
    found: dict[str, str] = {}
    for unit in partition.units:
        for node in unit.group.nodes:
            found |= dict.fromkeys((node.name, partition.names[node], partition.paths[node]), unit.path)
    return found | {unit.tensor: unit.path for unit in partition.units}


def _by_unit(seconds: Mapping[str, float], paths: Mapping[str, str]) -> dict[str, float]:
    # "conv.codes" belongs to "conv" unless a tensor has the longer name.
    found: dict[str, float] = defaultdict(float)
    for name, taken in seconds.items():
        known = name
        while known not in paths and "." in known:
            known = known.rpartition(".")[0]
        if known in paths:
            found[paths[known]] += taken
    return found
