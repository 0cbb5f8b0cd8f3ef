"""Networks whose sums overflow a target's accumulators, which random weights seldom reach."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from qfunc.arithmetic.integers import SumRange
from qfunc.errors import QfuncError
from qfunc.graph.view import QuantizedModel
from qfunc.placement.partition import Partition
from qfunc.placement.products import accumulator_of, range_of_unit
from qfunc.specs import Target
from qfunc.testing.expected_warnings import without_range_warnings
from qfunc.transforms.calibrate import calibrate
from qfunc.transforms.quantize import quantize

LARGEST_LAYER = 4096
"""The number of inputs up to which an accumulator is overflowed."""


class OverflowNet(nn.Module):
    """One convolution (kernel 3) or linear layer, with weights of one size whose signs change in different orders.

    The outputs are: all weights positive; all negative; positive in the first half of the input channels; positive in the
    first row of the kernel; signs at random; and a small channel.

    >>> OverflowNet("linear", 5)(torch.ones(1, 5)).tolist()[0][:2]
    [5.0, -5.0]
    """

    def __init__(self, kind: str, channels: int, seed: int = 0) -> None:
        super().__init__()
        self.kind, self.channels, self.seed = kind, channels, seed
        convolution = kind == "conv"
        self.layer = nn.Conv2d(channels, 6, 3, padding=1) if convolution else nn.Linear(channels, 6)
        shape, index = self.layer.weight.shape[1:], torch.arange(channels).reshape(-1, *[1] * 2 * convolution)
        row = torch.arange(3).reshape(1, 3, 1) if convolution else index % 3
        chosen = torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(seed)) == 1
        positive = (index >= 0, index < 0, 2 * index < channels, row < 1, chosen, chosen)
        with torch.no_grad():
            for output, where in enumerate(positive):
                self.layer.weight[output] = torch.where(where.expand(shape), 1.0, -1.0) * (0.001 if output == 5 else 1.0)
            self.layer.bias = nn.Parameter(torch.tensor([0.0, 0.0, 1.0, -1.0, 0.5, 0.0]))
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Return the six outputs."""
        value: Tensor = self.layer(x)
        return value

    def __repr__(self) -> str:
        return f"OverflowNet({self.kind!r}, {self.channels}, seed={self.seed})"

    def example(self) -> Tensor:
        """Return two examples: one near the upper end of the range, and one of either sign."""
        shape = (self.channels, 5, 4) if self.kind == "conv" else (self.channels,)
        draw = torch.rand((2, *shape), generator=torch.Generator().manual_seed(self.seed + 1))
        return torch.stack([1 - 0.2 * draw[0], 2 * draw[1] - 1])


def overflow_models(target: Target) -> list[tuple[nn.Module, Tensor]]:
    """Return (network, input) pairs with sums that the accumulators of a target do not hold.

    There is one for convolutions and one for linear layers, if their accumulators overflow with at most 4,096 inputs.

    >>> from qfunc import targets
    >>> overflow_models(targets.onnxruntime)
    []
    """
    if all(accumulator_of(k.arithmetic) is None for k in target.kernels):
        return []
    found: list[tuple[nn.Module, Tensor]] = []
    for kind in ("conv", "linear"):
        probe, count = OverflowNet(kind, 2), 18 if kind == "conv" else 2
        sums = _range(target, probe)
        if sums is None:
            continue
        length = math.ceil(1.5 * 2.0 ** (sums.bits - 1) / max(sums.largest / count, 1.0))
        if length <= LARGEST_LAYER:
            net = OverflowNet(kind, max(2, -(-length * 2 // count)))
            found.append((net, net.example()))
    return found


def _range(target: Target, net: OverflowNet) -> SumRange | None:
    # The range of the layer's sums; None if the target refuses the network or computes it in float.
    try:
        with without_range_warnings():
            calibrated = calibrate([net.example()], progress=False)(quantize(target)(net))
        partition = Partition(QuantizedModel(calibrated), target)
    except QfuncError:
        return None
    ranges = (range_of_unit(partition, unit) for unit in partition.units if unit.kind == net.kind)
    return next((sums for sums in ranges if sums is not None), None)
