"""Chips with narrow accumulators: check_target passes the right ones, and finds each other one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from attrs import evolve
from torch import nn

import qfunc
from qfunc import targets
from qfunc.specs import (
    Accumulator, Copy, FloatMultiplier, Kernel, Op, SaturatesAtEnd, SaturatesEachStep, Target, Wraps,
)  # fmt: skip
from qfunc.testing import SmallNet, check_target
from qfunc.testing.overflow_models import OverflowNet, overflow_models
from qfunc.testing.small_models import Block
from tests.conformance.chip import Array, Chip
from tests.onnxruntime_target import ONNXRUNTIME, on_vnni

BITS = 16
HALF = 2.0 ** (BITS - 1)


def wraps(products: Array, bias: Any) -> Array:
    """The sum modulo 2^16."""
    return np.asarray((products.sum(-1) + bias + HALF) % (2 * HALF) - HALF)


def saturates_at_end(products: Array, bias: Any) -> Array:
    """The sum, clamped."""
    return np.clip(products.sum(-1) + bias, -HALF, HALF - 1)


def saturates_each_step(products: Array, bias: Any) -> Array:
    """The bias, then each product, clamped."""
    total = np.clip(np.zeros(products.shape[:-1]) + bias, -HALF, HALF - 1)
    for at in range(products.shape[-1]):
        total = np.clip(total + products[..., at], -HALF, HALF - 1)
    return total


def saturates_backwards(products: Array, bias: Any) -> Array:
    """The bias, then each product, clamped, from the last one."""
    return saturates_each_step(products[..., ::-1], bias)


def saturates_bias_last(products: Array, bias: Any) -> Array:
    """Each product, then the bias, clamped."""
    return np.clip(saturates_each_step(products, 0) + bias, -HALF, HALF - 1)


def saturates_in_pairs(products: Array, bias: Any) -> Array:
    """The bias, then each two products, clamped."""
    even = np.pad(products, [(0, 0)] * (products.ndim - 1) + [(0, products.shape[-1] % 2)])
    return saturates_each_step(even[..., ::2] + even[..., 1::2], bias)


def with_accumulator(accumulator: int | Accumulator) -> Target:
    """ONNX Runtime's target, on a chip with this accumulator; units that this chip does not have are in float."""
    kernels = (
        Kernel(Op(("conv", "linear")), FloatMultiplier(accumulator=accumulator)),
        *(k for k in ONNXRUNTIME.kernels if isinstance(k.arithmetic, Copy)),
    )
    return evolve(ONNXRUNTIME, name="chip", kernels=kernels, runtime=evolve(ONNXRUNTIME.runtime, runner=None))


CHIPS: dict[str, tuple[Any, int | Accumulator]] = {
    "wraps": (wraps, BITS),
    "saturates at the end": (saturates_at_end, Accumulator(BITS, SaturatesAtEnd())),
    "saturates each step": (saturates_each_step, Accumulator(BITS, SaturatesEachStep())),
    "bias last": (saturates_bias_last, Accumulator(BITS, SaturatesEachStep(bias="last"))),
    "pairs": (saturates_in_pairs, Accumulator(BITS, SaturatesEachStep(products=2))),
}
CONV = SmallNet((Block("conv", 3, 4, 3),), 1), torch.randn((2, 3, 9, 11), generator=torch.Generator().manual_seed(2))


@pytest.mark.thorough
@pytest.mark.parametrize("name", CHIPS)
def test_a_right_chip_passes(name: str) -> None:
    hold, accumulator = CHIPS[name]
    target = with_accumulator(accumulator)
    models = overflow_models(target)
    assert [type(m) for m, _ in models] == [OverflowNet, OverflowNet]
    check_target(target, run=Chip(hold=hold), models=[*models, CONV])


WRONG = {
    "exact": (None, BITS),
    "wraps, declared to saturate": (wraps, Accumulator(BITS, SaturatesAtEnd())),
    "at the end, declared at each step": (saturates_at_end, Accumulator(BITS, SaturatesEachStep())),
    "backwards": (saturates_backwards, Accumulator(BITS, SaturatesEachStep())),
    "bias last, declared first": (saturates_bias_last, Accumulator(BITS, SaturatesEachStep())),
    "pairs, declared one by one": (saturates_in_pairs, Accumulator(BITS, SaturatesEachStep())),
    "one bit more": (saturates_at_end, Accumulator(BITS + 1, SaturatesAtEnd())),
    "positions outside": (saturates_each_step, Accumulator(BITS, SaturatesEachStep(("position", "channel")))),
    "declared wide": (saturates_at_end, 32),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_accumulator_is_found(name: str) -> None:
    hold, accumulator = WRONG[name]
    target = with_accumulator(accumulator)
    models = overflow_models(target) or overflow_models(with_accumulator(BITS))
    with pytest.raises(AssertionError, match="law 'emulation_matches_the_runtime'"):
        check_target(target, run=Chip(hold=hold), models=models)


@on_vnni
def test_the_default_models_reach_overflow() -> None:
    """The drawn networks of random weights come after those that overflow, up to 24 bits."""
    with pytest.raises(AssertionError, match=r"law 'emulation_matches_the_runtime'(.|\n)*OverflowNet\('conv', 82, seed=0\)"):
        check_target(with_accumulator(Accumulator(24, SaturatesAtEnd())), run=Chip(), examples=1)
    assert overflow_models(with_accumulator(32)) == []


@on_vnni
def test_the_width_of_int32_is_that_of_runtimes() -> None:
    """70,000 products of the largest codes: ONNX Runtime wraps at 2^31."""
    net = nn.Linear(70_000, 4)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([1.0, -1.0, 0.5, 0.93])[:, None].expand(4, 70_000))
    x = torch.ones(2, 70_000)
    x[1, :35_000] = 0.5
    calibrated = qfunc.calibrate([x], progress=False)(qfunc.quantize(targets.onnxruntime)(net))
    assert not torch.allclose(qfunc.emulate(targets.onnxruntime)(calibrated)(x), calibrated(x), rtol=0.1)
    report = qfunc.verify(targets.onnxruntime)(calibrated, [x])
    assert report.agreement.startswith("bit-exact: 0 of 140,016 elements differ; the simulation is ")  # it has no overflow


@on_vnni
def test_verify_compares_overflow_with_the_runtime() -> None:
    """The Q/DQ file is the simulation, which sums exactly: a runtime that executes it as it is differs from the chip."""
    target = with_accumulator(Accumulator(BITS, Wraps()))
    net, x = next((m, x) for m, x in overflow_models(target) if m.kind == "linear")
    calibrated = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(net))
    assert qfunc.verify(target, Chip(hold=wraps))(calibrated, [x]).verdict == (
        "bit-exact: 0 of 12 elements differ; the simulation is 54.6 LSB off on average"
    )
    assert qfunc.verify(target, Chip())(calibrated, [x]).verdict.startswith("mismatch: ")
