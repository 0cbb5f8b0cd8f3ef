"""Maxima and minima over axes, and scales at the ends of what kernels take: LiteRT computes what the emulation does."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import qfunc
from qfunc import targets
from qfunc.errors import DeployError
from qfunc.graph.sites import quantizer_nodes
from qfunc.targets.runtimes import LiteRtRunner
from tests.lowering.drawn_ops import Side
from tests.lowering.tflite.test_litert import _calibrated, needs_litert
from tests.on_integers import on_integers


class Extreme(nn.Module):
    """A convolution and its maximum or minimum over some axes."""

    def __init__(self, op, axes: tuple[int, ...], keep: bool):
        super().__init__()
        self.conv, self.op, self.axes, self.keep = nn.Conv2d(3, 5, 3), op, axes, keep

    def forward(self, x):
        return self.op(self.conv(x), self.axes, self.keep)


@needs_litert
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("axes", [(1,), (2,), (3,), (-1, 1), (2, 3), (1, 2), (1, 2, 3)])
@pytest.mark.parametrize("op", [torch.amax, torch.amin])
def test_an_extreme_over_axes_is_litert_s(op, axes, keep):
    target = targets.litert
    model, batches = _calibrated(Extreme(op, axes, keep), target, 2, 3, 7, 9)
    x = batches[2]
    (found,) = LiteRtRunner().run(qfunc.deploy(target)(model), [x])
    wanted = qfunc.emulate(target)(model)(x)
    assert found.shape == tuple(wanted.shape)
    assert torch.equal(torch.from_numpy(found), wanted)


class Places(nn.Module):
    """A convolution, half of whose values are 0, and the places of extremes."""

    def __init__(self, op, axis: int, keep: bool):
        super().__init__()
        self.conv, self.op, self.axis, self.keep = nn.Conv2d(3, 5, 3), op, axis, keep

    def forward(self, x):
        y = torch.relu(self.conv(x))
        return y, self.op(y, self.axis, self.keep), self.op(y.flatten(1), 1)


@needs_litert
@pytest.mark.parametrize("axis", [1, 2, -1])
@pytest.mark.parametrize("op", [torch.argmax, torch.argmin])
@pytest.mark.parametrize(
    "target", [*map(on_integers, (targets.litert, targets.litert_reference, targets.litert_optimised))], ids=lambda t: t.name
)
def test_the_first_place_of_an_extreme_is_litert_s(target, op, axis):
    for keep in (False, True):
        model, batches = _calibrated(Places(op, axis, keep), target, 2, 3, 7, 9)
        found = target.runtime.runner.run(qfunc.deploy(target)(model), [batches[2]])
        wanted = qfunc.emulate(target)(model)(batches[2])
        assert all(torch.equal(torch.from_numpy(f), w) for f, w in zip(found, wanted, strict=True))


@needs_litert
@pytest.mark.parametrize("ratio", [2.0**-9, 2.0**-7, 0.1, 0.38, 0.3906, 0.392, 1.0, 127.0, 128.0, 129.0])
@pytest.mark.parametrize("slope", [0.0, 0.01, 0.3, -0.3])
def test_a_slope_that_the_delegate_leaves_to_the_optimised_kernel(slope, ratio):
    target, x = targets.litert, (torch.arange(-128.0, 128.0) - 3).reshape(1, 1, 16, 16)
    model = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(nn.LeakyReLU(slope).eval()))
    given, made = (seat.module for seat in quantizer_nodes(model))
    for module, scale, zero in ((given, 0.05 * ratio, 3), (made, 0.05, -5)):
        module.scale.fill_(scale)
        module.zero_point.fill_(zero)
    (found,) = LiteRtRunner().run(qfunc.deploy(target)(model), [x * 0.05 * ratio])
    assert torch.equal(torch.from_numpy(found), qfunc.emulate(target)(model)(x * 0.05 * ratio))


BEYOND = [2.0**30, 2.0**31 - 256, 2.0**31 - 128, 2.0**31, 2.0**31 + 256, 2.0**32 - 256, 2.0**32, 2.0**32 + 512, 1e10, 1e30]


@needs_litert
@pytest.mark.parametrize("zero", [-128, -5, 0, 5, 127])
@pytest.mark.parametrize("kernels", ["xnnpack", "reference", "optimised"])
def test_values_beyond_32_bits_of_steps_become_the_codes_of_the_kernels(kernels, zero):
    # 8 BEYOND values of either sign fill vectors, and the others are left over.
    target = {"xnnpack": targets.litert, "reference": targets.litert_reference, "optimised": targets.litert_optimised}[kernels]
    x = torch.tensor([*BEYOND, *(-v for v in BEYOND), 0.0, -1.0, 1.0]).reshape(1, 23)
    model = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(nn.LeakyReLU(0.5).eval()))
    for seat in quantizer_nodes(model):
        seat.module.scale.fill_(1.0)
        seat.module.zero_point.fill_(zero)
    emulation, artifact = qfunc.emulate(target)(model), qfunc.deploy(target)(model)
    for given in (x, x.flip(1)):
        (found,) = LiteRtRunner(kernels).run(artifact, [given])
        assert torch.equal(torch.from_numpy(found), emulation(given))


class Square(nn.Module):
    """A tensor times itself, or times its curve."""

    def __init__(self, curved: bool) -> None:
        super().__init__()
        self.curved = curved

    def forward(self, x):
        return x * torch.tanh(x) if self.curved else x * x


@needs_litert
@pytest.mark.parametrize("curved", [False, True])
def test_a_product_that_the_kernels_do_not_hold_is_refused(curved):
    target, x = targets.litert, torch.linspace(-4, 4, 256).reshape(1, 1, 16, 16)
    model = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(Square(curved).eval()))
    given, *_, made = (seat.module for seat in quantizer_nodes(model))
    given.scale.fill_(2.0**-4)
    made.scale.fill_(2.0 ** (-4 + (-7 if curved else -4) - 15))
    with pytest.raises(DeployError) as caught:
        qfunc.deploy(target)(model)
    found = "found s_x * s_w / s_y = 32768, wanted a ratio below 2^15. Calibrate on inputs of the deployed range."
    assert str(caught.value) == f"tensor 'mul.codes': {found}"
    made.scale.mul_(2)
    (found,) = LiteRtRunner().run(qfunc.deploy(target)(model), [x])
    assert torch.equal(torch.as_tensor(found), qfunc.emulate(target)(model)(x))


class Leaky(nn.Module):
    """Leaky ReLUs of one image, with constant and with learned slopes, and hardswish."""

    def __init__(self, count: int):
        super().__init__()
        self.curves = nn.ModuleList([nn.LeakyReLU(0.2), nn.PReLU(), nn.Hardswish()][i % 3] for i in range(count))

    def forward(self, x):
        return tuple(curve(x) for curve in self.curves)


@needs_litert
@pytest.mark.parametrize(
    "target", [*map(on_integers, (targets.litert, targets.litert_reference, targets.litert_optimised))], ids=lambda t: t.name
)
def test_curves_beside_ties_are_litert_s(target):
    """Output scales s_x p / (k + 1/2) put one code p next to a tie, on a side that the rounding of s_x / s_y decides."""
    model, _ = _calibrated(Leaky(64), target, 1, 1, 16, 16)
    first, *outputs = [q.module for q in quantizer_nodes(model) if not q.module.site.constant]
    generator = torch.Generator().manual_seed(0)
    for module in outputs:
        p, k = (int(torch.randint(*limits, (), generator=generator)) for limits in ((3, 127), (0, 120)))
        module.scale.copy_(first.scale * p / (k + 0.5))
    x = torch.arange(-128, 128).reshape(1, 1, 16, 16) * first.scale
    report = qfunc.verify(target)(model, [x])
    assert len(report.of("codes")) == 65
    assert report.verdict.startswith("bit-exact: 0 of"), report


def hard_swishes(target, scale: float, scales: list[float]):
    """A model of hardswish with an input scale and some output scales, and the image of all its codes."""
    x = (torch.arange(256) * scale).reshape(1, 1, 16, 16)
    model = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(Side([nn.Hardswish() for _ in scales])))
    first, *outputs = [q.module for q in quantizer_nodes(model)]
    for module, s in zip((first, *outputs), (scale, *scales), strict=True):
        module.scale.fill_(s)
        module.zero_point.fill_(-128)
    return model, x


@needs_litert
@pytest.mark.parametrize(
    "target", [*map(on_integers, (targets.litert, targets.litert_reference, targets.litert_optimised))], ids=lambda t: t.name
)
def test_hard_swish_divides_scales_in_float32(target):
    """Output scales whose quotients are next to a tie of 16 bits, on another side in float32 than in double."""
    drawn, scale = np.random.default_rng(0), np.float32(0.0371)
    ties = (drawn.integers(2**14, 2**15, 400) + 0.5) / 2.0 ** drawn.integers(15, 19, 400)
    scales = (scale / 128 / ties).astype(np.float32)
    far = [float(s) for s, t in zip(scales, ties, strict=True) if (float(scale) / 128 / float(s) < t) != (scale / 128 / s < t)]
    assert len(far) > 30
    model, x = hard_swishes(target, float(scale), far)
    report = qfunc.verify(target)(model, [x])
    assert report.verdict.startswith("bit-exact: 0 of"), report


@needs_litert
@pytest.mark.parametrize(
    "target", [*map(on_integers, (targets.litert, targets.litert_reference, targets.litert_optimised))], ids=lambda t: t.name
)
def test_hard_swish_takes_ratios_below_128(target):
    model, x = hard_swishes(target, 0.5, [float(np.nextafter(np.float32(2**-8), np.float32(1)))])
    assert qfunc.verify(target)(model, [x]).verdict.startswith("bit-exact: 0 of")
    model, _ = hard_swishes(target, 0.5, [2.0**-8])
    with pytest.raises(DeployError) as caught:
        qfunc.deploy(target)(model)
    found = "found scales 0.5 and 0.00390625, wanted an input's scale below 128 times the output's."
    assert str(caught.value) == f"op 'ops.0': {found} Calibrate on inputs of the deployed range."
