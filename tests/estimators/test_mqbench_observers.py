"""MQBench's own numbers: equal where its observers follow their equation, and off by exactly its defects elsewhere.

tests/golden/mqbench_observers.json says how they were made.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from qfunc.estimators import Ema, LsqInit, MinMax, StdClip
from qfunc.specs import Int, PerChannel, PerTensor, Scale, Scheme, ZeroPoint

FILE = Path(__file__).parents[1] / "golden" / "mqbench_observers"
RECORDS = json.loads(FILE.with_suffix(".json").read_text())["observers"]
ARRAYS = dict(np.load(FILE.with_suffix(".npz")))
CODES = {
    "MinMaxObserver": MinMax(),
    "EMAMinMaxObserver": Ema(decay=0.9),
    "ClipStdObserver": StdClip(2.6),
    "LSQObserver": LsqInit(),
}


def name_of(record: Any) -> str:
    return "-".join(
        [record["observer"].removesuffix("Observer"), *(f"{k}={v}" for k, v in record["scheme"].items()), record["src"]]
    )


def records(*observers: str) -> Any:
    chosen = [r for r in RECORDS if r["observer"] in observers]
    assert len(chosen) == 27 * len(observers)  # 9 schemes x 3 sources
    return pytest.mark.parametrize("record", chosen, ids=name_of)


def batches_of(record: Any) -> list[Any]:
    if record["src"] == "w":
        return [ARRAYS["w"]]
    batches = [ARRAYS[f"batch{i}"] for i in range(3)]
    return [np.maximum(b, 0) for b in batches] if record["src"] == "relu" else batches


def scheme_of(record: Any) -> Scheme:
    """MQBench's scheme in our words: torch divides a symmetric range by half the number of steps."""
    rule, low, high = record["scheme"], record["qmin"], record["qmax"]
    signed = rule["symmetry"]
    shared = PerChannel(0) if rule["per_channel"] else PerTensor()
    powers = {"power_of_two": True, "rounding": "half_even"} if rule.get("pot_scale") else {}
    scale = Scale(shared, divisor="half_range" if signed else "qmax", **powers)
    return Scheme(Int(rule["bit"], signed, low=low, high=high), scale, None if signed else ZeroPoint())


def ours(record: Any) -> list[tuple[Any, Any]]:
    """(scales, zero points) after each batch."""
    estimator, scheme = CODES[record["observer"]], scheme_of(record)
    found, state = [], None
    for batch in batches_of(record):
        x = torch.from_numpy(batch)
        state = estimator.update(estimator.init(scheme, x) if state is None else state, x, scheme)
        qparams = estimator.finalize(state, scheme)
        found.append((qparams.scale.flatten().double().numpy(), qparams.zero_point.flatten().numpy()))
    return found


def theirs(record: Any) -> list[tuple[Any, Any]]:
    return [(np.array(scale), np.array(zero)) for scale, zero in record["per_step"]]


def assert_equal(found: list[tuple[Any, Any]], wanted: list[tuple[Any, Any]], relative: float) -> None:
    assert len(found) == len(wanted)
    for (scale, zero), (scale_wanted, zero_wanted) in zip(found, wanted, strict=True):
        assert np.all(np.abs(scale - scale_wanted) <= relative * scale_wanted)
        assert np.array_equal(zero, zero_wanted)


@records("MinMaxObserver")
def test_min_max(record: Any) -> None:
    """torch subtracts, halves and divides in float32, three roundings of 2^-24; ours rounds once."""
    assert_equal(ours(record), theirs(record), 2.0**-22)


@records("EMAMinMaxObserver")
def test_ema(record: Any) -> None:
    """Two steps of two products and a sum in float32, on each side, before min/max's own three roundings."""
    assert_equal(ours(record), theirs(record), 2.0**-20)


# Plain float64 formulas: rows are the blocks that share a scale.


