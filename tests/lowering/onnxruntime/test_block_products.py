"""ONNX Runtime's MatMulNBits against `qfunc.numerics.sums.blocks`, bit for bit, on products that Hypothesis draws.

QFUNC_EXAMPLES=1000 python -m pytest -n 0 -s tests/lowering/onnxruntime/test_block_products.py
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from torch import Tensor

from qfunc.lowering.onnxruntime.session import Session
from qfunc.numerics.sums.blocks import block_product, quantize_rows
from qfunc.targets.onnxruntime.block_weights import packed
from tests.lowering.drawn_law import EXAMPLES
from tests.lowering.onnxruntime.test_float_kernels import WIDE

pytestmark = pytest.mark.skipif(not WIDE, reason="without AVX-512, MLAS adds in another order")

BLOCKS = {2: (32, 64, 128), 4: (16, 32, 64, 128, 256), 8: (16, 32, 64, 128, 256)}
Array = np.ndarray[Any, Any]


def runtime(x: Tensor, codes: Array, scale: Array, zeros: Array | None, bias: Array | None, bits: int, threads: int) -> Tensor:
    """The product of one MatMulNBits; codes [N, B, block]."""
    n, _, block = codes.shape
    arrays = {"codes": packed(codes, bits), "scales": scale.reshape(-1)}
    arrays |= {} if zeros is None else {"zeros": packed(zeros, bits)}
    names = ["x", *arrays, *([] if bias is None else [""] * (4 - len(arrays)) + ["bias"])]
    arrays |= {} if bias is None else {"bias": bias}
    node = helper.make_node(
        "MatMulNBits", names, ["y"], domain="com.microsoft", K=x.shape[-1], N=n, bits=bits, block_size=block, accuracy_level=4
    )
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in ("x", "y")]
    weights = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return torch.from_numpy(Session(model.SerializeToString(), threads=threads).run([x])[0])


def numbers(draw: np.random.Generator, shape: tuple[int, ...], kind: str) -> Array:
    """Normal numbers; ranges of 2^60 and rows of all magnitudes; few of them; ties; subnormals; float32's end."""
    x = draw.standard_normal(shape)
    changed = {
        "normal": lambda: x,
        "wide": lambda: x * np.exp2(draw.integers(-60, 60, shape)),
        "rows": lambda: x * np.exp2(draw.integers(-149, 0, (*shape[:-1], 1))),
        "sparse": lambda: x * (draw.random(shape) < 0.05),
        "ties": lambda: draw.integers(-254, 255, shape) / 2,
        "subnormal": lambda: x * 1e-40,
        "huge": lambda: x * 1e37,
    }[kind]()
    return np.asarray(changed, np.float32)


KINDS = ("normal", "wide", "rows", "sparse", "ties", "subnormal", "huge")


