"""Attention to a cache in codes is ONNX Runtime's GroupQueryAttention, code by code and bit by bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime  # type: ignore[import-untyped]
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from torch import Tensor

from qfunc.numerics.written_codes import append_codes
from qfunc.targets.onnxruntime.caches import cached_attention_of_codes
from tests.lowering.onnxruntime.test_float_kernels import pytestmark as exact

pytestmark = exact
INPUTS = ("q", "k", "v", "old_k", "old_v", "last", "most", "k_scale", "v_scale")


def session(heads: int, groups: int, bits: int, threads: int, scores: bool = True) -> Any:
    """One GroupQueryAttention."""
    stored = TensorProto.INT8 if bits == 8 else TensorProto.UINT8
    kinds = [1, 1, 1, stored, stored, TensorProto.INT32, TensorProto.INT32, 1, 1]
    attributes = {"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR", "kv_cache_bit_width": bits}
    node = helper.make_node(
        "GroupQueryAttention", [*INPUTS[:7], "", "", "", "", "", *INPUTS[7:]], ["y", "new_k", "new_v", *["scores"] * scores],
        domain="com.microsoft", num_heads=heads, kv_num_heads=groups, qk_output=int(scores), **attributes,
    )  # fmt: skip
    inputs = [helper.make_tensor_value_info(n, kind, None) for n, kind in zip(INPUTS, kinds, strict=True)]
    outputs = [helper.make_tensor_value_info(n, k, None) for n, k in (("y", 1), ("new_k", stored), ("new_v", stored))]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], "one", inputs, outputs), opset_imports=opsets, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def rows(x: Tensor) -> Any:
    """[N, H, T, D] -> [N, T, H D]."""
    return x.transpose(1, 2).flatten(2).numpy()


def unpacked(codes: Any, bits: int) -> Tensor:
    """The codes of a cache of the operator."""
    if bits == 8:
        return torch.from_numpy(codes).float()
    return torch.from_numpy(np.stack([codes & 15, codes >> 4], -1).astype(np.float32)).flatten(-2) - 8


class Layer:
    """Drawn queries, keys and values, and a cache that is full of other codes."""

    def __init__(self, seed: int, bits: int, sizes: tuple[int, int, int, int, int]) -> None:
        rows_, groups, times, tokens, width = sizes
        draw, self.bits, self.groups = torch.Generator().manual_seed(seed), bits, groups
        self.heads = groups * times
        counts = (self.heads, groups, groups)
        self.q, self.k, self.v = (torch.randn(rows_, n, tokens, width, generator=draw) for n in counts)
        top = 2.0 ** (bits - 1) - 1
        self.scales = [float(t.abs().max() * f / top) for t, f in ((self.k, 0.7), (self.v, 1.0))]  # keys clip
        whole = torch.randint(-3, 4, self.k.shape, generator=draw) + 0.5
        self.k = torch.where(torch.rand(self.k.shape, generator=draw) < 0.1, whole * self.scales[0], self.k)  # ties
        self.length = tokens + 3
        old = torch.randint(0, 256, (rows_, groups, self.length, width * bits // 8), generator=draw)
        self.old = old.numpy().astype(np.uint8).view(np.int8 if bits == 8 else np.uint8)

    def of_runtime(self, first: int, last: int, old: tuple[Any, Any], threads: int = 1) -> tuple[Any, Any, Any]:
        """(result, keys, values) of the tokens from `first` to `last`."""
        given = [rows(t[:, :, first:last]) for t in (self.q, self.k, self.v)]
        lengths = [np.full(len(self.q), last - 1, np.int32), np.array([last], np.int32)]
        scales = [np.array([s], np.float32) for s in self.scales]
        feeds = dict(zip(INPUTS, [*given, *old, *lengths, *scales], strict=True))
        found = session(self.heads, self.groups, self.bits, threads).run(["y", "new_k", "new_v"], feeds)
        return found[0], found[1], found[2]

    def predicted(self) -> tuple[Tensor, Tensor, Tensor]:
        """The same of all tokens, by qfunc."""
        n, groups, tokens, width = self.k.shape
        places = torch.arange(tokens).expand(n, tokens)
        index = places[:, None, :, None].expand(n, groups, tokens, width)
        low, high = -(2 ** (self.bits - 1)), 2 ** (self.bits - 1) - 1
        caches = []
        for real, scale, unwritten in zip((self.k, self.v), self.scales, [0 if self.bits == 8 else low] * 2, strict=True):
            inverse = 1 / torch.tensor(scale)  # float32
            new = torch.round(real * inverse).clamp(low, high)
            caches.append(append_codes(unpacked(self.old, self.bits), 2, index, new, unwritten))
        keys, values = caches
        scales = (self.scales[0], self.scales[1])
        y = cached_attention_of_codes(self.q, keys, values, places, width**-0.5, scales, self.bits == 4)
        return y, keys, values


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**31),
    st.sampled_from([8, 4]),
    st.tuples(
        st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(1, 40), st.sampled_from([16, 32, 48, 64, 80, 128])
    ),
    st.sampled_from([1, 2]),
)
def test_codes_and_results_have_the_bits_of_the_operator(
    seed: int, bits: int, sizes: tuple[int, int, int, int, int], threads: int
) -> None:
    layer = Layer(seed, bits, sizes)
    y, keys, values = layer.predicted()
    found, new_keys, new_values = layer.of_runtime(0, sizes[3], (layer.old, layer.old), threads)
    assert torch.equal(unpacked(new_keys, bits), keys)
    assert torch.equal(unpacked(new_values, bits), values)
    np.testing.assert_array_equal(found, rows(y))


@pytest.mark.parametrize("bits", [8, 4])
def test_a_prompt_and_its_tokens_one_by_one_are_the_same(bits: int) -> None:
    """In the operator, whose result of the tokens is compared with that of `test_codes_and_results_...`."""
    layer = Layer(0, bits, (2, 2, 2, 9, 32))
    whole = layer.of_runtime(0, 9, (layer.old, layer.old))
    keys = values = layer.old
    results = []
    for token in range(9):
        y, keys, values = layer.of_runtime(token, token + 1, (keys, values))
        results.append(y)
    for a, b in zip(whole, (np.concatenate(results, 1), keys, values), strict=True):
        np.testing.assert_array_equal(a, b)


def test_without_its_scores_the_operator_adds_in_another_order() -> None:
    """Why files have a result that nothing reads."""
    layer = Layer(0, 8, (1, 2, 2, 60, 64))
    y, _, _ = layer.of_runtime(0, 60, (layer.old, layer.old))
    given = [rows(t) for t in (layer.q, layer.k, layer.v)]
    lengths = [np.full(1, 59, np.int32), np.array([60], np.int32)]
    feeds = dict(zip(INPUTS, [*given, layer.old, layer.old, *lengths, *(np.array([s], np.float32) for s in layer.scales)],
                     strict=True))  # fmt: skip
    other = session(layer.heads, 2, 8, 1, scores=False).run(["y"], feeds)[0]
    assert (other != y).any()
    np.testing.assert_allclose(other, y, rtol=0, atol=60 * 2.0**-22 * float(layer.v.abs().max()))  # of 60 products
