"""The quantized tensors of a deployed model, as plain values for lowerings and reports."""

from __future__ import annotations

from typing import Any

from attrs import asdict, frozen

from qfunc.numerics.minifloat import largest
from qfunc.ops.node import is_constant
from qfunc.placement.partition import Partition
from qfunc.specs import Float, Format, Int, Log, PerBlock


@frozen
class Place:
    """A place in the ONNX model where qparams apply: the float tensor, and the tensor of its quantized values."""

    tensor: str
    real: str


@frozen
class QuantizedTensor:
    """One quantized tensor: its producer and readers, its codes and qparams, and its places in the ONNX model.

    `name` is the user's path; `places[0].tensor` is the tensor's name in a model without quantizers; further
    places are tensors to which ops move the same codes.  `scale` and `zero_point` have one entry, or one for each
    channel of `axis`; those of blocks, which may be millions, are in the ONNX model alone, and both are empty here.  `low` and
    `high` are the ends of the codes.

    >>> t = QuantizedTensor("conv", "activation", "conv", ("relu",), Int(8), (0.5,), (0,), "half_even", (Place("c", "c.real"),))
    >>> t.low, t.high, t.minimum, t.maximum
    (-128, 127, (-64.0,), (63.5,))
    """

    name: str
    role: str
    producer: str
    readers: tuple[str, ...]
    format: Format
    scale: tuple[float, ...]
    zero_point: tuple[int, ...]
    rounding: str
    places: tuple[Place, ...]
    axis: int | None = None

    @property
    def low(self) -> int:
        """The lowest code."""
        if isinstance(self.format, Float):
            return -int(largest(self.format))
        return self.format.qmin if isinstance(self.format, Int) else 0

    @property
    def high(self) -> int:
        """The highest code; of a Log format, the highest of one sign."""
        if isinstance(self.format, Float):
            return int(largest(self.format))
        return self.format.qmax if isinstance(self.format, Int) else (1 << self._log.magnitude_bits) - 1

    @property
    def minimum(self) -> tuple[float, ...]:
        """The lowest value for each scale: s (qmin - z); of a Log format, minus the largest."""
        if isinstance(self.format, Log):
            return tuple(-m for m in self.maximum)
        return tuple(s * (self.low - z) for s, z in zip(self.scale, self.zero_point, strict=True))

    @property
    def maximum(self) -> tuple[float, ...]:
        """The highest value for each scale: s (qmax - z); of a Log format, the clip value s 2^(high / k)."""
        if isinstance(self.format, Log):
            return tuple(s * 2.0 ** (self.high / self._log.steps_per_octave) for s in self.scale)
        return tuple(s * (self.high - z) for s, z in zip(self.scale, self.zero_point, strict=True))

    @property
    def tensors(self) -> tuple[str, ...]:
        """The float tensors of the ONNX model that carry these qparams."""
        return tuple(dict.fromkeys(p.tensor for p in self.places))

    @property
    def _log(self) -> Log:
        assert isinstance(self.format, Log)
        return self.format


def quantized_tensor(partition: Partition, path: str, places: tuple[Place, ...]) -> QuantizedTensor:
    """Return the quantized tensor of the quantizer at a path."""
    nodes, encoding = partition.nodes, partition.at_path[path]
    quantizer, site = encoding.quantizer, encoding.quantizer.module.site
    producer = nodes[quantizer.tensor]
    readers = tuple(partition.names[nodes[r]] if r in nodes else r for r in quantizer.readers)
    role = site.slot if is_constant(producer) else "activation"
    scale, zero = encoding.qparams.scale, encoding.qparams.zero_point.flatten()
    in_blocks = isinstance(site.scheme.scale.shared, PerBlock)  # which have no single axis
    axis = max(range(scale.ndim), key=lambda i: scale.shape[i]) if scale.ndim and not in_blocks else None
    scale = scale if encoding.qparams.outer is None else scale * encoding.qparams.outer
    scales, zeros = ((), ()) if in_blocks else (tuple(scale.flatten().tolist()), tuple(int(z) for z in zero))
    producer_name = partition.names[producer]
    return QuantizedTensor(
        site.name, role, producer_name, readers, site.scheme.format, scales, zeros, site.scheme.rounding, places, axis
    )


def plain(tensor: QuantizedTensor) -> dict[str, Any]:
    """Return a QuantizedTensor as JSON data."""
    data = asdict(tensor, filter=lambda a, _: a.name not in ("format", "places"))
    if not tensor.scale:
        data |= {"scale": None, "zero_point": None}
    return data | {"low": tensor.low, "high": tensor.high, "format": repr(tensor.format), "tensors": list(tensor.tensors)}