@settings(max_examples=EXAMPLES or 60, derandomize=not EXAMPLES, deadline=None, database=None)
@given(st.data())
def test_no_bit_of_a_product_differs(data: st.DataObject) -> None:
    """Every width and block, tiles and what is left over of rows, columns and K, zero points, biases, one and two threads."""
    draw = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1), label="seed"))
    bits = data.draw(st.sampled_from(sorted(BLOCKS)), label="bits")
    block = data.draw(st.sampled_from(BLOCKS[bits]), label="block")
    blocks = data.draw(st.integers(1, max(2, 1024 // block)), label="blocks")
    k = blocks * block - data.draw(st.sampled_from((0, 0, 0, 1, block // 2 + 1, block - 1)), label="left out of K")
    rows = data.draw(st.sampled_from(((1,), (2,), (3,), (4,), (5,), (16,), (2, 3), (1, 131))), label="rows")
    n = data.draw(st.one_of(st.integers(1, 40), st.sampled_from((128, 131, 258))), label="columns")
    kinds = st.sampled_from(KINDS)
    x = torch.from_numpy(numbers(draw, (*rows, k), data.draw(kinds, label="x")))
    scale = numbers(draw, (n, blocks), data.draw(kinds, label="scale"))
    codes = draw.integers(0, 2**bits, (n, blocks, block)).astype(np.uint8)
    zeros = draw.integers(0, 2**bits, (n, blocks)).astype(np.uint8) if data.draw(st.booleans(), label="zero points") else None
    bias = numbers(draw, (n,), data.draw(kinds, label="bias")) if data.draw(st.booleans(), label="has bias") else None
    z = torch.full((n, blocks), 2.0 ** (bits - 1)) if zeros is None else torch.from_numpy(zeros).float()

    found = runtime(x, codes, scale, zeros, bias, bits, data.draw(st.sampled_from((1, 2)), label="threads"))
    weight = torch.from_numpy(codes).reshape(n, -1)[:, :k].float()
    ours = block_product(x, weight, torch.from_numpy(scale), z, None if bias is None else torch.from_numpy(bias), block, bits)

    both = found.isnan() & ours.isnan()
    assert torch.equal(torch.where(both, 0, ours.view(torch.int32)), torch.where(both, 0, found.view(torch.int32)))


@pytest.mark.parametrize("bits", BLOCKS)
def test_products_of_scales_beyond_float32(bits: int) -> None:
    """All numbers are positive, so that the lanes of a result are infinite together, unless the register has others."""
    beyond = nans = 0
    for block in BLOCKS[bits]:
        for blocks, rows, n in ((1, 1, 6), (1, 5, 17), (2, 3, 17), (3, 131, 6), (6, 2, 21)):
            draw = np.random.default_rng(blocks)
            huge = np.where(draw.random((rows, blocks)) < 0.5, 1e37, 1.0)
            x = np.asarray(np.repeat(huge, block, 1) * (draw.random((rows, blocks * block)) + 0.1), np.float32)
            scale = np.asarray(
                np.where(draw.random((n, blocks)) < 0.3, 1e4, 1.0) * (draw.random((n, blocks)) + 0.1), np.float32
            )
            codes, zeros = draw.integers(1, 2**bits, (n, blocks, block)).astype(np.uint8), np.zeros((n, blocks), np.uint8)

            found = runtime(torch.from_numpy(x), codes, scale, zeros, None, bits, 1)
            weight, z = torch.from_numpy(codes).reshape(n, -1).float(), torch.zeros(n, blocks)
            ours = block_product(torch.from_numpy(x), weight, torch.from_numpy(scale), z, None, block, bits)

            assert torch.equal(ours.nan_to_num(nan=-1.0, posinf=-2.0), found.nan_to_num(nan=-1.0, posinf=-2.0))
            beyond, nans = beyond + int(found.isinf().sum()), nans + int(found.isnan().sum())
    assert beyond > 0
    assert nans > 0


def test_rows_are_quantized_by_two_quotients() -> None:
    """127 / m and m / 127 are rounded each by itself; halves go to even codes; a block of zeros has the scale 0."""
    largest = np.arange(1, 512, dtype=np.float32)[:, None] / 2
    x = np.concatenate([largest, largest * (np.arange(15, dtype=np.float32) + np.float32(0.5)) / 127], 1)
    x = np.concatenate([x, np.zeros((1, 16), np.float32)])

    codes, scales = quantize_rows(torch.from_numpy(x), 16)

    r = np.float32(127) / largest
    np.testing.assert_array_equal(codes[:-1, 0].numpy(), np.round(x[:-1] * r))
    np.testing.assert_array_equal(scales[:-1].numpy(), largest / np.float32(127))
    assert (codes[-1].count_nonzero(), scales[-1].item()) == (0, 0.0)
    # By the reciprocal of the scale, some of these ties are others.
    assert (np.round(x[:-1] * (1 / (largest / np.float32(127)))) != codes[:-1, 0].numpy()).any()


def test_a_largest_number_without_a_reciprocal_leaves_zeros() -> None:
    """127 / m is infinite for m below 127 / float32's end, and x times it is no code."""
    codes, scales = quantize_rows(torch.tensor([[2.0**-125, 2.0**-126, 0.0, 0.0]]), 4)

    assert codes.count_nonzero() == 0
    assert scales.item() == float(np.float32(2.0**-125) / np.float32(127))
