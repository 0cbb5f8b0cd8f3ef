"""Laws of the MinMax and Ema estimators."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from qfunc.errors import SpecError
from qfunc.estimators import Ema, LsqInit, MinMax, StdClip
from qfunc.specs import Int, PerBlock, PerChannel, PerTensor, PerToken, Scale, Scheme, ZeroPoint

SHAPE = (2, 3, 10)
VALUES = st.lists(st.floats(-(2.0**20), 2.0**20, width=32), min_size=1, max_size=6)
BATCHES = st.lists(VALUES, max_size=6)
AFFINE = Scheme(Int(8, signed=False), zero_point=ZeroPoint())


def fold(estimator: Any, batches: list[list[float]], scheme: Scheme = AFFINE) -> Any:
    state = estimator.init(scheme, torch.empty(1))
    for batch in batches:
        state = estimator.update(state, torch.tensor(batch), scheme)
    return state


def leaves(state: Any) -> list[Tensor]:
    return [state] if isinstance(state, Tensor) else [leaf for part in state for leaf in leaves(part)]


def exact_average(values: list[float], decay: Fraction) -> Fraction:
    average = Fraction(values[0])
    for value in values[1:]:
        average = decay * average + (1 - decay) * Fraction(value)
    return average


@given(BATCHES, BATCHES)
def test_minmax_merge_is_the_fold_of_both(a: list[list[float]], b: list[list[float]]) -> None:
    """merge(fold(A), fold(B)) == fold(A + B), bit for bit; init is the identity, also of no batches at all."""
    minmax = MinMax()

    assert minmax.merge(fold(minmax, a), fold(minmax, b)) == fold(minmax, a + b)
    assert minmax.merge(fold(minmax, []), fold(minmax, b)) == fold(minmax, b)


@given(BATCHES.filter(bool), st.randoms(use_true_random=False))
def test_minmax_does_not_depend_on_order(batches: list[list[float]], random: Any) -> None:
    """The qparams are those of the smallest and largest value, in whatever order they come."""
    shuffled = random.sample(batches, len(batches))
    state = fold(MinMax(), batches)

    assert MinMax().finalize(state, AFFINE) == MinMax().finalize(fold(MinMax(), shuffled), AFFINE)
    assert state.low.item() == min(min(b) for b in batches)
    assert state.high.item() == max(max(b) for b in batches)


@given(BATCHES.filter(bool), st.sampled_from((0.0, 0.5, 0.9, 0.99)))
def test_ema_follows_its_equation(batches: list[list[float]], decay: float) -> None:
    """low <- decay*low + (1-decay)*min(batch), from the first batch on, in exact fractions.

    One step makes at most four float32 roundings (decay, its complement, two products) and a sum, each 2^-24 of
    the largest magnitude; older errors decay, so n steps stay below 5 * n * 2^-24 of it.
    """
    state = fold(Ema(decay=decay), batches)

    largest = max(abs(v) for b in batches for v in b)
    for found, ends in ((state.value.low, [min(b) for b in batches]), (state.value.high, [max(b) for b in batches])):
        error = abs(Fraction(found.item()) - exact_average(ends, Fraction(decay)))
        assert error <= 5 * len(batches) * (Fraction(1, 2**24) * Fraction(largest) + Fraction(1, 2**150))
    assert int(state.batches) == len(batches)


@given(BATCHES, BATCHES, BATCHES)
def test_ema_merge_is_an_ordered_monoid(a: list[list[float]], b: list[list[float]], c: list[list[float]]) -> None:
    """merge(fold(A), fold(B)) == fold(A + B) up to float32's rounding, associative, with init as identity.

    The bound is that of two folds (above) plus one more step.
    """
    ema = Ema(decay=0.75)
    parts = [fold(ema, x) for x in (a, b, c)]
    whole = fold(ema, a + b + c)
    largest = max((abs(v) for x in (a, b, c) for batch in x for v in batch), default=0.0)
    bound = 5 * (2 * len(a + b + c) + 2) * 2.0**-24 * largest

    for merged in (ema.merge(ema.merge(*parts[:2]), parts[2]), ema.merge(parts[0], ema.merge(*parts[1:]))):
        for x, y in zip(leaves(merged), leaves(whole), strict=True):
            assert bool(x == y) or float((x - y).abs()) <= bound
    for merged in (ema.merge(fold(ema, []), parts[0]), ema.merge(parts[0], fold(ema, []))):
        assert leaves(merged) == leaves(parts[0])


def test_ema_merge_respects_the_order() -> None:
    """Later batches weigh more: swapping the parts changes the result."""
    ema = Ema(decay=0.5)
    early, late = fold(ema, [[1.0]]), fold(ema, [[9.0]])

    assert ema.merge(early, late).value.high.item() == 5.0
    assert ema.merge(fold(ema, [[1.0], [1.0]]), late).value.high.item() == 5.0
    assert ema.merge(late, fold(ema, [[1.0], [1.0]])).value.high.item() == 3.0


@pytest.mark.parametrize("estimator", [MinMax(), Ema(decay=0.5)])
@pytest.mark.parametrize("shared", [PerTensor(), PerChannel(0), PerChannel(-1), PerBlock(2, 5), PerToken()])
def test_shared_statistics_are_a_loop_over_the_blocks(estimator: Any, shared: Any) -> None:
    """Every channel's, block's or token's statistics are those of its own elements alone."""
    scheme = Scheme(Int(4), Scale(shared))
    xs = [torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    state = estimator.init(scheme, xs[0])
    for x in xs:
        state = estimator.update(state, x, scheme)
    found = estimator.finalize(state, scheme).scale

    pieces: dict[tuple[int, ...], list[list[float]]] = {}
    for x in xs:
        grouped: dict[tuple[int, ...], list[float]] = {}
        for i, j, k in torch.cartesian_prod(*[torch.arange(n) for n in SHAPE]).tolist():
            key = {PerTensor(): (), PerChannel(0): (i, 0, 0), PerChannel(-1): (0, 0, k), PerToken(): (i, j, 0)}.get(
                shared, (i, j, k // 5)
            )
            grouped.setdefault(key, []).append(x[i, j, k].item())
        for key, values in grouped.items():
            pieces.setdefault(key, []).append(values)
    for key, batches in pieces.items():
        expected = estimator.finalize(fold(estimator, batches, Scheme(Int(4))), Scheme(Int(4))).scale
        assert found[key].item() == expected.item()
    assert len(pieces) == found.numel()


@pytest.mark.parametrize("estimator", [MinMax(), Ema()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_empty_batches_change_nothing_and_states_are_never_mutated(estimator: Any, dtype: torch.dtype) -> None:
    """The state before an update keeps its bits; statistics are float32 whatever comes in."""
    state = estimator.update(estimator.init(AFFINE, torch.empty(1)), torch.tensor([-1.0, 3.0], dtype=dtype), AFFINE)
    before = [leaf.clone() for leaf in leaves(state)]
    same = estimator.update(state, torch.empty(0, 4, dtype=dtype), AFFINE)
    estimator.update(state, torch.tensor([-9.0, 9.0], dtype=dtype), AFFINE)
    estimator.merge(state, estimator.update(state, torch.tensor([7.0], dtype=dtype), AFFINE))

    assert leaves(same) == leaves(state) == before
    assert {leaf.dtype for leaf in leaves(state)} <= {torch.float32, torch.int64}


@pytest.mark.parametrize("estimator", [MinMax(), Ema()])
def test_nan_reaches_the_qparams(estimator: Any) -> None:
    """NaN is never dropped on the way, so that calibrate can refuse it by name."""
    state = fold(estimator, [[1.0], [float("nan"), 2.0], [3.0]])

    assert estimator.finalize(state, AFFINE).scale.isnan()


@given(BATCHES.filter(bool))
def test_ema_averages_the_ranges_of_batches_alone(batches: list[list[float]]) -> None:
    """Any inner estimator starts anew with every batch: the range of each, averaged in exact fractions.

    The bound is that of `test_ema_follows_its_equation`; among subnormal numbers each rounding is half of 2^-149.
    """
    inner = StdClip(k=1.0)
    ranges = [inner.range(fold(inner, [batch]), AFFINE) for batch in batches]
    state = fold(Ema(inner, decay=0.75), batches)

    largest = max(abs(Fraction(v)) for b in batches for v in b)
    bound = 5 * len(batches) * (Fraction(1, 2**24) * largest + Fraction(1, 2**150))
    for found, ends in ((state.value.low, [r.low for r in ranges]), (state.value.high, [r.high for r in ranges])):
        assert abs(Fraction(found.item()) - exact_average([e.item() for e in ends], Fraction(0.75))) <= bound
    assert Ema(inner).range(state, AFFINE) is state.value


def test_ema_merges_ranges_whose_difference_leaves_float32() -> None:
    """a.value - b.first = 6e38, times a small weight."""
    ema = Ema(decay=0.5)
    a, b = fold(ema, [[3e38]]), fold(ema, [[-3e38], [-3e38]])

    assert ema.merge(a, b).value.high.item() == pytest.approx(-1.5e38, rel=2.0**-22)  # a few float32 roundings


@pytest.mark.parametrize("layout", ["channels_last", "transposed", "strided", "expanded"])
@pytest.mark.parametrize("shared", [PerTensor(), PerChannel(1), PerChannel(-1), PerBlock(1, 2), PerToken()])
def test_the_layout_in_memory_does_not_matter(layout: str, shared: Any) -> None:
    x = torch.randn(3, 4, 6, 5, generator=torch.Generator().manual_seed(3))
    x = {
        "channels_last": x.to(memory_format=torch.channels_last), "transposed": x.transpose(0, 3),
        "strided": x[:, :, ::2], "expanded": x[:, :, :, :1].expand(3, 4, 6, 5),
    }[layout]  # fmt: skip
    scheme = Scheme(scale=Scale(shared))
    strided, dense = (MinMax().update(MinMax().init(scheme, y), y, scheme) for y in (x, x.contiguous().clone()))

    assert torch.equal(strided.low, dense.low)
    assert torch.equal(strided.high, dense.high)


@pytest.mark.parametrize(("inner", "shown"), [(LsqInit(), "LsqInit()"), (3, "3"), (None, "None")])
def test_an_inner_estimator_without_a_range_is_refused(inner: Any, shown: str) -> None:
    """The whole message."""
    with pytest.raises(SpecError) as caught:
        Ema(inner)
    wanted, do = "an estimator that offers range(state, scheme) -> Range", "Give one of them, such as MinMax() or StdClip()."
    assert str(caught.value) == f"Ema.inner: found {shown}, wanted {wanted}. {do}"


def test_a_class_is_no_inner_estimator() -> None:
    with pytest.raises(SpecError, match=r"^Ema.inner: found <class 'qfunc.estimators.minmax.MinMax'>, wanted "):
        Ema(MinMax)


@pytest.mark.parametrize("decay", [1.0, -0.1, float("nan"), "0.9", True])
def test_decay_outside_its_range_is_refused(decay: Any) -> None:
    """The whole message."""
    with pytest.raises(SpecError) as caught:
        Ema(decay=decay)
    assert str(caught.value) == f"Ema.decay: found {decay!r}, wanted a number in [0, 1). Give such a number."
