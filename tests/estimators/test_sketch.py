"""The shared statistics: exact counts whose bins, order and granularity never depend on how the data came."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from qfunc.errors import SpecError
from qfunc.estimators import Ema, Entropy, Mse, OrtEntropy, Percentile, PotMode, PowerOfTwo, Quantile
from qfunc.estimators.binning import LogLinear, Uniform
from qfunc.estimators.sketch import MAX_VALUES, Sketch, counted, empty, merged, of_magnitudes, of_values, updated
from qfunc.specs import Int, PerBlock, PerChannel, Scale, Scheme

BINS = (LogLinear(), Uniform(512))
SIZES = st.sampled_from((1, 700, 3000, 5000))
BATCHES = st.lists(st.tuples(SIZES, st.integers(-140, 120), st.integers(0, 99)), max_size=3)


def batch(size: int, exponent: int, seed: int) -> Tensor:
    """Values around 2^exponent, with zeros of both signs."""
    x = torch.randn(size, generator=torch.Generator().manual_seed(seed)) * 2.0**exponent
    x[::7], x[3::7] = 0.0, -0.0
    return x


def fold(batches: Any, bins: Any, scheme: Scheme = Scheme()) -> Sketch:
    state = empty(scheme, torch.empty(1))
    for b in batches:
        state = updated(state, batch(*b), scheme, bins)
    return state


@pytest.mark.parametrize("bins", BINS)
@settings(deadline=None, max_examples=12)
@given(a=BATCHES, b=BATCHES, c=BATCHES)
@example(a=[(5000, 0, 1)], b=[(5000, 3, 2)], c=[(5000, 9, 3)])
def test_merge_is_exact_and_associative(bins: Any, a: Any, b: Any, c: Any) -> None:
    """merge(fold(A), fold(B)) == fold(A + B), bit for bit, across the change from values to counts; init is its identity."""
    parts, whole = [fold(x, bins) for x in (a, b, c)], fold(a + b + c, bins)

    left = merged(merged(parts[0], parts[1], bins), parts[2], bins)
    right = merged(parts[0], merged(parts[1], parts[2], bins), bins)
    for state in (left, right, merged(whole, fold([], bins), bins), merged(fold([], bins), whole, bins)):
        assert all(x.equal(y) for x, y in zip(state, whole, strict=True))


@pytest.mark.parametrize("bins", BINS)
@settings(deadline=None, max_examples=12)
@given(batches=BATCHES.filter(bool), random=st.randoms(use_true_random=False))
@example(batches=[(5000, 0, 1), (5000, 3, 2), (5000, 9, 3)], random=Random(4))  # in this order, in which the window moves twice
def test_counts_are_those_of_a_plain_histogram(bins: Any, batches: Any, random: Any) -> None:
    """NumPy's count between the same edges, of each sign, in any order of the batches."""
    state = fold(random.sample(batches, len(batches)), bins)
    x = torch.cat([batch(*b) for b in batches]).double().numpy()
    edges, counts = of_magnitudes(state, bins)
    line, ordered = of_values(state, bins)

    assert (np.diff(edges.numpy()) >= 0).all()
    assert edges[-1] > np.abs(x).max()
    for found, wanted in ((counts, np.abs(x)), (counted(state, state.low, state.high, bins)[1], x[~np.signbit(x)])):
        place = np.searchsorted(edges.numpy(), wanted, side="right") - 1
        assert found.tolist() == np.bincount(place, minlength=bins.size).tolist()
    assert ordered.sum() == len(x)
    assert line.equal(-line.flip(0))
    assert ordered[len(ordered) // 2 :].tolist() == found.tolist()
    assert (state.low.item(), state.high.item()) == (x.min(), x.max())


def test_bins_are_as_narrow_as_they_say() -> None:
    """128 an octave over 20 octaves, at every exponent of float32, the subnormal ones included."""
    for largest in (2.0**-149, 2.0**-120, 1.0, 3.0, torch.finfo(torch.float32).max):
        level = LogLinear().level(torch.tensor(largest))
        edges = LogLinear().edges(level)
        assert LogLinear().find(edges[1:-1].float(), level).tolist() == list(range(1, LogLinear().size))
        normal = edges[1:] >= 2.0**-126
        ratio = edges[1:].diff() / edges[1:-1]
        assert (ratio[normal[:-1]] <= 1 / 128).all()
        assert edges[0] == 0
        assert edges[-1] > largest
        assert largest < 2.0**-106 or edges[1] <= largest * 2.0**-19
    for exponent in (-90, 0, 127):
        largest = torch.tensor(1.5 * 2.0**exponent)
        assert Uniform(512).edges(Uniform(512).level(largest))[-1] == 2.0 ** (exponent + 1)


@pytest.mark.parametrize("bins", BINS)
@pytest.mark.parametrize(
    ("shared", "length"),
    [(s, n) for s, long in ((PerChannel(0), 3001), (PerChannel(2), 3001), (PerBlock(1, 2), 301)) for n in (5, long)],
)  # 3001 of 4 rows are more than a block keeps
def test_shared_counts_are_a_loop_over_the_blocks(bins: Any, shared: Any, length: int) -> None:
    """Many blocks are counted in their windows, one block by its patterns: the same counts."""
    scheme = Scheme(Int(8), Scale(shared))
    x = torch.randn(length, 4, 3, generator=torch.Generator().manual_seed(1)).transpose(0, 2)  # [3, 4, length]
    x = x * torch.tensor([1.0, 1e-6, 1e30]).view(3, 1, 1)
    if shared == PerChannel(2):
        x = x.transpose(0, 2)
    state = updated(empty(scheme, x), x, scheme, bins)
    state = updated(state, 3 * x, scheme, bins)
    if shared == PerBlock(1, 2):
        pieces = {(i, j, k): x[i, 2 * j : 2 * j + 2, k] for i in range(3) for j in range(2) for k in (0, length - 1)}
    elif shared == PerChannel(0):
        pieces = {(i, 0, 0): x[i] for i in range(3)}
    else:
        pieces = {(0, 0, k): x[..., k] for k in range(3)}
    for place, piece in pieces.items():
        alone = updated(empty(Scheme(), piece), piece.reshape(-1), Scheme(), bins)
        alone = updated(alone, 3 * piece.reshape(-1), Scheme(), bins)
        assert state.low[place] == alone.low
        assert counted(state, state.low, state.high, bins)[place].equal(counted(alone, alone.low, alone.high, bins))
        assert state.values[place].sort().values.equal(alone.values.sort().values)


@pytest.mark.parametrize("bins", BINS)
def test_memory_does_not_grow(bins: Any) -> None:
    """The state has one of two sizes at most, whatever the values and the number of batches."""
    sizes = set()
    for count in (1, 5, 40):
        state = fold([(1000, 7 * i % 90, i) for i in range(count)], bins)
        assert state.values.shape[-1] <= MAX_VALUES
        sizes.add((state.values.shape[-1] > 0, state.counts.numel()))
    assert sizes == {(True, 0), (False, 2 * bins.size)}


def test_nan_and_infinity_stay_visible() -> None:
    """In the extremes, and in every range: finite statistics never hide them."""
    for bad in (torch.nan, torch.inf, -torch.inf):
        for size in (5, 9000):
            x = torch.randn(size)
            x[size // 2] = bad
            for estimator in (Quantile(0.5), Percentile(10, 90), Mse(), Entropy(), OrtEntropy(), PotMode()):
                state = estimator.update(estimator.init(Scheme(), x), x, Scheme())
                state = estimator.update(state, torch.ones(5000), Scheme())
                assert not all(bool(t.isfinite().all()) for t in state if t.is_floating_point())
                found = estimator.range(state, Scheme())
                assert not bool(found.low.isfinite() & found.high.isfinite())


REFUSED = (
    (lambda: Quantile(0.0), "Quantile.q: found 0.0, wanted a number in (0, 1]. Give such a number."),
    (lambda: Percentile(50, 20),
     "Percentile.low, high: found (50, 20), wanted 0 <= low < high <= 100 percent. Give such numbers."),
    (lambda: Mse(p=0), "Mse.p: found 0, wanted a number in (0, 16]. Give 2.0 or another norm."),
    (lambda: Mse(candidates=0), "Mse.candidates: found 0, wanted an int in [1, 10000]. Give such a number."),
    (lambda: Mse(apart=1), "Mse.apart: found 1, wanted True or False. Give one of them."),  # type: ignore[arg-type]
    (lambda: Entropy(1000), "Entropy.bins: found 1000, wanted a power of two in [256, 65536]. Give 4096 or another one."),
    (lambda: OrtEntropy(groups=3), "OrtEntropy.groups: found 3, wanted an even int in [2, 65536]. Give 128 or another one."),
    (lambda: PowerOfTwo(3), "PowerOfTwo.inner: found 3, wanted an estimator. Give an estimator such as MinMax()."),
    *((lambda inner=inner: PowerOfTwo(inner), f"PowerOfTwo.inner: found {inner!r}, wanted an estimator whose scales are "
       "not powers of two already. Use it without PowerOfTwo.") for inner in (PotMode(), PowerOfTwo(), Ema(PotMode()))),
    (lambda: PowerOfTwo(rounding="up"),
     "PowerOfTwo.rounding: found 'up', wanted one of ceil, floor, half_even. Give one of them; "
     "PowerOfTwo(Mse(), finest=12) searches for the power of two with the smallest error."),
    (lambda: PotMode(None), "PotMode.finest: found None, wanted an int in [-127, 126]. Give the largest e of a scale 2^-e."),  # type: ignore[arg-type]
)  # fmt: skip


@pytest.mark.parametrize(("made", "message"), REFUSED)
def test_bad_fields_are_refused(made: Any, message: str) -> None:
    """The whole message."""
    with pytest.raises(SpecError) as caught:
        made()
    assert str(caught.value) == message
