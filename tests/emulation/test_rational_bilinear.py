"""Bilinear resizing at rational positions has at most 2^bits steps between two entries."""

from __future__ import annotations

import pytest
import torch

from qfunc.errors import EmulationError
from qfunc.numerics.kernels.resize import bilinear_codes


def test_bits_limit_the_steps_between_two_entries():
    codes = torch.arange(5.0).reshape(1, 1, 1, 5)
    assert bilinear_codes(codes, (1, 4), False, "rational", 3).shape == (1, 1, 1, 4)
    with pytest.raises(EmulationError) as error:
        bilinear_codes(codes, (1, 4), False, "rational", 2, "up")
    assert str(error.value) == (
        "unit 'up': found a resize of (1, 5) to (1, 4), in steps of 1 / 8, wanted at most 4 steps between two entries. "
        "Resize to a size with a larger common divisor."
    )
