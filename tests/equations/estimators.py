"""The table's rows of estimators: each against its formula in plain Python numbers."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from onnxruntime.quantization.calibrate import HistogramCollector

from qfunc import estimators as e
from qfunc.estimators.binning import Uniform
from qfunc.estimators.sketch import of_values
from qfunc.specs import Int, Scheme
from qfunc.testing import oracle
from tests.equations.row import S4, S8, U4, U8, Row, draws
from tests.estimators.test_searches import DATA, data, naive_divergence

Batches = list[list[float]]
Ends = Callable[[Batches], tuple[float, float]]
SCHEMES = (U8, U4, S8, S4)


def folded(estimator: Any, batches: list[torch.Tensor], scheme: Scheme) -> Any:
    """The qparams after all batches."""
    state = estimator.init(scheme, batches[0])
    for x in batches:
        state = estimator.update(state, x, scheme)
    return estimator.finalize(state, scheme)


def qparams_of(low: float, high: float, scheme: Scheme) -> tuple[float, int]:
    """The exact scale, in float32, and zero point of a range."""
    fmt, symmetric = scheme.format, scheme.zero_point is None
    assert isinstance(fmt, Int)
    scale = oracle.scale_of_range(low, high, fmt.qmin, fmt.qmax, symmetric=symmetric)
    scale = oracle.float32(scale)
    return float(scale), 0 if symmetric else oracle.zero_of_range(low, scale, fmt.qmin, fmt.qmax)


def same(found: Any, wanted: tuple[float, int], relative: float) -> None:
    """One scale within a relative bound, and the zero point, which a scale that near may move by one code."""
    assert abs(found.scale.item() - wanted[0]) <= relative * wanted[0], (found, wanted)
    assert abs(found.zero_point.item() - wanted[1]) <= (relative > 0), (found, wanted)


def by_range(estimator: Any, ends: Ends, relative: float = 0.0, count: int = 60) -> Callable[[], int]:
    """A check of an estimator whose range is `ends(batches)`; every number of `ends` is a float64."""

    def check() -> int:
        compared = 0
        for batches in draws(count):
            for scheme in SCHEMES:
                wanted = qparams_of(*ends([x.tolist() for x in batches]), scheme)
                same(folded(estimator, batches, scheme), wanted, relative)
                compared += 2
        return compared

    return check


def flat(batches: Batches) -> list[float]:
    """All values of all batches."""
    return [v for batch in batches for v in batch]


def averaged(batches: Batches, decay: float = 0.9) -> tuple[float, float]:
    """MQBench's moving average of both ends."""
    low, high = min(batches[0]), max(batches[0])
    for batch in batches[1:]:
        low, high = decay * low + (1 - decay) * min(batch), decay * high + (1 - decay) * max(batch)
    return low, high


def within_k_std(batches: Batches, k: float = 1.5) -> tuple[float, float]:
    """mean +- k std, inside the data."""
    values = flat(batches)
    mean, std = statistics.fmean(values), statistics.stdev(values)
    return max(min(values), mean - k * std), min(max(values), mean + k * std)


def one_sided(batches: Batches, q: float = 0.9) -> tuple[float, float]:
    """The quantile of |x| by sorting, which the library never does."""
    values = flat(batches)
    clip = sorted(abs(v) for v in values)[math.ceil(Fraction("0.9") * len(values)) - 1]
    return max(min(values), -clip), min(max(values), clip)


def two_sided(batches: Batches) -> tuple[float, float]:
    """The 5th and the 95th percentile by sorting."""
    values = sorted(flat(batches))
    first, last = (max(1, math.ceil(Fraction(share, 100) * len(values))) - 1 for share in (5, 95))
    return values[first], values[last]


def of_scale(estimator: Any, scale_of: Callable[[list[float], Int], float]) -> Callable[[], int]:
    """A check of an estimator that gives a scale itself."""

    def check() -> int:
        compared = 0
        for batches in draws(60):
            for scheme in (S8, S4):
                fmt = scheme.format
                assert isinstance(fmt, Int)
                wanted = scale_of(flat([x.tolist() for x in batches]), fmt)
                # float32 partial sums of 24 terms: 24 half ulps.
                same(folded(estimator, batches, scheme), (wanted, 0), 24 * 2.0**-24)
                compared += 1
        return compared

    return check


def lsq(values: list[float], fmt: Int) -> float:
    """2 mean|x| / sqrt(Q_p)."""
    return 2 * statistics.fmean(abs(v) for v in values) / math.sqrt(fmt.qmax)


def lsq_plus(values: list[float], fmt: Int) -> float:
    """max |mean +- 3 std| / 2^(b-1)."""
    mean, std = statistics.fmean(values), statistics.stdev(values)
    return max(abs(mean - 3 * std), abs(mean + 3 * std)) / 2 ** (fmt.bits - 1)


def powers(rounding: str) -> Callable[[], int]:
    """2^R(log2 s), decided by comparing exact squares of rationals."""

    def check() -> int:
        compared = 0
        for batches in draws(60):
            for scheme in (S8, S4):
                values = flat([x.tolist() for x in batches])
                exact = oracle.scale_of_range(min(values), max(values), scheme.format.qmin, scheme.format.qmax, symmetric=True)
                up = oracle.power_of_two_above(exact)
                down = up if up == exact else up / 2
                wanted = {"ceil": up, "floor": down, "half_even": up if exact**2 > up * down else down}[rounding]
                same(folded(e.PowerOfTwo(rounding=rounding), batches, scheme), (float(wanted), 0), 0)
                compared += 1
        return compared

    return check


