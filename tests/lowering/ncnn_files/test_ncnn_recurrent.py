"""LSTM, GRU and RNN as ncnn's layers: the runtime's outputs and last states are PyTorch's, whatever the form of the layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.errors import SpecError
from qfunc.specs import Everything, edit

pytestmark = pytest.mark.skipif(bool(targets.ncnn.runtime.runner.missing()), reason="ncnn is not installed")
FLOAT = edit.skip(Everything())(targets.ncnn)


class Steps(nn.Module):
    """A linear layer, a recurrent layer, and its outputs and last states; the first states are computed if it has any."""

    def __init__(self, kind: str, first: bool, **options: Any) -> None:
        super().__init__()
        self.inner, self.layer = nn.Linear(6, 5), getattr(nn, kind)(5, 7, batch_first=True, **options)
        ways = self.layer.num_layers * (2 if self.layer.bidirectional else 1)
        self.start = nn.Linear(6, 7 * ways) if first else None
        self.ways, self.pair = ways, kind == "LSTM"

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """[N, T, 6] -> outputs [N, T, ways 7], and last states [N, levels, 7]."""
        state = None
        if self.start is not None:
            h = self.start(x[:, 0]).reshape(-1, self.ways, 7).transpose(0, 1).tanh()
            state = (h, 2 * h) if self.pair else h
        y, last = self.layer(self.inner(x), state)
        states = last if self.pair else (last,)
        return (y, *(s.transpose(0, 1) for s in states))


@pytest.mark.parametrize("first", [False, True], ids=["zeros", "first states"])
@pytest.mark.parametrize("options", [{}, {"num_layers": 2}, {"bidirectional": True}, {"bias": False}], ids=str)
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_the_runtime_computes_what_pytorch_computes(kind: str, options: dict[str, Any], first: bool) -> None:
    torch.manual_seed(len(kind) + first)
    model, x = Steps(kind, first, **options).eval(), torch.randn(3, 11, 6)
    float_file = qfunc.deploy(FLOAT)(qfunc.calibrate([x], progress=False)(qfunc.quantize(FLOAT)(model)))
    with torch.no_grad():
        wanted = model(x)
    found = [torch.as_tensor(v) for v in FLOAT.runtime.runner.run(float_file, [x])]
    for ours, theirs in zip(found, wanted, strict=True):
        # ncnn's exp and tanh err by some units of 2^-23, for 11 steps of values below 2.
        torch.testing.assert_close(ours.reshape(theirs.shape), theirs, rtol=0, atol=2**-18)
    done = qfunc.calibrate([x], progress=False)(qfunc.quantize(targets.ncnn)(model))
    assert not qfunc.verify(targets.ncnn, latency=False)(done, [x]).disagreements


def test_a_nonlinearity_without_a_layer_is_refused_by_quantize() -> None:
    model = Steps("RNN", False, nonlinearity="relu").eval()
    with pytest.raises(SpecError, match=r"nonlinearity='tanh'"):
        qfunc.quantize(targets.ncnn)(model)