def rows(record: Any, batch: Any) -> Any:
    return batch.reshape(len(batch) if record["scheme"]["per_channel"] else 1, -1).astype(np.float64)


def of_range(record: Any, low: Any, high: Any) -> tuple[Any, Any]:
    low, high, steps = np.minimum(low, 0), np.maximum(high, 0), record["qmax"] - record["qmin"]
    if record["scheme"]["symmetry"]:
        return powers(record, np.maximum(-low, high) / (steps / 2)), np.zeros(len(low))
    scale = (high - low) / steps
    return scale, np.clip(record["qmin"] - np.round(low / scale), record["qmin"], record["qmax"])


def powers(record: Any, scale: Any) -> Any:
    return 2.0 ** np.round(np.log2(scale)) if record["scheme"].get("pot_scale") else scale


def joined(record: Any) -> list[Any]:
    """Rows of all values up to each step."""
    parts = [rows(record, batch) for batch in batches_of(record)]
    return [np.concatenate(parts[: i + 1], 1) for i in range(len(parts))]


def clipped(record: Any, values: Any, inner: Any, outer: Any) -> tuple[Any, Any]:
    reach = 2.6 * values.std(1, ddof=1)
    low = inner(values.min(1), values.mean(1) - reach)
    return of_range(record, low, outer(values.max(1), values.mean(1) + reach))


@records("ClipStdObserver")
def test_mean_and_std(record: Any) -> None:
    """Repaired defects: MQBench takes min(min, mean - k std) and max(max, mean + k std), so it never clips; and the
    last batch only.  Ours clips, over all batches.  Float32 means of 600 numbers: a few 2^-24, and three roundings.
    """
    last = [clipped(record, rows(record, b), np.minimum, np.maximum) for b in batches_of(record)]
    assert_equal(theirs(record), last, 2.0**-20)
    assert_equal(ours(record), [clipped(record, v, np.maximum, np.minimum) for v in joined(record)], 2.0**-20)
    widest = [of_range(record, v.min(1), v.max(1))[0] for v in joined(record)]
    assert all(np.all(scale <= most * (1 + 2.0**-20)) for (scale, _), most in zip(ours(record), widest, strict=True))


def initial(record: Any, values: Any, most: float = np.inf) -> tuple[Any, Any]:
    """MQBench's scale and zero point; `most` limits the codes below zero, as the share of the negative values does in ours."""
    mean, low = np.abs(values).mean(1), values.min(1)
    scale = powers(record, 2 * mean / record["qmax"] ** 0.5)
    if record["scheme"]["symmetry"]:
        return scale, np.zeros(len(scale))
    below = np.minimum(-np.minimum(low, 0) / scale, most)
    return scale, np.clip(record["qmin"] + np.round(below), record["qmin"], record["qmax"])


def negative(record: Any, values: Any) -> Any:
    return -np.minimum(values, 0).sum(1) / np.abs(values).sum(1) * (record["qmax"] - record["qmin"])


@records("LSQObserver")
def test_lsq(record: Any) -> None:
    """Repaired defects: MQBench's scale is that of the last batch, and its zero point often an end of the codes.

    Float32 means of 600 numbers: a few 2^-24.
    """
    last = [initial(record, v) for v in (rows(record, b) for b in batches_of(record))]
    assert_equal(theirs(record), last, 2.0**-20)
    assert_equal(ours(record), [initial(record, v, negative(record, v)) for v in joined(record)], 2.0**-20)


def test_the_repaired_defects_matter() -> None:
    """On these data the repaired estimators are not MQBench's: the records show the defects, not only the code."""
    for observer in ("ClipStdObserver", "LSQObserver"):
        several = [
            r for r in RECORDS if r["observer"] == observer and len(r["per_step"]) > 1 and not r["scheme"].get("pot_scale")
        ]
        assert all(np.any(ours(r)[-1][0] < 0.99 * theirs(r)[-1][0]) for r in several)
