"""awq: the float function stays, and the factors are those of a search over whole networks."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.errors import CalibrationError, SpecError
from qfunc.specs import edit
from qfunc.testing.laws.corrections import worst_violation
from tests.corrections.channel_nets import images, unequal
from tests.corrections.test_float_laws import Tokens

BLOCKS = targets.onnxruntime_nbits(4, 32, 0)
"""Weights alone are quantized, in blocks of 32."""


class Branches(nn.Module):
    """Two layers that read one norm."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.norm, self.one, self.two = nn.LayerNorm(32), nn.Linear(32, 5), nn.Linear(32, 7, bias=False)
        self.norm.weight.data.copy_(torch.randn(32).exp())
        self.norm.weight.data[3] *= 20

    def forward(self, x: Tensor) -> Tensor:
        """Twelve numbers."""
        y = self.norm(x)
        return torch.cat([self.one(y), self.two(y)], -1)


def scaled(net: Branches, x: Tensor, power: float) -> tuple[Branches, Tensor]:
    """The network with the factors of the equation, and the factors."""
    mean = net.norm(x).abs().mean(0).detach()
    by = mean**power / ((mean**power).max() * (mean**power).min()).sqrt()
    changed = copy.deepcopy(net)
    with torch.no_grad():
        for p in (changed.norm.weight, changed.norm.bias):
            p.div_(by)
        for layer in (changed.one, changed.two):
            layer.weight.mul_(by)
    return changed, by


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(3))
def test_the_factors_are_those_of_the_best_of_all_networks(seed: int) -> None:
    """Each candidate is quantized and run; the errors of candidates differ by far more than roundings."""
    net, x, found = Branches(seed).eval().requires_grad_(False), torch.randn(200, 32), {}
    for i in range(20):
        changed, by = scaled(net, x, i / 20)
        outputs = qfunc.calibrate([x], progress=False)(qfunc.quantize(BLOCKS)(changed))(x)
        found[i] = float((outputs - net(x)).double().square().sum()), by
    best = min(found, key=lambda i: found[i][0])
    assert best > 0
    assert found[best][0] < 0.9 * found[0][0]
    result = qfunc.awq(BLOCKS, [x[:80], x[80:]], progress=False)(net)
    # Means over two batches in float64, and over one in float32: 200 roundings of 2^-24 at most.
    torch.testing.assert_close(result.get_parameter("norm.weight"), net.norm.weight / found[best][1], rtol=200 * 2**-24, atol=0)
    assert "norm.weight" in net.state_dict()


@settings(max_examples=4, deadline=None, phases=[Phase.generate])
@given(seed=st.integers(0, 2**31))
def test_each_op_stays(seed: int) -> None:
    model = qfunc.capture()(unequal(Tokens, seed))
    changed = qfunc.awq(targets.academic(3, 8), [images(Tokens, 3)], progress=False, candidates=4)(model)
    worst, op = worst_violation(model, changed, (images(Tokens, 2),))
    assert worst <= 1, (op, worst)
    assert torch.equal(changed.get_parameter("last.weight"), model.get_parameter("last.weight"))  # a residual reads it, too


def test_channels_of_zeros_and_layers_in_float_stay() -> None:
    net, x = Branches(0).eval(), torch.randn(50, 32)
    for p in (net.norm.weight, net.norm.bias):
        p.data[5] = 0
    result = qfunc.awq(edit.skip(edit.name("two"))(BLOCKS), [x], progress=False)(net)
    assert torch.equal(result.get_parameter("one.weight")[:, 5], net.one.weight[:, 5])
    assert torch.isfinite(result(x)).all()
    assert not torch.equal(result.get_parameter("one.weight"), net.one.weight)


def message(error: type[Exception], call: Any) -> str:
    """The message."""
    with pytest.raises(error) as e:
        call()
    return str(e.value)


def test_what_is_refused() -> None:
    net, x = Branches(0).eval(), torch.randn(4, 32)
    assert message(SpecError, lambda: qfunc.awq(BLOCKS, [x], candidates=1)) == (
        "awq, candidates: found 1, wanted an integer from 2. Write qfunc.awq(target, batches, candidates=20)."
    )
    assert message(CalibrationError, lambda: qfunc.awq(BLOCKS, net)) == (
        "awq: found a Branches, wanted batches first, and then the model. Write qfunc.awq(target, batches)(model)."
    )
    assert message(CalibrationError, lambda: qfunc.awq(BLOCKS, [], progress=False)(net)) == (
        "awq: found no batches, wanted at least one. Pass a non-empty iterable, not one already used up."
    )
    assert message(CalibrationError, lambda: qfunc.awq(BLOCKS, [x * torch.nan], progress=False)(net)) == (
        "awq, op 'one': found NaN or infinite values in its input, wanted finite values. Remove the batch, or repair the "
        "weights."
    )
    assert message(SpecError, lambda: qfunc.awq(BLOCKS, [x], progress=False)(nn.Sequential(nn.Linear(32, 4)))).startswith(
        "awq: found no such pair"
    )
    with pytest.raises(CalibrationError, match=r"wanted a float model\. Run qfunc\.awq before"):
        qfunc.awq(BLOCKS, [x], progress=False)(qfunc.quantize(BLOCKS)(net))
