"""The outputs of a model, and what one code of each is worth."""

from __future__ import annotations

import torch
from torch import Tensor, fx

from qfunc.graph.arguments import unflatten
from qfunc.placement.encoding import Encoding
from qfunc.placement.partition import Partition


def outputs_of(partition: Partition) -> tuple[fx.Node, list[fx.Node]]:
    """Return the output node of the network, and the nodes of the outputs."""
    node = next(n for n in partition.network.graph.nodes if n.op == "output")
    return node, unflatten(node)


def encoding_of_output(partition: Partition, index: int) -> Encoding | None:
    """Return the codes of an output; None if it is real, or one of several values of an op that is returned as a whole."""
    node, leaves = outputs_of(partition)
    return partition.encoding(leaves[index], node) if index < len(leaves) else None


def lsb_of_output(partition: Partition, index: int, value: Tensor) -> float:
    """Return the value of one code of an output, or 1/255 of its range if it has no codes."""
    encoding = encoding_of_output(partition, index)
    if encoding is not None and encoding.qparams.scale.ndim == 0:
        return encoding.scale
    return range_lsb(value)


def range_lsb(value: Tensor) -> float:
    """Return 1/255 of the range of a real value, at least 2^-12 of its largest magnitude / 255.

    A smaller range holds little but roundings of float32, as of numbers that should be equal.
    """
    low, high = (float(value.min()), float(value.max())) if value.numel() else (0.0, 255.0)
    return max((high - low or abs(high)) / 255, max(-low, high) * 2**-12 / 255, torch.finfo(torch.float32).tiny)
