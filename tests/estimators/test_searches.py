"""Mse, Quantile, Percentile, Entropy and OrtEntropy against plain loops over the data, in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from ml_dtypes import float4_e2m1fn
from onnxruntime.quantization.calibrate import HistogramCollector
from torch import Tensor

from qfunc.estimators import Entropy, Mse, OrtEntropy, Percentile, PotMode, PowerOfTwo, Quantile
from qfunc.estimators.binning import Uniform
from qfunc.estimators.entropy import least_divergent
from qfunc.estimators.error import error_of
from qfunc.estimators.ort_entropy import least_divergent_ends
from qfunc.estimators.quantile import BINS
from qfunc.estimators.sketch import of_values
from qfunc.numerics import from_range
from qfunc.numerics.affine import fake_quantized_value
from qfunc.numerics.qparams import blocks, filled
from qfunc.specs import Int, Levels, Log, PerBlock, Scale, Scheme, ZeroPoint
from qfunc.specs.formats import E2M1, E4M3FN, MXFP4
from qfunc.testing.strategies_schemes import all_schemes

SMALL, LARGE = 501, 9000
DATA = {
    "normal": lambda g, n: torch.randn(n, generator=g),
    "skewed": lambda g, n: torch.randn(n, generator=g).exp() - 1,
    "outlier": lambda g, n: torch.cat((torch.randn(n - 1, generator=g), torch.tensor([1e4]))),
    "relu": lambda g, n: torch.randn(n, generator=g).relu(),
}
SCHEMES = {
    "int8": Scheme(),
    "int4": Scheme(Int(4, low=-7)),
    "uint4": Scheme(Int(4, signed=False), zero_point=ZeroPoint()),
    "floor": Scheme(Int(4), rounding="floor"),
    "pow2": Scheme(Int(4), Scale(power_of_two=True)),
}


def data(name: str, n: int) -> Tensor:
    return DATA[name](torch.Generator().manual_seed(n), n)


def seen(estimator: Any, x: Tensor, scheme: Scheme = Scheme()) -> Any:
    return estimator.update(estimator.init(scheme, x), x, scheme)


def scale_and_zero(low: float, high: float, scheme: Scheme) -> tuple[float, float]:
    """The plain formulas of these few schemes."""
    fmt = scheme.format
    assert isinstance(fmt, Int)
    if scheme.zero_point is not None:
        scale = float(np.float32((high - low) / (fmt.qmax - fmt.qmin)))
        return scale, float(np.clip(np.round(fmt.qmin - low / scale), fmt.qmin, fmt.qmax))
    scale = max(-low, high) / fmt.qmax
    return (2.0 ** math.ceil(math.log2(scale)) if scheme.scale.power_of_two else float(np.float32(scale))), 0.0


def error(x: Tensor, low: float, high: float, scheme: Scheme, p: float) -> tuple[float, float]:
    """(sum |x_hat - x|^p, the largest difference that moving each x within its bin could make)."""
    scale, zero = scale_and_zero(low, high, scheme)
    fmt = scheme.format
    assert isinstance(fmt, Int)
    u = x.double().numpy() / scale

    def term(u: Any) -> Any:
        rounded = np.floor(u) if scheme.rounding == "floor" else np.round(u)
        return np.abs(np.clip(rounded + zero, fmt.qmin, fmt.qmax) - zero - u)

    # Inside, |u - q| changes by at most the bin's width (1/128 of u, or 2^-19 of max|x|) and never exceeds 1/2
    # (1 for floor); where it clips it has slope 1 and no such end.
    width = np.maximum(np.abs(u) / 128, float(x.abs().max()) * 2.0**-19 / scale)
    end = 1.0 if scheme.rounding == "floor" else 0.5
    clips = (np.round(u + np.sign(u) * width) + zero > fmt.qmax) | (np.round(u + np.sign(u) * width) + zero < fmt.qmin)
    most = np.where(clips, term(u) + width, np.minimum(term(u) + width, end))
    least = np.maximum(term(u) - width, 0)
    if scheme.rounding == "floor":
        least = np.where(term(u) + width >= 1, 0, least)
        most = np.where(term(u) - width <= 0, np.where(clips, np.maximum(most, 1), 1), most)
    return float((term(u) ** p).sum() * scale**p), float((most**p - least**p).sum() * scale**p)


@pytest.mark.parametrize("kind", DATA)
@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("p", [2.0, 2.4])
@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_mse_is_the_exhaustive_search(kind: str, name: str, p: float, size: int) -> None:
    """Every candidate's error lies within its derived bound (0 for values), and the choice is at most 1 % worse."""
    x, scheme, estimator = data(kind, size), SCHEMES[name], Mse(p=p, apart=False)
    state, low, high = seen(estimator, x, scheme), min(float(x.min()), 0.0), max(float(x.max()), 0.0)
    steps = [1 - 0.01 * i for i in range(95)]
    ends = [torch.tensor([end * f for f in steps], dtype=torch.float32) for end in (low, high)]
    costs = error_of(state, BINS, scheme, p)(*ends) * max(-low, high) ** p
    exact = []
    for a, b, found in zip(*(e.tolist() for e in ends), costs.tolist(), strict=True):
        wanted, bound = error(x, a, b, scheme, p)
        exact.append(wanted)
        # float32 codes of values: the error, up to the whole range, is rounded at 2^-24 of a value
        rounding = wanted * 1e-4 + size * (2.0**-22 * max(-low, high)) ** p
        if scheme.rounding == "floor":
            # and where x/s is an integer but for its rounding, floor gives one of two codes
            u = x.double() / scale_and_zero(a, b, scheme)[0]
            rounding += int(((u - u.round()).abs() <= u.abs() * 2.0**-22).sum()) * scale_and_zero(a, b, scheme)[0] ** p
        slack = rounding + (bound if size > 8192 else 0)
        # inf: what this one clips costs more than the best before it does altogether
        assert abs(found - wanted) <= slack or (found == np.inf and wanted + slack >= costs.min())
    chosen = error(x, *(t.item() for t in estimator.range(state, scheme)), scheme, p)[0]
    assert chosen <= 1.01 * min(exact)


