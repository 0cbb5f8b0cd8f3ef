"""Accumulators that are too narrow: kernels against loops over Python integers."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from qfunc.numerics.sums import overflow as kernels
from qfunc.testing import integer_oracle as oracle

relaxed = settings(max_examples=40, deadline=None, derandomize=True)
ORDERS = (("channel", "position"), ("position", "channel"))


def drawn(shape: tuple[int, ...], largest: int, seed: int) -> Tensor:
    return torch.randint(-largest, largest + 1, shape, generator=torch.Generator().manual_seed(seed)).float()


def terms_of_conv(
    x: Tensor, w: Tensor, at: tuple[int, ...], output: int, stride: int, pad: int, gap: int, groups: int, order: tuple[str, ...]
) -> list[int]:
    """The products of one entry of a convolution, in the order in which a chip adds them; padding is 0."""
    inside, per_group = w.shape[1], w.shape[0] // groups
    loops = {"channel": [(c,) for c in range(inside)], "position": list(itertools.product(*map(range, w.shape[2:])))}
    found = []
    for outer, inner in itertools.product(loops[order[0]], loops[order[1]]):
        (channel,), position = (outer, inner) if order[0] == "channel" else (inner, outer)
        source = [a * stride + p * gap - pad for a, p in zip(at, position, strict=True)]
        inputs = all(0 <= s < n for s, n in zip(source, x.shape[1:], strict=True))
        value = x[(output // per_group * inside + channel, *source)] if inputs else 0
        found.append(int(value) * int(w[(output, channel, *position)]))
    return found


def terms_of_transposed(
    x: Tensor, w: Tensor, at: tuple[int, ...], output: int, stride: int, pad: int, gap: int, groups: int, order: tuple[str, ...]
) -> list[int]:
    """The products of one entry of a transposed convolution: y[i s - p + k d] += x[i] w[k]."""
    inside, per_group = w.shape[0] // groups, w.shape[1]
    loops = {"channel": [(c,) for c in range(inside)], "position": list(itertools.product(*map(range, w.shape[2:])))}
    found = []
    for outer, inner in itertools.product(loops[order[0]], loops[order[1]]):
        (channel,), position = (outer, inner) if order[0] == "channel" else (inner, outer)
        distance = [a + pad - p * gap for a, p in zip(at, position, strict=True)]
        source = [d // stride for d in distance]
        inputs = all(d % stride == 0 for d in distance) and all(0 <= s < n for s, n in zip(source, x.shape[1:], strict=True))
        c = output // per_group * inside + channel
        value = x[(c, *source)] if inputs else 0
        found.append(int(value) * int(w[(c, output % per_group, *position)]))
    return found


@relaxed
@given(
    st.integers(1, 2), st.integers(1, 3), st.integers(1, 2), st.integers(1, 2), st.integers(0, 2), st.integers(1, 2),
    st.sampled_from(ORDERS), st.booleans(), st.integers(1, 3), st.integers(8, 13), st.booleans(), st.integers(0, 999),
)  # fmt: skip
def test_convolutions_clamp_each_step(
    rank: int, inside: int, groups: int, stride: int, pad: int, gap: int, order: tuple[str, ...], bias_last: bool,
    products: int, bits: int, transposed: bool, seed: int,
) -> None:  # fmt: skip
    """All channels, then some, of convolutions and transposed ones; zero points; biases beyond the accumulator."""
    outputs, size, zero = 4, (5, 4)[:rank], 3
    shape = (inside * groups, outputs // groups) if transposed else (outputs, inside)
    x, w = drawn((2, inside * groups, *size), 60, seed), drawn((*shape, *(3, 2)[:rank]), 30, seed + 1)
    bias = drawn((outputs,), 2**bits, seed + 2)
    conv: Any = (F.conv_transpose1d, F.conv_transpose2d)[rank - 1] if transposed else (F.conv1d, F.conv2d)[rank - 1]
    chosen = torch.tensor([0, 1, 2, 3] if seed % 2 else [1, 3])
    rest = (chosen, bits, list(order), bias_last, products)
    if transposed:
        pad = min(pad, gap)
        acc = conv(x - zero, w, bias, stride, pad, 0, groups, gap)
        found = kernels.saturate_conv_transpose(acc, x, zero, w, bias, stride, pad, 0, groups, gap, *rest)
    else:
        pad = max(pad, gap)
        acc = conv(x - zero, w, bias, stride, pad, gap, groups)
        found = kernels.saturate_conv(acc, x, zero, w, bias, stride, pad, gap, *rest)
    terms_of = terms_of_transposed if transposed else terms_of_conv
    for n, o, at in itertools.product(range(2), range(outputs), itertools.product(*map(range, acc.shape[2:]))):
        terms = terms_of((x - zero)[n], w, at, o, stride, pad, gap, groups, order)
        b = int(bias[o])
        start, last = (0, b) if bias_last else (b, 0)
        wanted = oracle.saturating_sum(terms, bits, start, last, products) if o in chosen else sum(terms) + b
        assert int(found[(n, o, *at)]) == wanted, (n, o, at, terms)


@relaxed
@given(st.integers(1, 9), st.integers(1, 4), st.booleans(), st.integers(8, 13), st.integers(0, 999))
def test_linear_layers_and_products_clamp_each_step(size: int, products: int, last: bool, bits: int, seed: int) -> None:
    x, w, bias = drawn((3, size), 60, seed), drawn((4, size), 30, seed + 1), drawn((4,), 2**bits, seed + 2)
    acc, chosen = F.linear(x - 2, w, bias), torch.tensor([0, 2])
    found = kernels.saturate_linear(acc, x, 2, w, bias, chosen, bits, ["channel", "position"], last, products)
    between = kernels.saturate_matmul((x - 2) @ (w.T - 1), x, 2, w.T, 1, 62 * 31.0, bits, products)
    for n, o in itertools.product(range(3), range(4)):
        terms = [int(a) * int(b) for a, b in zip(x[n] - 2, w[o], strict=True)]
        b = int(bias[o])
        exact = oracle.saturating_sum(terms, bits, *((0, b) if last else (b, 0)), products)
        assert int(found[n, o]) == (exact if o in (0, 2) else sum(terms) + b)
        terms = [int(a) * int(b) for a, b in zip(x[n] - 2, w[o] - 1, strict=True)]
        assert int(between[n, o]) == oracle.saturating_sum(terms, bits, together=products)


@pytest.mark.parametrize(("left", "right"), [((4,), (4, 2)), ((3, 4), (4,)), ((2, 1, 3, 4), (5, 4, 2))])
def test_products_of_vectors_and_of_batches(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = drawn(left, 60, 0), drawn(right, 30, 1)
    acc = a @ b
    wide = kernels.saturate_matmul(acc, a, 0, b, 0, 60 * 30.0, 30, 1)
    forced = kernels.saturate_matmul(acc, a, 0, b, 0, 2.0**31, 30, 1)  # the steps, though no sum needs them
    assert torch.equal(wide, acc)
    assert torch.equal(forced, acc.double())


@relaxed
@given(st.integers(8, 40), st.lists(st.integers(-(2**45), 2**45), min_size=1, max_size=5))
def test_the_end_wraps_or_saturates(bits: int, sums: list[int]) -> None:
    acc = torch.tensor(sums, dtype=torch.float64)
    assert kernels.wrap(acc, bits).long().tolist() == [oracle.wrap(s, bits) for s in sums]
    assert kernels.saturate(acc, bits).long().tolist() == [oracle.saturate(s, bits) for s in sums]


@relaxed
@given(st.integers(1, 3), st.integers(-4, 0), st.integers(0, 4), st.integers(-50, 50), st.booleans(), st.integers(0, 999))
def test_the_range_is_that_of_all_inputs(size: int, low: int, high: int, bias: int, partial: bool, seed: int) -> None:
    """Over every input: the least and the largest sum; with `partial`, no sum of the first products is beyond them."""
    w = drawn((1, size), 5, seed)
    found = [int(v) for v in kernels.range_of_sums(w, low, high, torch.tensor([float(bias)]), partial)]
    every = [[int(v) * q for v, q in zip(w[0], x, strict=True)] for x in itertools.product(range(low, high + 1), repeat=size)]
    sums = [bias + sum(terms) for terms in every]
    if partial:
        sums += [sum(terms) for terms in every] + [bias + sum(t[:n]) for t in every for n in range(size)]
        assert found[0] <= min(sums)
        assert max(sums) <= found[1]
    else:
        assert found == [min(sums), max(sums)]
