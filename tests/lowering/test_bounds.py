"""Bounds of activations as codes, where they lie halfway between two: the emulation is what each runtime clamps to."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.graph.sites import quantizer_nodes
from tests.conformance.modules import Apply
from tests.lowering.drawn_law import _calibrated
from tests.lowering.drawn_ops import Side, image

SHAPE = (3, 4, 8, 7)
TIES = (2.0, 2 / 3, 0.4, 12 / 5, 4 / 3, 12 / 7)  # 1 or 6 of them is a number of halves, but for rounding to float32
ZEROS = (5, 4, -127, 126)
NEEDS = {"litert": ("ai_edge_litert", "ai-edge-litert"), "litert_reference": ("ai_edge_litert", "ai-edge-litert"),
         "litert_optimised": ("ai_edge_litert", "ai-edge-litert"), "executorch_xnnpack": ("executorch", "executorch"),
         "tosa": ("tosa_reference_model", "tosa-tools")}  # fmt: skip


def _plus(x: Tensor, other: nn.Module) -> Tensor:
    return x + other(x)


def _times(x: Tensor, other: nn.Module) -> Tensor:
    return x * other(x)


OPS: dict[str, Callable[[], nn.Module]] = {
    "conv": lambda: nn.Conv2d(4, 6, 3), "depthwise": lambda: nn.Conv2d(4, 4, 3, groups=4),
    "transposed": lambda: nn.ConvTranspose2d(4, 5, 2, 2), "linear": lambda: nn.Linear(7, 5),
    "pool": lambda: nn.AvgPool2d(2), "add": lambda: Apply(_plus, nn.Conv2d(4, 4, 1)),
    "mul": lambda: Apply(_times, nn.Conv2d(4, 4, 1)), "square": lambda: Apply(_times, nn.Identity()),
    "alone": lambda: nn.Identity(),
}  # fmt: skip
CLAMPS = {"relu1": nn.Hardtanh(-1.0, 1.0), "relu6": nn.ReLU6()}


def prepared(target: Any, op: str, clamp: str, scale: float, zero: int) -> Any:
    """An op and a clamp whose output has this scale and zero point, with codes beyond the bounds."""
    torch.manual_seed(1)
    net = nn.Sequential(OPS[op](), CLAMPS[clamp]).eval()
    for parameter in net.parameters():
        parameter.data *= 10
    model = _calibrated(Side([net]), target, SHAPE)
    activations = [s.module for s in quantizer_nodes(model) if not s.module.site.constant]
    for module in activations if op in ("alone", "pool") else activations[-1:]:  # these have the same on both sides
        module.scale.fill_(scale)
        module.zero_point.fill_(zero)
    return model


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("name", NEEDS)
def test_they_are_the_runtime_s(name: str, op: str) -> None:
    module, package = NEEDS[name]
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{package} is not installed")
    target = getattr(targets, name)
    for k, scale in enumerate(TIES):
        zero = ZEROS[k % len(ZEROS)]
        for clamp in CLAMPS:
            model = prepared(target, op, clamp, scale, zero)
            x = image(model, SHAPE, 1)
            found = target.runtime.runner.run(qfunc.deploy(target)(model), [x])[0]
            assert torch.equal(qfunc.emulate(target)(model)(x)[0], torch.as_tensor(found)), (scale, zero, clamp)


@pytest.mark.thorough
@pytest.mark.parametrize("zero", ZEROS)
@pytest.mark.parametrize(("scale", "bound"), [(2.0, 1), (0.4, 1), (4.0, 6), (2.4, 6)])
def test_each_rounds_the_bound_by_its_own_rule(scale: float, bound: int, zero: int) -> None:
    half = Fraction(bound) / Fraction(scale).limit_denominator(1000)
    assert half.denominator == 2
    for target, wanted in (
        (targets.litert, round(half + zero)),
        (targets.executorch_xnnpack, round(half + zero)),
        (targets.litert_reference, int(half + Fraction(1, 2)) + zero),
        (targets.tosa, round(half) + zero),
    ):
        model = prepared(target, "conv", {1: "relu1", 6: "relu6"}[bound], scale, zero)
        highest = float(qfunc.emulate(target)(model)(torch.randn(SHAPE))[0].max())
        assert highest == pytest.approx(scale * (min(wanted, 127) - zero))  # a float32 product
