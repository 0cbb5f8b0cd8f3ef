"""The quantized tensors of a deployed model, as plain values for lowerings and reports."""

from __future__ import annotations

from typing import Any

from attrs import asdict, frozen

from qfunc.graph.units import Partition
from qfunc.graph.vocabulary import is_constant


@frozen
class QuantizedTensor:
    """One quantized tensor: its name, role and readers, its codes and qparams.

    `scale` and `zero_point` have one entry, or one a channel of `axis`.
    """

    name: str
    role: str
    readers: tuple[str, ...]
    low: int
    high: int
    scale: tuple[float, ...]
    zero_point: tuple[int, ...]
    rounding: str
    axis: int | None = None


def quantized_tensors(partition: Partition) -> tuple[QuantizedTensor, ...]:
    """Every site of a model, in graph order."""
    nodes = {n.name: n for n in partition.network.graph.nodes}
    found = []
    for coding in partition.at_path.values():
        seat, site = coding.seat, coding.seat.module.site
        readers = tuple(partition.path(nodes[r]) if r in nodes else r for r in seat.readers)
        role = site.slot if is_constant(nodes[seat.tensor]) else "activation"
        scale, zero = coding.qparams.scale, coding.qparams.zero_point.flatten()
        axis = max(range(scale.ndim), key=lambda i: scale.shape[i]) if scale.ndim else None
        values = tuple(scale.flatten().tolist()), tuple(int(z) for z in zero)
        found.append(
            QuantizedTensor(
                site.name, role, readers, coding.format.qmin, coding.format.qmax, *values, site.scheme.rounding, axis
            )
        )
    return tuple(found)


def plain(tensor: QuantizedTensor) -> dict[str, Any]:
    """A QuantizedTensor as JSON data."""
    return asdict(tensor)
