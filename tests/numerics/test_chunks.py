"""Products in the chunks of oneDNN, entry by entry in exact rationals."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qfunc.errors import SpecError
from qfunc.numerics.sums.chunks import chunk_size, chunked_product
from qfunc.specs import BrgemmChunks, DynamicProduct, Int, Lanes, PerBlock, Scale, Scheme
from tests.numerics.test_dynamic_products import rounded

MEASURED = {
    32: {33: 16, 34: 17, 35: 16, 36: 18, 51: 16, 63: 16, 64: 32, 65: 13, 66: 22, 67: 32, 70: 16, 85: 17, 99: 16, 101: 32,
         121: 11, 143: 13, 134: 32, 335: 32, 469: 32, 536: 8, 603: 9, 670: 10},
    64: {34: 32, 36: 18, 38: 32, 40: 20, 42: 32, 56: 28, 66: 22, 68: 32, 72: 24, 100: 32},
    128: {40: 20, 48: 24, 56: 28, 72: 24, 84: 28},
}  # fmt: skip
"""Block -> {K / 32: the entries of a chunk / 32}, as found by trying all with openvino 2026.4.1."""


@pytest.mark.parametrize("block", MEASURED)
def test_chunks_are_those_of_openvino(block: int) -> None:
    assert {n: chunk_size(32 * n, block) // 32 for n in MEASURED[block]} == MEASURED[block]
    assert all(chunk_size(32 * n, block) == 32 * n for n in range(block // 32, 33, block // 32))


def reference(x: np.ndarray, weight: np.ndarray, scale: np.ndarray, bias: float, chunk: int) -> float:
    """One output, in the order that `specs.BrgemmChunks` states; groups of 32."""
    f = rounded
    total = Fraction(0)
    block = len(x) // len(scale)
    for start in range(0, len(x), chunk):
        part = Fraction(0)
        for at in range(start, min(start + chunk, len(x)), 32):
            values = [Fraction(float(v)) for v in x[at : at + 32]]
            largest = max(abs(v) for v in values)
            s = f(largest / 127) if largest else Fraction(1)
            r = f(1 / s)
            acc = sum(round(f(v * r)) * int(w) for v, w in zip(values, weight[at : at + 32], strict=True))
            part = f(f(acc * s) * Fraction(float(scale[at // block])) + part)
        total = f(total + part)
    return float(f(total + Fraction(bias)))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from((32, 64, 128, 1056, 1088)), st.sampled_from(("normal", "ties", "zeros")))
def test_each_step_is_rounded_as_stated(seed: int, width: int, kind: str) -> None:
    generator = np.random.default_rng(seed)
    x = (generator.standard_normal((2, width)) * np.exp2(generator.integers(-20, 20, (2, 1)))).astype(np.float32)
    if kind == "ties":
        x = (generator.integers(-254, 255, (2, width)) / 2).astype(np.float32)
        x[:, ::32] = 127
    x[0, :32] = 0 if kind == "zeros" else x[0, :32]
    weight = generator.integers(-15, 16, (2, width))
    scale = generator.standard_normal((2, width // 32)).astype(np.float32)
    bias = generator.standard_normal(2).astype(np.float32)

    found = chunked_product(*(torch.from_numpy(a) for a in (x, weight.astype(np.float32), scale, bias)), 32).numpy()

    chunk = {1056: 512, 1088: 544}.get(width, width)
    wanted = [[reference(row, w, s, float(b), chunk) for w, s, b in zip(weight, scale, bias, strict=True)] for row in x]
    np.testing.assert_array_equal(found, np.float32(wanted))


def test_other_sums_have_lanes() -> None:
    blocks = Scheme(Int(8, low=-127), Scale(PerBlock(-1, 32), dynamic=True), division=False)
    assert DynamicProduct(blocks, multiplier="last", scales="inside", lanes=BrgemmChunks()).lanes != Lanes()
    with pytest.raises(SpecError) as caught:
        DynamicProduct(blocks, multiplier="both", scales="inside", lanes=BrgemmChunks())
    assert str(caught.value) == (
        "DynamicProduct.lanes: found BrgemmChunks(), wanted Lanes, except for symmetric blocks of Int(8, low=-127), "
        'multiplier="last" and scales="inside". Give Lanes, or those values and no others.'
    )
