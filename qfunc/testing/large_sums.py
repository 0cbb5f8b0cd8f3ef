"""Layers whose sums are large beside their codes: biases of 2^22 to 2^29, which random weights do not have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from qfunc.errors import QfuncError
from qfunc.graph.view import QuantizedModel
from qfunc.placement.partition import Partition
from qfunc.specs import Target
from qfunc.testing.expected_warnings import without_range_warnings
from qfunc.transforms.calibrate import calibrate
from qfunc.transforms.quantize import quantize

KINDS = ("linear", "conv", "conv_transpose")
"""The kinds of layers."""


class LargeSums(nn.Module):
    """One linear layer or convolution: biases of 1/2 to 2, and in each channel weights of 2^-25 to 2^-7 beside them.

    Codes of the input and the weight make steps of 2^-14 of their ranges, so that a bias is 2^22 to 2^29 steps of the sum.

    Args:
        kind: "linear", "conv" (1x1, or depthwise of 3x3 with `depthwise`) or "conv_transpose".
        channels: The number of output channels.

    >>> LargeSums("linear", 3)(torch.ones(2, 5)).shape
    torch.Size([2, 3])
    """

    def __init__(self, kind: str, channels: int, seed: int = 0, depthwise: bool = False) -> None:
        super().__init__()
        self.kind, self.channels, self.seed, self.depthwise = kind, channels, seed, depthwise
        inputs = channels if depthwise else 5
        if kind == "linear":
            self.layer: nn.Module = nn.Linear(inputs, channels)
        elif kind == "conv":
            self.layer = nn.Conv2d(inputs, channels, 3 if depthwise else 1, groups=channels if depthwise else 1)
        else:
            self.layer = nn.ConvTranspose2d(inputs, channels, 2, 2)
        g = torch.Generator().manual_seed(seed)
        weight, bias = (getattr(self.layer, name).data for name in ("weight", "bias"))
        axis = 1 if kind == "conv_transpose" else 0
        power = torch.randint(22, 30, (channels,), generator=g).double()
        sizes = [channels if i == axis else 1 for i in range(weight.ndim)]
        weight.copy_((2 * torch.rand(weight.shape, generator=g) - 1) * torch.exp2(14 - power).float().reshape(sizes))
        sign = 2.0 * torch.randint(0, 2, (channels,), generator=g) - 1
        bias.copy_(sign * (0.5 + 1.5 * torch.rand((channels,), generator=g)))
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output."""
        value: Tensor = self.layer(x)
        return value

    def __repr__(self) -> str:
        depthwise = ", depthwise=True" if self.depthwise else ""
        return f"LargeSums({self.kind!r}, {self.channels}, seed={self.seed}{depthwise})"

    def example(self) -> Tensor:
        """Return inputs of -1 to 1."""
        inputs = self.channels if self.depthwise else 5
        shape = (256, inputs) if self.kind == "linear" else (4, inputs, 7, 5)
        return 2 * torch.rand(shape, generator=torch.Generator().manual_seed(self.seed + 1)) - 1


def large_sums(target: Target, kinds: Sequence[str] = KINDS) -> list[tuple[nn.Module, Tensor]]:
    """Return (layer, input) pairs with large sums, of the kinds that the target computes on integers.

    They have 1, 3, 13 and 17 output channels: vectors leave channels over.

    >>> from qfunc import targets
    >>> large_sums(targets.onnxruntime, ("linear",))[0][0]
    LargeSums('linear', 1, seed=0)
    """
    return [(net, net.example()) for net in _layers(kinds) if _is_integer(target, net)]


def _layers(kinds: Sequence[str]) -> Iterator[LargeSums]:
    for kind in (k for k in kinds if k in KINDS):
        yield from (LargeSums(kind, channels, seed) for seed, channels in enumerate((1, 3, 13, 17)))
        if kind == "conv":
            yield from (LargeSums(kind, channels, 4 + channels, depthwise=True) for channels in (3, 17))


def _is_integer(target: Target, net: LargeSums) -> bool:
    try:
        with without_range_warnings():
            calibrated = calibrate([net.example()], progress=False)(quantize(target)(net))
        units = Partition(QuantizedModel(calibrated), target).units
    except QfuncError:
        return False
    return any(unit.integer and unit.kind == net.kind for unit in units)