def least_error() -> int:
    """Every one of the 95 candidates tried on every element, in float64."""
    compared = 0
    for batches in draws(30):
        for scheme in (S8, S4):
            values, fmt = np.array(flat([x.tolist() for x in batches])), scheme.format
            reach = max(-values.min(), values.max(), 0)

            def error(scale: float, values: Any = values, fmt: Any = fmt) -> float:
                return float(((np.clip(np.round(values / scale), fmt.qmin, fmt.qmax) * scale - values) ** 2).sum())

            best = min(error(float(np.float32(reach * (1 - i / 100) / fmt.qmax))) for i in range(95))
            found = folded(e.Mse(), batches, scheme).scale.item()
            # Codes that tie fall either way by float32's last bit; the sums differ by rounding alone.
            assert error(found) <= best * (1 + 1e-5), (error(found), best)
            compared += 95
    return compared


def most_votes() -> int:
    """The e of least squared error of each batch, and its mode."""
    compared = 0
    for batches in draws(60):
        votes = []
        for x in batches:
            values = x.double().numpy()
            first = math.floor(math.log2(1 / max(values.min() / -128, values.max() / 127)))
            tried = [min(first + i, 12) for i in range(5)]
            errors = [((np.clip(np.round(values * 2.0**k), -128, 127) / 2.0**k - values) ** 2).sum() for k in tried]
            votes.append(tried[int(np.argmin(errors))])
        counted = Counter(votes)
        wanted = min(k for k in votes if counted[k] == max(counted.values()))
        same(folded(e.PotMode(), batches, Scheme()), (2.0**-wanted, 0), 0)
        compared += 1
    return compared


def least_divergence() -> int:
    """The loop over every threshold from 128 bins up to the data's last, with scipy's sum of p log(p/q)."""
    compared = 0
    for (x,) in draws(8, size=3000, batches=1):
        top = x.abs().max().item()
        width = 2.0 ** (math.ceil(math.log2(top)) - 8)
        counts = np.bincount((x.abs().double().numpy() / width).astype(int), minlength=256)
        every = [naive_divergence(counts, i, 128) for i in range(128, max(np.nonzero(counts)[0]) + 2)]
        found = folded(e.Entropy(256), [x], S8).scale.item() * 127
        # The last edge is the data's end; float32 and the order of the sum are the slack.
        mine = every[round(found / width) - 128] if found < top * (1 - 1e-6) else every[-1]
        assert mine <= min(every) + 1e-10
        compared += len(every)
    return compared


def onnx_runtimes() -> int:
    """The package's own search over the same histogram."""
    compared = 0
    for kind in DATA:
        x, estimator = data(kind, 9000), e.OrtEntropy(512, 128)
        state = estimator.update(estimator.init(S8, x), x, S8)
        edges, counts = (t.numpy() for t in of_values(state, Uniform(256)))
        used = np.nonzero(counts + counts[::-1])[0]
        edges, counts = edges[used[0] : used[-1] + 2], counts[used[0] : used[-1] + 1]
        collector = HistogramCollector("entropy", True, 512, 128, 99.9, "same")
        low, high = collector.get_entropy_threshold((counts, edges, edges[0], edges[-1], edges[-1]), 128)
        found = estimator.range(state, S8)
        assert (found.low.item(), found.high.item()) == (max(low, x.min().item()), min(high, x.max().item()))
        compared += 2
    return compared


ROWS = (
    Row(
        "MinMax",
        "ONNX Runtime quantization tool",
        "exact rationals",
        by_range(e.MinMax(), lambda b: (min(flat(b)), max(flat(b)))),
    ),
    Row("Ema", "MQBench, EMAMinMaxObserver", "float64 recursion", by_range(e.Ema(), averaged, 2.0**-21)),
    Row(
        "StdClip",
        "MQBench, ClipStdObserver, which does not clip",
        "statistics.stdev",
        by_range(e.StdClip(1.5), within_k_std, 2.0**-19),
    ),
    Row("Quantile", "MQBench, EMAQuantileObserver", "sorting", by_range(e.Quantile(0.9), one_sided)),
    Row("Percentile", "ONNX Runtime, compute_percentile", "sorting", by_range(e.Percentile(5, 95), two_sided)),
    Row("LsqInit", "arXiv:1902.08153, section 2.1", "statistics.fmean", of_scale(e.LsqInit(), lsq)),
    Row("LsqPlusInit", "arXiv:2004.09576, section 4.2", "statistics.stdev", of_scale(e.LsqPlusInit(), lsq_plus)),
    Row("Mse", "MQBench, MSEObserver", "exhaustive search in float64", least_error),
    Row("Entropy", "NVIDIA pytorch-quantization, histogram calibrator", "loop over thresholds", least_divergence),
    Row("OrtEntropy", "ONNX Runtime, get_entropy_threshold", "onnxruntime itself", onnx_runtimes),
    Row("PowerOfTwo, ceil", "PPQ; numerics.from_range", "exact rationals", powers("ceil")),
    Row("PowerOfTwo, floor", "OCP Microscaling Formats 1.0, section 6.3", "exact rationals", powers("floor")),
    Row("PowerOfTwo, half_even", "MQBench, pot_scale", "exact rationals", powers("half_even")),
    Row("PotMode", "MQBench, PoTModeObserver; Vitis AI", "exhaustive search in float64", most_votes),
)
