"""Scales at run time within a calibrated one, and outer scales that fused readers share."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
import torch
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.errors import CalibrationError, SpecError
from qfunc.graph.sites import quantizer_nodes
from qfunc.specs import PerBlock, PerChannel, Rule, Scale, Scheme
from qfunc.specs.formats import E4M3FN

TARGET = targets.compressed_tensors("NVFP4")


def layers() -> nn.Module:
    """Two layers, one behind the other."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, 16)).eval()


def modules(model: Any) -> dict[str, Any]:
    """The quantizers by the names of their sites."""
    return {q.module.site.name: q.module for q in quantizer_nodes(model)}


def calibrated(*batches: Tensor) -> Any:
    """The layers, calibrated."""
    return qfunc.calibrate(batches, progress=False)(qfunc.quantize(TARGET)(layers()))


@pytest.mark.thorough
@settings(deadline=None)
@given(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=32, max_size=32), st.integers(1, 4))
def test_the_outer_scale_is_the_smallest_power_of_two_that_clips_no_calibrated_value(row: list[float], count: int) -> None:
    batches = [torch.tensor([row]) * i for i in range(1, count + 1)]

    outer = Fraction(modules(calibrated(*batches))["input"].outer.item())

    largest = max(abs(Fraction(v)) for batch in batches for v in batch.flatten().tolist())
    if largest > Fraction(2) ** -100:
        assert outer.numerator == 1 or outer.denominator == 1
        assert (outer.numerator * outer.denominator).bit_count() == 1
        assert outer * 448 * 6 >= largest * (1 - Fraction(2) ** -22)  # the scale is a float32 before it is a power of two
        assert outer * 448 * 3 < largest


def test_larger_values_than_the_calibrated_ones_clip() -> None:
    model = calibrated(torch.full((1, 32), 6.0))
    module = modules(model)["input"]

    found = module(torch.full((1, 32), 1e9))

    assert found.unique().tolist() == [448 * 6 * module.outer.item()]


def test_calls_before_the_calibration_are_refused() -> None:
    with pytest.raises(CalibrationError) as caught:
        qfunc.quantize(TARGET)(layers())(torch.zeros(1, 32))
    assert str(caught.value) == (
        "site 'input': found no qparams yet, wanted a calibrated model. "
        "Run qfunc.calibrate(batches)(quantized), or load a calibrated state_dict."
    )


def test_saved_and_loaded_models_keep_it(tmp_path: Any) -> None:
    x = torch.randn(4, 32)
    model = calibrated(x)
    fresh = qfunc.quantize(TARGET)(layers())
    fresh.load_state_dict(model.state_dict())

    loaded = qfunc.load(qfunc.save(tmp_path / "model")(model))(layers())

    assert torch.equal(loaded(x), model(x))
    assert torch.equal(fresh.eval()(x), model(x))


def test_an_outer_scale_at_run_time_is_that_of_the_tensor() -> None:
    scale = evolve(TARGET.rules[0].input.scale, within=Scale(power_of_two=True, dynamic=True))
    rule = Rule(TARGET.rules[0].select, input=Scheme(TARGET.rules[0].input.format, scale))
    target = evolve(TARGET, rules=rule, lowering=None)
    x = torch.randn(4, 32)

    module = modules(qfunc.quantize(target)(layers()))["input"]

    assert torch.equal(module(x * 2.0**20), module(x) * 2.0**20)


def test_a_static_scale_around_a_dynamic_one_only() -> None:
    with pytest.raises(SpecError) as caught:
        Scale(PerBlock(-1, 16), format=E4M3FN, within=Scale(dynamic=True))
    assert str(caught.value) == (
        "Scale.within: found Scale(dynamic=True), wanted a static scale around a static one. "
        "Give dynamic=True to both, or to the inner one."
    )


class Readers(nn.Module):
    """Layers of one tensor, each with a range of its own, and one that reads another tensor."""

    def __init__(self, powers: list[int]) -> None:
        super().__init__()
        self.read = nn.ModuleList(nn.Linear(32, 16, bias=False) for _ in powers)
        self.last = nn.Linear(16, 4)
        for layer, power in zip(self.read, powers, strict=True):
            layer.weight.data *= 2.0**power  # type: ignore[operator]

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(sum(layer(x) for layer in self.read))
        return out


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(-30, 10), min_size=1, max_size=4), st.integers(0, 99), st.booleans())
def test_readers_of_one_tensor_share_the_largest_outer_scale(powers: list[int], seed: int, two_levels: bool) -> None:
    """Each inner scale is the nearest of E4M3 to the exact one within the shared scale; whole scales are the largest."""
    torch.manual_seed(seed)
    model, x = Readers(powers).eval(), torch.randn(4, 32)
    target = TARGET if two_levels else targets.compressed_tensors("FP8")

    found = modules(qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(model)))

    weights = [found[f"read.{i}.weight"].qparams() for i in range(len(powers))]
    largest = max(float(layer.weight.detach().abs().max()) for layer in model.read)  # type: ignore[operator]
    if not two_levels:
        assert {q.scale.item() for q in weights} == {torch.tensor(largest / 448).item()}
        return
    (outer,) = {q.outer.item() for q in weights}
    assert outer * 448 * 3 < largest <= outer * 448 * 6
    for layer, q in zip(model.read, weights, strict=True):
        wanted = layer.weight.detach().double().unflatten(-1, (2, 16)).abs().amax(-1) / 6 / outer  # type: ignore[operator]
        assert bool(((q.scale - wanted).abs() <= torch.maximum(wanted / 14, torch.tensor(2.0**-9))).all())
        assert torch.equal(q.scale, q.scale.to(torch.float8_e4m3fn).float())
    assert found["last.weight"].qparams().outer.item() != outer or abs(max(powers)) < 2


def test_channels_alone_have_scales_of_their_own() -> None:
    target = evolve(targets.compressed_tensors("FP8_CHANNEL"), lowering=None)
    assert isinstance(target.rules[0].weight.scale.shared, PerChannel)
    torch.manual_seed(0)
    model, x = Readers([0, 3]).eval(), torch.randn(4, 32)
    both = [
        modules(qfunc.calibrate([x], progress=False)(qfunc.quantize(t)(model)))
        for t in (target, evolve(target, fused_readers=None))
    ]
    for name in ("read.0.weight", "read.1.weight"):
        assert torch.equal(both[0][name].qparams().scale, both[1][name].qparams().scale)
