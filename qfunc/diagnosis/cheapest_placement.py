"""The placement of least time, by a minimum cut."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import networkx
from attrs import frozen

INTEGERS, FLOAT = "on integers", "in float"
_UNIT = 1e9
"""Times are whole nanoseconds: a cut of integers is exact."""


@frozen
class TensorTraffic:
    """A tensor between ops, and what it costs where its writer and a reader are not placed alike.

    Attributes:
        writer: The op that writes it; None for an input, which is in float.
        readers: The ops that read it; None among them for an output, which is in float.
        seconds: The time to quantize or to dequantize it once, for all readers.
    """

    writer: Hashable | None
    readers: tuple[Hashable | None, ...]
    seconds: float


def cheapest(seconds: Mapping[Any, float | None], tensors: Sequence[TensorTraffic]) -> frozenset[Any]:
    """Return the ops that run on integers in the placement of least time.

    The time of a placement is

        sum of seconds[op] over the ops on integers + sum of the seconds of the tensors that are converted,

    where a tensor is dequantized once if its writer is on integers and any reader in float, and quantized once if its writer is
    in float and any reader on integers.  A minimum cut between integers and float is such a placement.  Among placements of
    equal time it is the one with the most ops on integers.

    Args:
        seconds: For each op the time on integers less the time in float, without conversions; None for an op that has no
            form on integers.
        tensors: The tensors between them.
    Source: Greig, Porteous and Seheult, "Exact maximum a posteriori estimation for binary images", 1989.

    >>> traffic = [TensorTraffic(None, ("conv",), 1.0), TensorTraffic("conv", ("prelu",), 1.0)]
    >>> traffic += [TensorTraffic("prelu", ("pool",), 1.0), TensorTraffic("pool", (None,), 1.0)]
    >>> sorted(cheapest({"conv": -9.0, "prelu": 5.0, "pool": -1.0}, traffic))
    ['conv']
    """
    graph: networkx.DiGraph[Any] = networkx.DiGraph()
    graph.add_nodes_from((INTEGERS, FLOAT))
    for op, gain in seconds.items():
        if gain is None:
            graph.add_edge(("op", op), FLOAT)  # without a capacity: never cut
        elif gain > 0:
            graph.add_edge(("op", op), FLOAT, capacity=round(gain * _UNIT))
        else:
            graph.add_edge(INTEGERS, ("op", op), capacity=round(-gain * _UNIT))
    for index, tensor in enumerate(tensors):
        writer = FLOAT if tensor.writer is None else ("op", tensor.writer)
        cost, ways = round(tensor.seconds * _UNIT), (("dequantize", index), ("quantize", index))
        graph.add_edge(writer, ways[0], capacity=cost)
        graph.add_edge(ways[1], writer, capacity=cost)
        for reader in tensor.readers:
            end = FLOAT if reader is None else ("op", reader)
            graph.add_edge(ways[0], end)
            graph.add_edge(end, ways[1])
    _, (integers, _) = networkx.minimum_cut(graph, INTEGERS, FLOAT)
    return frozenset(node[1] for node in integers if isinstance(node, tuple) and node[0] == "op")
