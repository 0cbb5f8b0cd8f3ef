"""Sums by fused multiply-adds, with codes wide enough that the last bit of the offset shows."""

from __future__ import annotations

import numpy as np
import torch

from qfunc.numerics.kernels import addition
from qfunc.testing import integer_oracle as exact
from qfunc.testing.oracle import float32


def test_the_offset_of_a_sum_is_fused() -> None:
    """f = float32(z - fma(r_a, z_a, float32(r_b * z_b))): rounding r_a * z_a by itself gives another f."""
    wide, shown = 2**24, 0
    a, b = [0, 17, 128, 255], [3, 91, 200, 254]
    for k in range(1, 40):
        s_a, s_b = float(np.float32(1000 + k * 97.31)), float(np.float32(20000 + k * 13.7))
        found = addition.add_codes(
            torch.tensor(a).float(), s_a, 131, torch.tensor(b).float(), s_b, 77, 1.0, 9, -wide, wide, "half_even"
        )
        assert found.tolist() == [exact.sum_fma(p, s_a, 131, q, s_b, 77, 1, 9, -wide, wide) for p, q in zip(a, b, strict=True)]
        product = float32(s_b * 77)
        shown += exact.fma(s_a, 131, product) != float32(float32(s_a * 131) + product)
    assert shown > 0
