"""What the HTP's emulator computes otherwise, as rules in integers: why the target refuses, and what stays of it.

Once one of these fails, the emulator has changed, and the target may take more.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest
import torch
from attrs import evolve
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.errors import VerifyError
from qfunc.graph.sites import quantizer_nodes
from qfunc.lowering import ExplicitQdqLowering
from qfunc.targets.runtimes import QnnHtpRunner
from tests.conformance.modules import Apply

pytestmark = pytest.mark.skipif(importlib.util.find_spec("onnxruntime_qnn") is None, reason="onnxruntime-qnn is not installed")
TARGET = targets.qnn_htp
FREE = evolve(TARGET, legality=(), lowering=ExplicitQdqLowering())  # what the target and its lowering refuse, too


def on_codes(model: nn.Module, q: Tensor, given: tuple[float, int], made: tuple[float, int]) -> tuple[Any, Any]:
    """(the HTP's codes, the simulation's) of an op with these scales and zero points, of an input that lies on codes."""
    done: Any = qfunc.calibrate([torch.randn(q.shape)], progress=False)(qfunc.quantize(FREE)(model.eval()))
    for seat in quantizer_nodes(done):
        if not seat.module.site.constant:
            scale, zero = given if seat.module.site.slot == "input" else made
            seat.module.scale.fill_(scale)
            seat.module.zero_point.fill_(zero)
    x = (q - given[1]) * given[0]
    found = QnnHtpRunner().run(qfunc.deploy(FREE)(done), [x])[0]
    return tuple(np.rint(v / np.float32(made[0])).astype(int) + made[1] for v in (found, done(x).detach().numpy()))


def codes(*shape: int, low: int = 0, high: int = 256) -> Tensor:
    """Random ones."""
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(2)).float()


@pytest.mark.parametrize("steps", [255, 256])
def test_a_product_of_2_to_the_8_steps_or_more_is_the_zero_point(steps: int) -> None:
    layer = nn.Conv2d(3, 4, 1, bias=False)
    layer.weight.data = torch.full((4, 3, 1, 1), 127 / 128)  # 127 steps of 1/128
    layer.weight.data[1] /= 8
    found, wanted = on_codes(layer, codes(2, 3, 5, 6, low=127, high=130), (128.0, 128), (1 / steps, 100))
    assert (found[:, 1] == wanted[:, 1]).all()
    assert set(found[:, [0, 2, 3]].flat) == ({0, 100, 255} if steps == 255 else {100})
    assert set(wanted[:, [0, 2, 3]].flat) == {0, 100, 255}


@pytest.mark.parametrize(("steps", "power"), [(1.25, 2), (3.0, 4), (6.24, 8), (50.0, 64)])
def test_a_product_of_entries_steps_by_powers_of_two(steps: float, power: int) -> None:
    """One step of s_a s_b is m codes of the output: for m above 1 they are round(k m / 2^e) 2^e, with 2^e next above m."""
    q = codes(2, 3, 5, 6, low=124, high=132)
    found, wanted = on_codes(Apply(lambda x: x * x[..., :1]), q, (1.0, 128), (1 / steps, 100))
    k = ((q - 128) * (q[..., :1] - 128)).numpy().astype(int)
    rule = np.floor(k * steps / power + 0.5) * power + 100
    assert (found == rule.clip(0, 255)).all()
    assert abs(found - wanted).max() > power // 4


@pytest.mark.parametrize(
    ("zero", "far"), [(0, 255), (1, 200), (96, 255), (200, 0), (255, 0), (0, 127), (96, 223), (200, 72), (128, 0)]
)
def test_the_second_factor_is_held_in_int8_around_0(zero: int, far: int) -> None:
    """Where q - z leaves -128..127 somewhere in a column, it is divided by what brings it there and rounded half up."""
    q = codes(2, 3, 9, 6, low=-30, high=31).add(zero).clamp(0, 255)
    q[:, :, 0] = zero
    q[:, :, 0, 0], q[:, :, 3:, 1] = zero + (20 if zero < 200 else -20), far
    found, wanted = on_codes(Apply(lambda x: x[:, :, :1] @ x.transpose(2, 3)), q, (1.0, zero), (5.0, 128))
    real = (q - zero).double()
    ends = torch.stack([real.amax(3) / 127, real.amin(3) / -128, torch.ones(real.shape[:3])])
    ratio = ends.amax(0)[..., None]
    second = (real / ratio + 0.5).floor() * ratio
    rule = (real[:, :, :1] @ second.transpose(2, 3) / 5 + 128.5).floor().clamp(0, 255)
    assert abs(found - rule.numpy()).max() <= 1
    assert (abs(found - wanted).max() <= 1) == (-128 <= far - zero <= 127)


@pytest.mark.parametrize(("channels", "kernel", "wrong"), [(4, 1, True), (2, 2, True), (5, 2, False), (4, 3, False)])
def test_small_windows_by_two(channels: int, kernel: int, wrong: bool) -> None:
    torch.manual_seed(4)
    layer = nn.Conv2d(channels, channels, kernel, stride=2, groups=channels)
    found, wanted = on_codes(layer, codes(1, channels, 9, 8), (0.02, 128), (0.02, 128))
    assert (abs(found - wanted).max() > 10) == wrong


@pytest.mark.parametrize(("layer", "taken"), [
    (nn.Conv2d(6, 6, 3, 2, dilation=2, groups=6), True), (nn.Conv2d(6, 12, (3, 1), 2, dilation=2, groups=6), True),
    (nn.Conv2d(6, 6, (3, 1), 2, dilation=2, groups=6), False), (nn.Conv2d(6, 6, 3, (2, 1), dilation=(1, 2), groups=6), False),
    (nn.Conv1d(6, 6, 3, 2, dilation=2, groups=6), False),
], ids=str)  # fmt: skip
def test_strides_over_holes_are_left_to_the_cpu(layer: nn.Module, taken: bool) -> None:
    q = codes(1, 6, *((11, 12) if isinstance(layer, nn.Conv2d) else (11,)))
    if taken:
        found, wanted = on_codes(layer, q, (0.02, 128), (0.02, 128))
        assert abs(found - wanted).max() <= 1
        return
    with pytest.raises(VerifyError, match="wanted a model whose ops all run on the HTP"):
        on_codes(layer, q, (0.02, 128), (0.02, 128))


def test_a_rounding_between_two_scales_is_left_out() -> None:
    """max(x, y) of coarse codes and a relu of finer ones: the HTP rounds once, from x to the relu's scale."""
    target = evolve(TARGET, fusions=())
    model = nn.Sequential(Apply(lambda x: torch.maximum(x, x[:, :1])), nn.ReLU())
    q = codes(2, 3, 5, 6, low=120, high=140)
    done: Any = qfunc.calibrate([torch.randn(q.shape)], progress=False)(qfunc.quantize(target)(model))
    scales = dict(zip(("input", "maximum", "relu"), ((1.0, 128), (2.0, 128), (0.75, 0)), strict=True))
    first = True
    for seat in quantizer_nodes(done):
        name = "input" if first else ("relu" if seat.tensor.endswith("1") else "maximum")
        first = False
        seat.module.scale.fill_(scales[name][0])
        seat.module.zero_point.fill_(scales[name][1])
    x = q - 128
    found = QnnHtpRunner().run(qfunc.deploy(target)(done), [x])[0] / 0.75
    once = np.floor(torch.maximum(x, x[:, :1]).relu().numpy() / 0.75 + 0.5)
    assert abs(found - once).max() < 1e-3
    assert abs(found - done(x).detach().numpy() / 0.75).max() > 1