@pytest.mark.parametrize("kind", DATA)
@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_ends_apart_are_never_worse(kind: str, size: int) -> None:
    """Searching each end again lowers the error or keeps it (1e-3: of the histogram's sum); on skewed data much."""
    x, scheme = data(kind, size), SCHEMES["uint4"]
    both = [
        error(x, *(t.item() for t in e.range(seen(e, x, scheme), scheme)), scheme, 2.0)[0] for e in (Mse(), Mse(apart=False))
    ]

    assert both[0] <= both[1] * 1.001


@pytest.mark.parametrize("fmt", [E4M3FN, Log(), Levels((-1.0, -0.3, 0.0, 0.2, 1.0))])
def test_mse_of_other_formats(fmt: Any) -> None:
    """Bins' middles choose what all values choose, up to 1 % of the error, by the numerics of the format."""
    x, scheme = data("normal", LARGE), Scheme(fmt)
    steps = (1 - 0.01 * torch.arange(95.0)) * x.abs().max()
    exact = error_of(seen(Mse(), x, scheme)._replace(values=x), BINS, scheme, 2.0)
    costs = exact(-steps, steps)
    chosen = Mse().range(seen(Mse(), x, scheme), scheme)

    assert float(exact(-chosen.high.view(1), chosen.high.view(1))) <= 1.01 * float(costs.min()) + 1e-12


@settings(deadline=None, max_examples=300)
@given(all_schemes(shape=(3, 12), max_bits=8), st.integers(0, 2**16), st.floats(0.3, 1.0))
def test_the_error_of_a_range_is_that_of_its_qparams(scheme: Scheme, seed: int, factor: float) -> None:
    """For every scheme, blocks included: what the numerics compute with the scale that the hardware has for the range."""
    x = torch.randn(3, 12, generator=torch.Generator().manual_seed(seed))
    state = seen(Mse(), x, scheme)
    low, high = (factor * end for end in (state.low.clamp(max=0), state.high.clamp(min=0)))
    found = error_of(state, BINS, scheme, 2.0)(low.unsqueeze(0), high.unsqueeze(0)).squeeze(0)
    scheme = evolve(scheme, rounding="half_even" if scheme.rounding == "stochastic" else scheme.rounding)

    x = filled(x, scheme)  # where no code is 0, the zeros after a partial block count
    difference = fake_quantized_value(x, from_range(low, high, scheme), scheme).double() - x.double()
    unit = torch.maximum(-state.low, state.high).double()
    view, axes = blocks(difference, scheme)
    wanted = view.square().sum(axes).reshape(unit.shape) / torch.where(unit > 0, unit, 1.0).square()

    # Where a scale or its product with an outer one is rounded to float32 in another order, values differ by 2^-22 of them.
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)


def error_in_fours(x: Any, scale: Any) -> Any:
    """sum (x_hat - x)^2 of blocks x [blocks, size] in E2M1, for scales [..., blocks], in float64."""
    ratio = np.clip(x / scale[..., None], -6, 6).astype(np.float32)
    return ((ratio.astype(float4_e2m1fn).astype(np.float64) * scale[..., None] - x) ** 2).sum(-1)


