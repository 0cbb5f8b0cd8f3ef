"""Average pools: the multiplier of a global one to its last bit, and the windows of ceil mode."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
import torch
import torch.nn.functional as F

from qfunc.numerics.kernels import integer
from qfunc.testing import integer_oracle, oracle


def test_the_global_average_rounds_scale_times_count_first() -> None:
    """M = float32(s_x / float32(s_y * n)), which is not float32(float32(s_x / s_y) / n)."""
    side, wide = 7, 2**24
    n, differ = side * side, 0
    for k in range(1, 40):
        s_x, s_y = float(np.float32(0.9 * n + k / 31)), float(np.float32(1 + k / 77))
        codes = torch.full((1, 1, side, side), 2.0**17)
        found = integer.global_average_codes(codes, 0, s_x, s_y, 0, -wide, wide, "half_even", True).item()
        m = oracle.float32(Fraction(s_x) / oracle.float32(Fraction(s_y) * n))
        twice = oracle.float32(oracle.float32(Fraction(s_x) / Fraction(s_y)) / n)
        wanted, other = (integer_oracle.requantize(n * 2**17, v, 0, -wide, wide) for v in (m, twice))
        assert found == wanted
        differ += wanted != other
    assert differ > 0


def test_ceil_mode_drops_windows_that_start_behind_the_input() -> None:
    """Every small size, kernel, stride and padding: the windows of torch, among them some that ceil mode drops."""
    dropped = 0
    for size, kernel, stride in product(range(3, 10), range(1, 4), range(1, 5)):
        for padding in range(kernel // 2 + 1):
            x = torch.arange(1.0, size + 1).reshape(1, 1, size)
            found = integer.average_pool_real(x, (kernel,), (stride,), (padding,), True, False)
            theirs = F.avg_pool1d(x, kernel, stride, padding, ceil_mode=True, count_include_pad=False)
            assert found.shape == theirs.shape
            # At most three whole numbers a window: their sum is exact, the division rounds once.
            assert torch.equal(found, theirs)
            dropped += found.shape[2] != -(-(size + 2 * padding - kernel) // stride) + 1
    assert dropped > 0
