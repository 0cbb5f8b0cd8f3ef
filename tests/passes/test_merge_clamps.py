"""A clamp of a clamp is one op with the same values, and the runtime's units are the predicted ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import qfunc
from qfunc.ops.node import kind_of
from qfunc.passes.merge_clamps import merge_clamps
from qfunc.specs import edit
from tests.onnxruntime_target import ONNXRUNTIME

ENDS = st.one_of(st.none(), st.sampled_from([-3.0, -1.0, 0.0, 0.5, 2.0, 6.0]))
CLAMPS = st.lists(st.one_of(st.just("relu"), st.tuples(ENDS, ENDS).filter(any)), min_size=2, max_size=4)
X = torch.linspace(-8, 8, 65)


class Clamps(nn.Module):
    """Clamps in a row; `read` returns the first one, too."""

    def __init__(self, clamps: list[Any], read: bool) -> None:
        super().__init__()
        self.clamps, self.read = clamps, read

    def forward(self, x: Tensor) -> Any:
        values = [x]
        for each in self.clamps:
            values.append(F.relu(values[-1]) if each == "relu" else torch.clamp(values[-1], *each))
        return (values[-1], values[1]) if self.read else values[-1]


@given(CLAMPS, st.booleans())
def test_the_values_are_the_same_and_one_op_is_left(clamps: list[Any], read: bool) -> None:
    model = Clamps(clamps, read)
    merged = merge_clamps(qfunc.capture()(model))
    expected, found = model(X), merged(X)
    for a, b in zip(expected if read else (expected,), found if read else (found,), strict=True):
        assert torch.equal(a, b)
    count = sum(kind_of(n) in ("relu", "clip") for n in merged.graph.nodes)
    assert count <= 1 + read


class Block(nn.Module):
    """A sum behind a convolution, and two clamps in a row."""

    def __init__(self, second: nn.Module) -> None:
        super().__init__()
        self.conv, self.last, self.second = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 3, 1), second

    def forward(self, x: Tensor) -> Tensor:
        y = F.leaky_relu(x, 0.2)
        return self.last(self.second(F.relu(y + self.conv(y))))


@pytest.mark.parametrize("second", [nn.ReLU(), nn.ReLU6(), nn.Hardtanh(0.0, 2.0)])
def test_the_units_are_the_runtime_s(second: nn.Module) -> None:
    torch.manual_seed(0)
    target, x = edit.weights(bits=7)(ONNXRUNTIME), torch.randn(2, 4, 6, 5)
    done = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(Block(second).eval()))
    report = qfunc.verify(target, latency=False)(done, [x])
    assert report.agreement.startswith("bit-exact"), report
