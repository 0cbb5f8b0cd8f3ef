"""OpenVINO where the order and the number of its roundings decide: sums next to the middle of two codes.

The steps of input, weight and output are a power of two apart but for their last bits, and biases are multiples of half a step.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.graph.sites import quantizer_nodes
from qfunc.specs import Op, PerTensor, edit
from qfunc.targets.openvino.target import SIGNED
from tests.conformance.modules import Apply

pytestmark = pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason="openvino is not installed")

CHANNELS, SHIFT = 8, 7
STEP = 0.0625
"""The step of each unit's output; a sum of products has steps of 2^-7 of it."""


def near(value: float, g: torch.Generator) -> float:
    """The value, but for up to three units of its last place in float32."""
    return value * (1 + int(torch.randint(-3, 4, (), generator=g)) * 2.0**-23)


def layer(g: torch.Generator, step: float, groups: int = 1, bias: bool = True, size: int = 3) -> nn.Conv2d:
    """A convolution of codes with a step: each channel has a weight of 63 codes, and most are small."""
    conv = nn.Conv2d(CHANNELS, CHANNELS, size, padding=size // 2, groups=groups, bias=bias)
    codes = torch.randint(-30, 31, conv.weight.shape, generator=g).float() * (torch.rand(conv.weight.shape, generator=g) < 0.4)
    codes.flatten(1)[:, 0] = 63
    scales = torch.tensor([near(STEP / step * 2.0**-SHIFT, g) for _ in range(CHANNELS)])
    conv.weight.data = codes * scales.reshape(-1, 1, 1, 1)
    if conv.bias is not None:
        halves = torch.randint(-40, 41, (CHANNELS,), generator=g)
        conv.bias.data = torch.tensor([near(STEP * int(h) / 2, g) for h in halves])
    return conv


def networks(g: torch.Generator, step: float) -> dict[str, nn.Module]:
    """Each form of a convolution that the plugin computes in its own way; the step is that of its input."""
    relu, after = nn.ReLU(), [layer(g, STEP, size=1) for _ in range(2)]
    forms: dict[str, nn.Module] = {
        "with a bias": nn.Sequential(layer(g, step), after[0]),
        "before a ReLU": nn.Sequential(layer(g, step), relu, after[0]),
        "before a pool": nn.Sequential(layer(g, step), nn.MaxPool2d(2, 1), after[0]),
        "before an upper bound": nn.Sequential(layer(g, step), nn.Hardtanh(0.0, 100.2 * STEP), after[0]),
        "depthwise": nn.Sequential(layer(g, step, CHANNELS), after[0]),
        "depthwise before a ReLU": nn.Sequential(layer(g, step, CHANNELS), relu, after[0]),
        "without a bias": nn.Sequential(layer(g, step, bias=False), after[0]),
        "without a bias before a ReLU": nn.Sequential(layer(g, step, bias=False), relu, after[0]),
        "plus codes before a ReLU": Apply(lambda x, a, b, c: c(((y := a(x).relu()) + b(y)).relu()), layer(g, step), *after),
        "plus codes without a sign": Apply(lambda x, a, b, c: c((y := a(x).relu()) + b(y)), layer(g, step), *after),
        "plus codes with a sign": Apply(lambda x, a, b, c: c(x + b(a(x).relu())), layer(g, step), *after),
        "plus codes that no convolution reads": Apply(lambda x, a, b, c: c(b(a(x)) + c(a(x).relu())), layer(g, step), *after),
    }
    return forms


FORMS = tuple(networks(torch.Generator().manual_seed(0), STEP))


def at_ties(model: nn.Module, target: Any, step: float, g: torch.Generator) -> tuple[Any, Tensor]:
    """The calibrated model with these steps, and inputs on codes, halfway between two, and next to that."""
    codes = torch.randint(-128, 128, (2, CHANNELS, 24, 24), generator=g) * (torch.rand(2, CHANNELS, 24, 24, generator=g) < 0.5)
    between = codes + 0.5 * (torch.rand(codes.shape, generator=g) < 0.2)
    calibrated = qfunc.calibrate([between * step], progress=False)(qfunc.quantize(target)(model.eval()))
    for seat in quantizer_nodes(calibrated):
        if not seat.module.site.constant:
            seat.module.scale.fill_(step if seat.tensor == "x" else near(STEP, g))
    x = between * torch.tensor(step, dtype=torch.float32)
    last_bit = torch.randint(-1, 2, x.shape, generator=g).float()
    return calibrated, torch.where(last_bit == 0, x, torch.nextafter(x, last_bit * torch.inf))


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("shared", [False, True], ids=["a scale a channel", "one scale"])
def test_sums_next_to_ties_are_those_of_the_runtime(name: str, shared: bool) -> None:
    """No bit of the real result of the last convolution differs, in the model as it is deployed."""
    target = edit.weights(bits=7)(targets.openvino)  # of which every x86-64 computes the same sums
    target = edit.weights(granularity=PerTensor())(target) if shared else target
    for seed in range(4):
        g = torch.Generator().manual_seed(seed)
        step = near(STEP * 0.7, g)
        model, x = at_ties(networks(g, step)[name], target, step, g)
        with torch.no_grad():
            emulated = qfunc.emulate(target)(model)(x)
        (found,) = target.runtime.runner.run(qfunc.deploy(target)(model), [x])
        assert torch.equal(emulated, torch.from_numpy(found))


class Sum(nn.Module):
    """A sum of codes, with or without another reader, and a convolution; a convolution or a linear layer reads it."""

    def __init__(self, shared: bool, convolved: bool, bounded: bool) -> None:
        super().__init__()
        self.first, self.one, self.other = nn.Conv2d(3, CHANNELS, 1), nn.Conv2d(CHANNELS, CHANNELS, 1), nn.BatchNorm2d(CHANNELS)
        self.last = nn.Conv2d(CHANNELS, 4, 1) if convolved else nn.Sequential(nn.Flatten(), nn.Linear(CHANNELS * 256, 4))
        self.shared, self.bounded = shared, bounded

    def forward(self, x: Tensor) -> Tensor:
        """[N, 3, 16, 16] -> the last layer of the sum."""
        y = self.first(x)
        found = y + self.other(self.one(y).relu()) if self.shared else self.other(y) + self.one(y.relu())
        return self.last(found.clamp(0.0, 1.0) if self.bounded else found)


@pytest.mark.parametrize("bounded", [False, True], ids=["", "clipped"])
@pytest.mark.parametrize("convolved", [False, True], ids=["before a linear layer", "before a convolution"])
@pytest.mark.parametrize("shared", [False, True], ids=["read once", "read twice"])
def test_sums_in_steps_of_half_a_code_are_those_of_the_runtime(shared: bool, convolved: bool, bounded: bool) -> None:
    """Where the convolution has zeros, the sum is a multiple of half its step: the last bit of each factor decides."""
    target = edit.weights(bits=7)(targets.openvino)  # of which every x86-64 computes the same sums
    for seed in range(6):
        torch.manual_seed(seed)
        net, x = Sum(shared, convolved, bounded), torch.randn(2, 3, 16, 16)
        with torch.no_grad():
            fused = net.other if shared else net.one
            fused.weight[::2], fused.bias[::2] = 0, 0  # type: ignore[index]
        model = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(net.eval()))
        scales = {q.tensor: q.module.scale for q in quantizer_nodes(model) if not q.module.site.constant}
        with torch.no_grad():
            scales["clamp" if bounded else "add"].copy_(2 * scales["first" if shared else "conv2d"])
            emulated = qfunc.emulate(target)(model)(x)
        (found,) = target.runtime.runner.run(qfunc.deploy(target)(model), [x])
        assert torch.equal(emulated, torch.from_numpy(found))


