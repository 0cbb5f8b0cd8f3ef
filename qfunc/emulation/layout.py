"""The units that ONNX Runtime stores with channels last, which decides the order of some sums."""

from __future__ import annotations

from collections.abc import Set

from qfunc.ops.node import slots
from qfunc.placement.units import Unit

# The ops through which ONNX Runtime passes its blocked layout: a choice of the runtime, no trait of the ops.
_KEEPS_LAYOUT = ("add", "mul", "max_pool", "avg_pool", "global_avg_pool", "concat", "sigmoid", "leaky_relu", "relu", "clip")


def writes_channels_last(unit: Unit, before: Set[str]) -> bool:
    """Return True if an integer unit writes the layout of a convolution; `before` are the outputs before it that have it."""
    return unit.integer and (unit.kind == "conv" or (unit.kind in _KEEPS_LAYOUT and _reads(unit, before)))


def _reads(unit: Unit, outputs: Set[str]) -> bool:
    return any(n.name in outputs for node in unit.group.nodes for _, n in slots(node))
