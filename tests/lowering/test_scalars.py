"""Means over all axes, and scalars computed from parameters: ops whose results have no axes, on the runtimes."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.numerics.kernels.activations import mean_fixed

FORMS = {
    "mean": lambda net, y: y.mean(),
    "mean kept": lambda net, y: y.mean(None, keepdim=True),
    "mean over no axes": lambda net, y: torch.mean(y, ()),
    "centred": lambda net, y: y - y.mean(),
    "mean of a buffer": lambda net, y: y + net.table.mean(),
    "exp": lambda net, y: y * net.logit_scale.exp(),
    "exp alone": lambda net, y: (y, net.logit_scale.exp()),
    "maximum of a buffer": lambda net, y: y * net.table.amax(),
}
ACROSS_EXAMPLES = ("mean", "mean kept", "mean over no axes", "centred")


class Net(nn.Module):
    def __init__(self, form: str) -> None:
        super().__init__()
        self.form, self.conv, self.logit_scale = form, nn.Conv2d(3, 4, 3), nn.Parameter(torch.tensor(1.3))
        self.register_buffer("table", torch.rand(4, 5, 5))

    def forward(self, x: Tensor) -> Any:
        return FORMS[self.form](self, self.conv(x))


def cases() -> list[Any]:
    found = []
    for target in (targets.litert, targets.litert_reference, targets.executorch_xnnpack, targets.tosa):
        for form in FORMS:
            one_example = target in (targets.executorch_xnnpack, targets.tosa) and form in ACROSS_EXAMPLES
            if not one_example and not (target is targets.tosa and "exp" in form):  # TOSA has no exp of codes
                found.append(pytest.param(target, form, id=f"{target.name}-{form}"))
    return found


@pytest.mark.parametrize(("target", "form"), cases())
def test_results_without_axes_are_those_of_the_runtime(target: Any, form: str) -> None:
    if missing := target.runtime.runner.missing():
        pytest.skip(missing)
    torch.manual_seed(0)
    x = torch.randn(2, 3, 7, 7)
    done = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(Net(form).eval()))
    verdict = qfunc.verify(target)(done, [x]).verdict
    # XNNPACK's exp in float32 is another than NumPy's in the last bit, and within the bound of a float unit.
    assert verdict.startswith(("bit-exact: 0 of ", *["bit-exact outside 1 float unit: 0 of "] * (form == "exp alone")))


def test_a_mean_over_all_axes_divides_by_the_number_of_entries() -> None:
    codes = torch.arange(-12.0, 12.0).reshape(2, 3, 4)
    exact = sum((Fraction(int(q)) - 3 for q in codes.flatten()), Fraction(0)) / codes.numel() / 2  # -1.75
    found = mean_fixed(codes, 3, [], False, 0.5, ["srdhm", "half_away"], 5, -128, 127)
    assert found.shape == ()
    assert int(found) == round(exact) + 5