def test_wider_ranges_find_the_best_power_of_two() -> None:
    """OCP's scale of the range clips; of all powers of two within the reach of the factors, the result is the best."""
    x = data("normal", 32 * 300).reshape(300, 32)
    estimator = Mse(widest=2.0)
    found = estimator.finalize(seen(estimator, x, MXFP4), MXFP4).scale.squeeze(1).double().numpy()
    of_the_range = 2.0 ** (np.frexp(x.abs().amax(1).double().numpy())[1] - 3)
    errors = error_in_fours(x.double().numpy(), np.stack([of_the_range * 2.0**k for k in (1, 0, -1, -2, -3)]))

    np.testing.assert_array_equal(error_in_fours(x.double().numpy(), found), errors.min(0))
    assert (found > of_the_range).mean() > 0.1  # no factor up to 1 finds these


def test_wider_ranges_find_the_better_of_four_and_six() -> None:
    """The largest value of a block may be nearest to 4 instead of 6; the error is at most that of both, and often smaller."""
    x, scheme = data("normal", 16 * 300).reshape(300, 16), Scheme(E2M1, Scale(PerBlock(-1, 16)))
    narrow, wide = (
        error_in_fours(x.double().numpy(), e.finalize(seen(e, x, scheme), scheme).scale.squeeze(1).double().numpy())
        for e in (Mse(candidates=95), Mse(candidates=145, widest=1.5))
    )
    at_four = error_in_fours(x.double().numpy(), (x.abs().amax(1).float() / 4).double().numpy())

    # Float32 scales of factors in steps of 1 %: 1.5 and 1 are among them, up to half a unit in the last place of the range.
    assert (wide <= np.minimum(narrow, at_four) * (1 + 1e-5)).all()
    assert (wide < narrow).mean() > 0.3


@pytest.mark.parametrize("size", [1, 7, SMALL, LARGE])
@pytest.mark.parametrize("share", [0.6, 0.999, 0.9999, 1.0])
@pytest.mark.parametrize("kind", DATA)
def test_quantiles_are_order_statistics(size: int, share: float, kind: str) -> None:
    """Equal to NumPy's sorted data up to 8192 values, less than a bin (1/128, or 2^-19 of the largest) away beyond."""
    x = data(kind, size + 1)[:size] if kind != "outlier" else data(kind, max(size, 2))[-size:]
    quantile, percentile = Quantile(share), Percentile(100 - 99 * share, 100 * share)
    values = np.sort(x.numpy().astype(np.float64))
    bound = np.sort(np.abs(values))[max(1, math.ceil(share * size - 1e-6)) - 1]
    first, last = (max(1, math.ceil(s * size - 1e-6)) - 1 for s in (percentile.low / 100, percentile.high / 100))

    found = quantile.range(seen(quantile, x), Scheme())
    ends = percentile.range(seen(percentile, x), Scheme())
    checks = ((found.low, max(values[0], -bound)), (found.high, min(values[-1], bound)), (ends.low, values[first]))
    for mine, wanted in (*checks, (ends.high, values[last])):
        slack = 0.0 if size <= 8192 else abs(wanted) / 128 + np.abs(values).max() * 2.0**-19
        assert abs(mine.item() - wanted) <= slack


def naive_divergence(counts: np.ndarray, i: int, groups: int) -> float:
    """pytorch-quantization's loop, from its description, with scipy's sum of p log(p/q)."""
    bins = counts.astype(np.float64)
    bins[0] = bins[1]
    place = np.digitize(np.arange(i), np.linspace(0, i, groups + 1)) - 1
    q = np.zeros(i)
    for group in range(groups):
        mine = (place == group) & (bins[:i] != 0)
        q[mine] = bins[:i][mine].sum() / max(1, mine.sum())
    p = bins[:i].copy()
    p[-1] += bins[i:].sum()
    if q.sum() == 0:
        return math.inf
    p, q = p / p.sum(), q / q.sum()
    if (q[p > 0] == 0).any():
        return math.inf
    return float((p[p > 0] * np.log(p[p > 0] / q[p > 0])).sum())


@pytest.mark.parametrize("kind", ["normal", "skewed", "relu"])
@pytest.mark.parametrize("groups", [8, 128, 256])
def test_entropy_is_tensorrts_loop(kind: str, groups: int) -> None:
    """The last of the smallest divergences (within 1e-10, the rounding of two ways to sum) of every i from 128 on."""
    counts = np.histogram(np.abs(data(kind, 4000).numpy()), bins=300)[0]
    naive = [naive_divergence(counts, i, groups) for i in range(128, 301)]
    wanted = 128 + max(i for i, d in enumerate(naive) if d <= min(naive) + 1e-11)

    found = int(least_divergent(torch.tensor(np.pad(counts, (0, 212))), groups))
    assert found == wanted
    assert naive[found - 128] < math.inf