class Grid(nn.Module):
    """A convolution plus a grid of multiples of 1/8, several of which are next to midpoints of two codes."""

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        self.conv, self.grid = nn.Conv2d(3, 4, 3, padding=1), (height, width)

    def forward(self, x: Tensor) -> Tensor:
        """[N, 3, height, width] -> [N, 4, height, width]."""
        rows, columns = torch.meshgrid(*map(torch.arange, self.grid), indexing="ij")
        return self.conv(x) + (rows + columns).to(x.dtype) / 8


@pytest.mark.parametrize("size", [(8, 16), (6, 18), (4, 12), (7, 9)])
def test_constants_have_the_codes_of_the_file(size: tuple[int, int]) -> None:
    """They are folded by QuantizeLinear, x / s, not by OpenVINO's formula for inputs."""
    torch.manual_seed(0)
    x = torch.randn(2, 3, *size)
    model = qfunc.calibrate([x], progress=False)(qfunc.quantize(targets.openvino, (x,))(Grid(*size).eval()))
    outputs = targets.openvino.runtime.runner.run(qfunc.deploy(targets.openvino)(model), [x])
    assert torch.allclose(torch.as_tensor(outputs[0]), qfunc.emulate(targets.openvino)(model)(x), atol=1e-5)  # a step is 0.01


def joined(x: Tensor, one: nn.Module, other: nn.Module, last: nn.Module) -> Tensor:
    """Two convolutions, joined before a ReLU: shown codes are quantized apart from the convolutions."""
    return last(torch.relu(torch.cat([one(x), other(x)], 1))[:, :CHANNELS])


def test_codes_that_a_quantizer_of_its_own_computes_are_within_its_bound() -> None:
    """It computes x r + c, where c is 128 or so: near a tie it rounds otherwise than the convolution that contains it."""
    in_codes = edit.add(Op("concat"), input=SIGNED, output=SIGNED)  # nothing on integers reads its codes
    target, flipped = edit.pipe(targets.openvino, in_codes, edit.weights(bits=7)), 0
    for seed in range(2):
        g = torch.Generator().manual_seed(seed)
        step = near(STEP * 0.7, g)
        layers = *(layer(g, step, bias=False, size=1) for _ in range(2)), layer(g, STEP, size=1)
        model, x = at_ties(Apply(joined, *layers), target, step, g)
        for seat in quantizer_nodes(model):
            if not seat.module.site.constant and seat.tensor != "x":
                seat.module.scale *= 1 - 2.0**-20  # small codes are farther from a tie than their own rounding
        report = qfunc.verify(target)(model, [x])
        flipped += sum(r.mismatches for r in report.of("codes"))
        assert report.within_bounds, report
    assert flipped  # the inputs reach such ties
