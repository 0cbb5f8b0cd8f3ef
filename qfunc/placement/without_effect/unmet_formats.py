"""Units that run in float because no integer kernel takes the formats of their sites."""

from __future__ import annotations

import torch
from attrs import frozen

from qfunc.graph.view import QuantizedModel
from qfunc.numerics.qparams import Affine
from qfunc.placement.encoding import is_integer_encoding
from qfunc.placement.kernels import refused_formats
from qfunc.placement.partition import Partition
from qfunc.specs import Format, Target


@frozen
class UnmetFormats:
    """One unit: the path of its op, and for each refused slot its format and those that the nearest kernel takes."""

    op: str
    slots: tuple[tuple[str, Format, tuple[Format, ...]], ...]

    @property
    def found(self) -> str:
        """The formats of the slots, such as "Int(16) for its input and output"."""
        return _by_format({slot: repr(fmt) for slot, fmt, _ in self.slots})

    @property
    def wanted(self) -> str:
        """The formats that the kernel takes, such as "Int(8) or Int(8, signed=False) for its input"."""
        return _by_format({slot: " or ".join(map(repr, formats)) for slot, _, formats in self.slots})


def unmet_formats(view: QuantizedModel) -> tuple[UnmetFormats, ...]:
    """Return the units of a quantized model whose sites are all integer, in formats that no integer kernel takes.

    The formats decide before there are qparams.  Models with codes that can only be simulated have no such units.
    """
    target = view.record.target
    if target is None or not target.kernels or not all(map(is_integer_encoding, view.quantizers)):
        return ()
    return _of_partition(Partition(view, target, {q.path: _unit_scale() for q in view.quantizers}), target)


def _of_partition(partition: Partition, target: Target) -> tuple[UnmetFormats, ...]:
    found = []
    for unit in partition.units:
        kernels = target.host.kernels if unit.host and target.host is not None else target.kernels
        if slots := refused_formats(unit.group, partition.operands(unit.group), kernels, partition.context):
            found.append(UnmetFormats(partition.context.path(unit.path), slots))
    return tuple(found)


def _unit_scale() -> Affine:
    return Affine(torch.ones(()), torch.zeros(()))


def _by_format(slots: dict[str, str]) -> str:
    readers: dict[str, list[str]] = {}
    for slot, text in slots.items():
        readers.setdefault(text, []).append(slot)
    return ", ".join(f"{text} for its {' and '.join(names)}" for text, names in readers.items())