def test_entropy_clips_at_the_edge_that_it_chose() -> None:
    """And no further than the data."""
    x = torch.linspace(-0.999, 0.999, 9999).atanh() ** 3
    for signed, groups in ((True, 128), (False, 256)):
        scheme = Scheme(Int(8, signed))
        counts = np.bincount((x.abs().double() * 64).long().numpy(), minlength=4096)  # 54.9 < 64 = 4096 / 64
        edge = int(least_divergent(torch.tensor(counts), groups)) / 64
        found = Entropy().range(seen(Entropy(), x, scheme), scheme)
        assert (found.low.item(), found.high.item()) == (-edge, edge)
        assert edge < 54
    ones = torch.ones(5000)
    assert Entropy().range(seen(Entropy(), ones), Scheme()).high == 1
    assert Entropy().range(seen(Entropy(), 0 * ones), Scheme()).high == 0


@pytest.mark.parametrize("kind", DATA)
@pytest.mark.parametrize("groups", [16, 128])
def test_ort_entropy_is_onnx_runtimes(kind: str, groups: int) -> None:
    """The package's own search on the same bins; where the two differ, its float32 divergences are nearly equal."""
    x, bins = data(kind, 9000), 512
    estimator = OrtEntropy(bins, groups)
    edges, counts = (t.numpy() for t in of_values(seen(estimator, x), Uniform(256)))
    used = np.nonzero(counts + counts[::-1])[0]
    edges, counts = edges[used[0] : used[-1] + 2], counts[used[0] : used[-1] + 1]
    collector = HistogramCollector("entropy", True, bins, groups, 99.9, "same")
    theirs = collector.get_entropy_threshold((counts, edges, edges[0], edges[-1], edges[-1]), groups)
    first, last = least_divergent_ends(torch.tensor(counts), groups).tolist()

    assert (edges[first], edges[last]) == theirs
    found = estimator.range(seen(estimator, x), Scheme())
    assert found.low.item() == max(theirs[0], x.min().item())
    assert found.high.item() == min(theirs[1], x.max().item())


@pytest.mark.parametrize(("rounding", "wanted"), [("ceil", 0.25), ("floor", 0.125), ("half_even", 0.25)])
def test_power_of_two_rounds_the_inner_scale(rounding: str, wanted: float) -> None:
    """25.4 / 127 = 0.2 lies between 1/8 and 1/4, nearer to 1/4 in its logarithm."""
    x = torch.tensor([25.4, -1.0])
    estimator = PowerOfTwo(rounding=rounding)

    assert estimator.finalize(seen(estimator, x), Scheme()).scale == wanted
    assert PowerOfTwo(finest=1).finalize(seen(estimator, x), Scheme()).scale == 0.5


def vitis(x: Tensor) -> int:
    """The e of one batch, from the description: int8, half to even."""
    values = x.double().numpy()
    first = math.floor(math.log2(1 / max(values.min() / -128, values.max() / 127)))
    errors = []
    for e in range(first, first + 5):
        e = min(e, 12)
        errors.append(((np.clip(np.round(values * 2.0**e), -128, 127) / 2.0**e - values) ** 2).sum())
    return min(first + int(np.argmin(errors)), 12)


def test_pot_mode_is_the_mode_of_the_batches() -> None:
    """Votes add in any order; the most frequent e wins, the coarsest of equally frequent ones."""
    g = torch.Generator().manual_seed(3)
    batches = [torch.randn(500, generator=g) * s + t for s in (0.1, 1, 1, 3, 9, 1e-4) for t in (0, -1)]
    batches += [torch.tensor([-1.0, 0.5]), torch.tensor([-128.0, 3.0])]
    mode, empty = PotMode(), PotMode().init(Scheme(), torch.empty(1))
    state, votes = empty, []
    for x in batches:
        state = mode.merge(mode.update(empty, x, Scheme()), state)
        votes.append(vitis(x))
        assert mode.finalize(mode.update(empty, x, Scheme()), Scheme()).scale == 2.0 ** -votes[-1]
        wanted = min(votes, key=lambda e: (-votes.count(e), e))
        assert mode.finalize(state, Scheme()).scale == 2.0**-wanted
    assert int(state.votes.sum()) == len(batches)


@pytest.mark.parametrize("p", [2.0, 2.4])
def test_mse_of_a_signed_scale_is_the_exhaustive_search(p: float) -> None:
    """Beyond the elements that are kept, where bins are integrated over a scale that is negative."""
    scheme = Scheme(Int(4), Scale(signed=True, divisor="-qmin"))
    x = data("normal", LARGE).clone()
    x[0] = 20.0
    found = Mse(p).finalize(seen(Mse(p), x, scheme), scheme).scale.item()
    assert found < 0

    def cost(scale: float) -> float:
        values = x.double().numpy()
        return float((np.abs(np.clip(np.round(values / scale), -8, 7) * scale - values) ** p).sum())

    best = min(cost(-20.0 * (1 - i / 100) / 8) for i in range(95))
    assert cost(found) <= 1.01 * best  # bins at most 1/128 of their values wide
