"""Quantile, Mse, PowerOfTwo and PotMode against MQBench's own numbers; the golden file says how they were made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from qfunc.estimators import Ema, Mse, PotMode, PowerOfTwo, Quantile
from qfunc.specs import Int, PerChannel, PerTensor, Scale, Scheme, ZeroPoint

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "mqbench_histograms.json").read_text())
OURS = {
    "EMAQuantileObserver": Ema(Quantile()),
    "MSEObserver": Mse(apart=False),
    "EMAMSEObserver": Ema(Mse(apart=False)),
    "MinMaxFloorObserver": PowerOfTwo(Mse(apart=False), finest=12),
    "PoTModeObserver": PotMode(),
}


def scheme_of(row: dict[str, Any]) -> Scheme:
    """torch's symmetric divisor is half the range, and its fake quantize multiplies by 1/s."""
    pot: dict[str, Any] = {"power_of_two": True, "rounding": "half_even"} if row["pot_scale"] else {}
    shared = PerChannel(0) if row["per_channel"] else PerTensor()
    scale = Scale(shared, divisor="half_range" if row["symmetric"] else "qmax", **pot)
    fmt = Int(row["bits"], row["symmetric"], row["qmin"], row["qmax"])
    return Scheme(fmt, scale, None if row["symmetric"] else ZeroPoint(), division=False)


def inputs_of(row: dict[str, Any]) -> list[Tensor]:
    if row["source"] == "w":
        return [torch.tensor(GOLDEN["inputs"]["w"]).view(GOLDEN["shapes"]["w"])]
    batches = [torch.tensor(GOLDEN["inputs"][f"batch{i}"]).view(GOLDEN["shapes"]["batch"]) for i in range(3)]
    return batches if row["source"] == "batch" else [b.relu() for b in batches]


def rows(*observers: str) -> list[Any]:
    made = [r for r in GOLDEN["observers"] if r["observer"] in observers]
    name = "{observer}-{bits}-{qmin}-{per_channel}-{pot_scale}-{source}"
    return [pytest.param(r, id=name.format(**r)) for r in made]


def ours(row: dict[str, Any], steps: int | None = None, last_only: bool = False) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """(scale, MQBench's scale, zero point, MQBench's) after each step."""
    estimator, scheme, state, found = OURS[row["observer"]], scheme_of(row), None, []
    for x, (scale, zero) in list(zip(inputs_of(row), row["steps"], strict=True))[:steps]:
        state = estimator.init(scheme, x) if state is None or last_only else state
        state = estimator.update(state, x, scheme)
        mine = estimator.finalize(state, scheme)
        found.append((mine.scale.flatten(), torch.tensor(scale), mine.zero_point.flatten(), torch.tensor(zero)))
    return found


@pytest.mark.parametrize("row", rows("EMAQuantileObserver"))
def test_quantiles(row: dict[str, Any]) -> None:
    """Ours is exact here; MQBench takes the middle of a bin of max|x|/2048: at most half a bin from the largest value.

    On 16 bits the zero point, near 2^15, moves by as much: 2^16/4096, where both ends move alike far less.
    """
    for scale, theirs, zero, their_zero in ours(row):
        assert ((scale / theirs - 1).abs() <= 1 / 4096 + 2**-22).all()
        assert ((zero - their_zero).abs() <= 2.0 ** row["bits"] / 4096).all()


@pytest.mark.parametrize("row", rows("EMAMSEObserver"))
def test_average_of_each_batch_with_the_smallest_error(row: dict[str, Any]) -> None:
    """The same candidate of 95 in every batch, channel and scheme; what differs are roundings of the range (below 4 ulp)."""
    for scale, theirs, zero, their_zero in ours(row):
        torch.testing.assert_close(scale, theirs, rtol=4 * 2.0**-23, atol=0)
        assert zero.equal(their_zero)


@pytest.mark.parametrize("row", rows("MSEObserver"))
def test_smallest_error_over_all_batches(row: dict[str, Any]) -> None:
    """Equal on the first batch.  Later MQBench takes the widest of the batches' ranges; ours is that of the smallest
    error over all data (its defect: one batch with a wide range decides for all), so never wider by more than a
    candidate of 1 %."""
    found = ours(row)

    torch.testing.assert_close(found[0][0], found[0][1], rtol=4 * 2.0**-23, atol=0)
    assert found[0][2].equal(found[0][3])
    if row["symmetric"] and not row["per_channel"] and not row["pot_scale"]:
        for scale, theirs, _, _ in found[1:]:
            assert (scale <= theirs * 1.2).all()
            assert (scale >= theirs * 0.8).all()


@pytest.mark.parametrize("row", [r for r in rows("MinMaxFloorObserver", "PoTModeObserver") if r.values[0]["symmetric"]])
def test_powers_of_two(row: dict[str, Any]) -> None:
    """Bit for bit, per tensor.  Per channel MQBench gives all channels one scale (a defect): ours has one for each, and
    the next test holds its error instead."""
    last_only = row["observer"] == "MinMaxFloorObserver"  # it forgets earlier batches
    for scale, theirs, zero, their_zero in ours(row, last_only=last_only):
        assert torch.frexp(scale).mantissa.eq(0.5).all()
        assert (zero == their_zero).all()
        if not row["per_channel"]:
            assert scale.equal(theirs)


def squared(x: Tensor, scale: Tensor, scheme: Scheme) -> Tensor:
    assert isinstance(scheme.format, Int)
    codes = torch.round(x.double() / scale.double()).clamp(scheme.format.qmin, scheme.format.qmax)
    return (codes * scale.double() - x.double()).square().flatten(1).sum(1)


def test_powers_of_two_per_channel_are_no_worse() -> None:
    """In every channel the squared error is at most that of MQBench's scale."""
    for row in (r.values[0] for r in rows("MinMaxFloorObserver")):
        if row["per_channel"] and row["symmetric"] and row["source"] == "w":
            x, (scale, theirs, _, _) = inputs_of(row)[0], ours(row)[0]
            mine, other = (squared(x, s.view(-1, 1, 1, 1), scheme_of(row)) for s in (scale, theirs))
            assert (mine <= other).all()
            assert (mine < other).any()
            return
    raise AssertionError("no such row")


@pytest.mark.parametrize("row", [r for r in rows("MinMaxFloorObserver", "PoTModeObserver") if not r.values[0]["symmetric"]])
def test_powers_of_two_with_a_zero_point_hold_the_data(row: dict[str, Any]) -> None:
    """MQBench takes zero point 0 whatever the data, and so clips all below 0 (a defect): ours has a zero point inside."""
    for _, _, zero, their_zero in ours(row, last_only=True):
        assert (their_zero == 0).all()
        assert (zero > 0).all()
