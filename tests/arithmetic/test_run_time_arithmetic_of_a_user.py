"""A product of a user's own whose input becomes codes inside, token by token, against numpy."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from attrs import evolve, frozen
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import qfunc
from qfunc.arithmetic import Computation, Constant, Real, UnitSpec
from qfunc.errors import SpecError
from qfunc.estimators import MinMax
from qfunc.functions import Fixed
from qfunc.graph.view import QuantizedModel
from qfunc.placement.partition import Partition
from qfunc.specs import FLOAT32, Algorithm, Int, Kernel, Op, PerChannel, PerToken, Rule, Runtime, Scale, Scheme, Target


def token_product(x: Tensor, codes: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    s_x = x.abs().amax(-1, keepdim=True) / 127
    q = torch.floor(x / s_x + 0.5).clamp(-127, 127)
    return (q.double() @ codes.double().T).float() * s_x * scale + bias


@frozen
class TokenProduct:
    """y = float32(acc) s_x s_w + bias, each step in float32, with s_x = max |x| / 127 of a token."""

    run_time_input: Scheme
    float_bias: bool = True

    def refuses(self, unit: UnitSpec) -> str:
        x = unit.operand("input")
        if x is None or x.run_time != self.run_time_input:
            return "its input has other codes"
        return "" if unit.kind == "linear" and unit.output is None and not unit.fused else "it is no linear layer alone"

    def kernel(self, unit: UnitSpec) -> Computation:
        x, weight, bias = (unit.operand(slot) for slot in ("input", "weight", "bias"))
        assert x is not None
        assert weight is not None
        assert weight.coding is not None
        assert bias is not None
        scale = Constant(weight.coding.scales.float().flatten(), "scale")
        return Computation(token_product, (Real(x), weight, scale, Real(bias)))


TOKENS = Scheme(Int(8, low=-127), Scale(PerToken(), dynamic=True), rounding="half_up")
WEIGHTS = Scheme(Int(8, low=-127), Scale(PerChannel(0)))
CHIP = Target(
    name="chip",
    rules=(Rule(Op("linear"), input=TOKENS, weight=WEIGHTS),),
    kernels=(
        Kernel(
            Op("linear"),
            TokenProduct(TOKENS),
            formats=(("input", (FLOAT32,)), ("weight", (Int(8, low=-127),)), ("output", (FLOAT32,))),
        ),
    ),
    runtime=Runtime("chip", "1.0"),
    source="this file",
    weight=Algorithm(MinMax(), Fixed()),
    activation=Algorithm(MinMax(), Fixed()),
)


def calibrated(target: Target, module: nn.Module, x: Tensor) -> Any:
    return qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(module))


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**16), st.integers(1, 9), st.integers(1, 9))
def test_each_step_is_rounded_as_stated(seed: int, tokens: int, width: int) -> None:
    torch.manual_seed(seed)
    layer, x = nn.Linear(width, 3), torch.randn(tokens, width)
    found = qfunc.emulate(CHIP)(calibrated(CHIP, layer, x))(x)

    w, values = layer.weight.detach().numpy(), x.numpy()
    s_w = np.abs(w).max(1) / np.float32(127)
    codes = np.clip(np.round(w / s_w[:, None]), -127, 127)
    for t in range(tokens):
        s_x = np.abs(values[t]).max() / np.float32(127)
        q = [min(max(math.floor(v / s_x + np.float32(0.5)), -127), 127) for v in values[t]]
        for o, bias in enumerate(layer.bias.detach().numpy()):
            acc = np.float32(sum(a * int(b) for a, b in zip(q, codes[o], strict=True)))
            assert found[t, o].item() == acc * s_x * s_w[o] + bias


def test_another_scheme_is_refused() -> None:
    other = evolve(TOKENS, rounding="half_even")
    target = evolve(CHIP, kernels=(evolve(CHIP.kernels[0], arithmetic=TokenProduct(other)),))
    made = qfunc.quantize(target)(nn.Linear(4, 3))
    with pytest.raises(SpecError, match="integers with one static scale per tensor or channel"):
        qfunc.emulate(target)(qfunc.calibrate([torch.ones(2, 4)], progress=False)(made))


def test_its_units_are_its_own() -> None:
    partition = Partition(QuantizedModel(calibrated(CHIP, nn.Linear(4, 3), torch.ones(2, 4))), CHIP)
    assert [(u.kind, u.integer, u.kernel is CHIP.kernels[0]) for u in partition.units] == [("linear", True, True)]
