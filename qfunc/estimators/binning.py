"""Histogram bins that need no prior range: the exponent of the largest magnitude alone determines their edges."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

MANTISSA = 7  # a float32's upper half: sign, exponent, 7 bits of mantissa
OCTAVES = 20
PATTERNS = 1 << 8 + MANTISSA


class LogLinear(NamedTuple):
    """128 equal bins in each of the 20 octaves up to the largest magnitude, and one bin from there down to 0.

    The bin of x is the upper half of its float32 pattern, so there is no width to choose, and outliers do not
    coarsen the other bins: the width of every bin is at most 1/128 of its values.  A larger magnitude moves the
    window up by whole octaves and merges the bins below into the lowest one, so the counts depend on the data
    but not on its order.

    >>> LogLinear().size
    2561
    """

    @property
    def size(self) -> int:
        """Number of bins per sign."""
        return (OCTAVES << MANTISSA) + 1

    def level(self, largest: Tensor) -> Tensor:
        """Return the biased exponent of the window's highest octave, int32."""
        return ((largest.contiguous().view(torch.int32) >> 23) & 255).clamp(min=OCTAVES - 1)

    def find(self, x: Tensor, level: Tensor) -> Tensor:
        """Return the bins i of |x|, for negative x as -1 - i: int32 in [-size, size)."""
        patterns = x.view(torch.int32)
        bins = (patterns >> 16).bitwise_and_(PATTERNS - 1).sub_(((level - (OCTAVES - 1)) << MANTISSA) - 1)
        return bins.clamp_(0, self.size - 1).bitwise_xor_(patterns >> 31)  # only NaN is out of range

    @property
    def coarse(self) -> bool:
        """True if no bin is narrower than a pattern, the upper half of a positive float32."""
        return True

    def of_patterns(self, tally: Tensor, level: Tensor) -> Tensor:
        """Return the counts of the bins, [n, size], from the counts of the patterns, [n, PATTERNS]."""
        upper = tally.index_select(-1, self._starts(level))
        return torch.cat((tally.sum(-1, keepdim=True) - upper.sum(-1, keepdim=True), upper), -1)

    def _starts(self, level: Tensor) -> Tensor:
        # The patterns of all bins except the lowest, int64.
        steps = torch.arange(self.size - 1, device=level.device)
        return ((level.long() - (OCTAVES - 1)) << MANTISSA) + steps

    def moved(self, octaves: Tensor) -> Tensor:
        """Return each bin's new index after the window moves up by `octaves`: [*octaves.shape, size]."""
        bins = torch.arange(self.size, device=octaves.device)
        return (bins - (octaves.long() << MANTISSA).unsqueeze(-1)).clamp_(min=0)

    def edges(self, level: Tensor) -> Tensor:
        """Return the bounds of the bins of |x| in float64: [*level.shape, size + 1]."""
        steps = torch.arange(self.size, dtype=torch.int32, device=level.device)
        patterns = (((level - (OCTAVES - 1)) << MANTISSA).unsqueeze(-1) + steps).clamp(max=255 << MANTISSA) << 16
        values = patterns.view(torch.float32).double().clamp(max=2.0**128)  # the pattern of infinity in float32
        return torch.cat((torch.zeros_like(values[..., :1]), values), -1)


class Uniform(NamedTuple):
    """`size` bins of |x| of equal width: the smallest power of two at which they reach the largest magnitude.

    So at least half of the range is used.  A larger magnitude doubles the width and merges pairs of bins, so
    the counts depend on the data but not on its order.

    >>> Uniform(4).edges(Uniform(4).level(torch.tensor(3.0))).tolist()
    [0.0, 1.0, 2.0, 3.0, 4.0]
    """

    size: int = 4096

    def level(self, largest: Tensor) -> Tensor:
        """Return log2 of the range [0, 2^level) that the bins cover, int32."""
        exponent = torch.frexp(torch.where(largest.isfinite(), largest, 1.0)).exponent
        return exponent.to(torch.int32).clamp(min=-100)  # so that 1 / width fits into float32

    def find(self, x: Tensor, level: Tensor) -> Tensor:
        """Return the bins i of |x|, for negative x as -1 - i: int32 in [-size, size)."""
        inverse = torch.ldexp(torch.full_like(level, self.size, dtype=torch.float32), -level)
        bins = (x * inverse).to(torch.int32).clamp_(1 - self.size, self.size - 1)  # only NaN and infinity are out of range
        return bins.add_(x.view(torch.int32) >> 31)

    @property
    def coarse(self) -> bool:
        """True if no bin is narrower than a pattern, the upper half of a positive float32."""
        return self.size <= 2 << MANTISSA

    def of_patterns(self, tally: Tensor, level: Tensor) -> Tensor:
        """Return the counts of the bins, [n, size], from the counts of the patterns, [n, PATTERNS]."""
        starts = self.edges(level).flatten()[:-1].float().view(torch.int32) >> 16
        ends = torch.cat((starts, torch.full_like(level, PATTERNS)))
        return torch.nn.functional.pad(tally.cumsum(-1), (1, 0)).index_select(-1, ends).diff()

    def moved(self, octaves: Tensor) -> Tensor:
        """Return each bin's new index after the width doubles `octaves` times: [*octaves.shape, size]."""
        return torch.arange(self.size, device=octaves.device) >> octaves.long().clamp(max=32).unsqueeze(-1)

    def edges(self, level: Tensor) -> Tensor:
        """Return the bounds of the bins of |x| in float64: [*level.shape, size + 1]."""
        steps = torch.arange(self.size + 1, dtype=torch.float64, device=level.device) / self.size
        return steps * torch.exp2(level.double()).unsqueeze(-1)


Bins = LogLinear | Uniform
