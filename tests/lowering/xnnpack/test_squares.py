"""x * x is an op of its own in XNNPACK, whose zero point is added before rounding: emulated as rational numbers say."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.graph.sites import quantizer_nodes
from tests.conformance.modules import Apply
from tests.lowering.drawn_law import _calibrated

CODES = torch.arange(-128, 128).reshape(1, 4, 8, 8)


def _times(x: Tensor, other: nn.Module) -> Tensor:
    return x * other(x)


@pytest.mark.parametrize("zero", [-1, 4])
@pytest.mark.parametrize("target", [targets.litert, targets.executorch_xnnpack], ids=lambda t: t.name)
def test_the_zero_point_is_added_before_rounding(target, zero):
    model = _calibrated(nn.Sequential(Apply(_times, nn.Identity())), target, tuple(CODES.shape))
    first, last = (s.module for s in quantizer_nodes(model))
    first.scale.fill_(2.0**-6)
    first.zero_point.fill_(-128)
    last.scale.fill_(2.0**-5)
    last.zero_point.fill_(zero)
    found = qfunc.emulate(target)(model)((CODES + 128) * 2.0**-6)
    exact = [Fraction((q + 128) ** 2, 2**7) + zero for q in CODES.flatten().tolist()]
    assert sum(v.denominator == 2 for v in exact) >= 5  # halves
    wanted = torch.tensor([min(round(v), 127) - zero for v in exact]).reshape(CODES.shape) * 2.0**-5
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("zero", [-1, 4])
def test_a_product_of_two_tensors_adds_it_behind(zero):
    """With the zero point behind, a half goes to the even number before it."""
    target = targets.litert
    model = _calibrated(nn.Sequential(Apply(_times, nn.ReLU())), target, tuple(CODES.shape))
    modules = [s.module for s in quantizer_nodes(model)]
    for module in modules[:-1]:
        module.scale.fill_(2.0**-6)
        module.zero_point.fill_(-128)
    modules[-1].scale.fill_(2.0**-5)
    modules[-1].zero_point.fill_(zero)
    found = qfunc.emulate(target)(model)((CODES + 128) * 2.0**-6)
    exact = [Fraction((q + 128) ** 2, 2**7) for q in CODES.flatten().tolist()]
    wanted = torch.tensor([min(round(v), 127 - zero) for v in exact]).reshape(CODES.shape) * 2.0**-5
    assert torch.equal(found, wanted)
