"""Linear layers whose weights are [inputs, outputs], as torch.addmm and GPT-2 have them: emulated as they run."""

from __future__ import annotations

import importlib.util
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.graph.sites import quantizer_nodes
from tests.lowering.drawn_law import _calibrated


class Dense(nn.Module):
    """bias + x @ weight on rows."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(inputs, outputs)), nn.Parameter(torch.randn(outputs))

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
        return rows.view(x.size(0), x.size(1), -1)


def net() -> nn.Module:
    """Two of them."""
    torch.manual_seed(0)
    return nn.Sequential(Dense(6, 10), nn.ReLU(), Dense(10, 4))


@pytest.mark.parametrize(("name", "package"), [("onnxruntime", "onnxruntime"), ("litert", "ai_edge_litert"), ("ncnn", "ncnn")])
def test_the_emulation_is_what_the_runtime_computes(name, package):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package.replace('_', '-')} is not installed")
    target, x = getattr(targets, name), torch.randn(3, 5, 6)
    report = qfunc.verify(target)(_calibrated(net(), target, tuple(x.shape)), [x])
    assert report.agreement.startswith("bit-exact: 0 of"), report


def test_the_sum_runs_over_inputs():
    target, shape = targets.litert_reference, (2, 5, 6)
    torch.manual_seed(0)
    layer = Dense(6, 10)
    layer.weight.data = torch.randint(-127, 128, (6, 10)) * 2.0**-6
    layer.weight.data[0] = 127 * 2.0**-6
    layer.bias.data.zero_()
    model = _calibrated(layer, target, shape)
    for seat in quantizer_nodes(model):
        if not seat.module.site.constant:
            seat.module.scale.fill_(2.0**-3 if seat.tensor == "x" else 2.0**2)
            seat.module.zero_point.fill_(0)
    codes = torch.randint(-50, 51, shape)
    found = qfunc.emulate(target)(model)(codes * 2.0**-3)
    weight = (layer.weight.data * 64).long().tolist()
    for row, got in zip(codes.reshape(-1, 6).tolist(), found.reshape(-1, 10).tolist(), strict=True):
        for j, value in enumerate(got):
            exact = Fraction(sum(q * weight[i][j] for i, q in enumerate(row)), 2**11)  # in steps of the output
            assert abs(Fraction(value) / 4 - exact) <= Fraction(1, 2)
