"""XNNPACK's float32 ops, entry by entry: each sum in NumPy's float32, in the order of the docstring."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from qfunc.targets.executorch.functions import average_by_nines, gelu_in_double, hard_swish_by_sixths, logistic_in_double


def _sum(entries: list[np.float32]) -> np.float32:
    total = None
    for start in range(0, len(entries), 9):
        v = [*entries[start : start + 9], *[np.float32(0)] * 9][:9]
        one = (((v[0] + v[1]) + v[8]) + (v[6] + v[7])) + ((v[2] + v[3]) + (v[4] + v[5]))
        total = one if total is None else total + one
    assert total is not None
    return total


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "ceil", "pads"),
    [((3, 2), (2, 1), (1, 1), False, True), ((4, 5), (1, 2), (2, 0), False, False), ((2, 3), (2, 2), (0, 0), True, True)],
)
def test_a_window_is_summed_by_columns_nine_at_a_time(kernel, stride, padding, ceil, pads):
    image = np.random.default_rng(0).normal(size=(7, 9)).astype(np.float32)
    found = average_by_nines(torch.from_numpy(image)[None, None], kernel, stride, padding, ceil, pads)[0, 0]
    like = torch.nn.functional.avg_pool2d(torch.from_numpy(image)[None, None], kernel, stride, padding, ceil, pads)[0, 0]
    assert found.shape == like.shape
    for row, column in np.ndindex(*found.shape):
        places = [(row * stride[0] - padding[0] + i, column * stride[1] - padding[1] + j)
                  for j in range(kernel[1]) for i in range(kernel[0])]  # fmt: skip
        inside = [0 <= i < 7 and 0 <= j < 9 for i, j in places]
        entries = [image[p] if ok else np.float32(0) for p, ok in zip(places, inside, strict=True)]
        count = np.float32(kernel[0] * kernel[1] if pads and not ceil else sum(inside))
        assert found[row, column].item() == _sum(entries) * (np.float32(1) / count)


def test_hard_swish_is_gated_by_a_sixth():
    x = np.random.default_rng(1).uniform(-4, 4, 500).astype(np.float32)
    gate = np.clip(x * (np.float32(1) / np.float32(6)) + np.float32(0.5), np.float32(0), np.float32(1))
    assert hard_swish_by_sixths(torch.from_numpy(x)).tolist() == (x * gate).tolist()


def test_curves_in_double_are_rounded_once():
    x = np.random.default_rng(2).uniform(-9, 9, 2000).astype(np.float32)
    logistic = [np.float32(math.exp(v) / (1 + math.exp(v))) for v in x.tolist()]
    assert logistic_in_double(torch.from_numpy(x)).tolist() == logistic
    gelu = [np.float32(v / 2 * (1 + math.erf(v * math.sqrt(2) / 2))) for v in x.tolist()]
    assert gelu_in_double(torch.from_numpy(x)).tolist() == gelu
