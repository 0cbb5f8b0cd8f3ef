"""Tensors that a model makes and fills part by part are constants of the captured graph, if no input decides them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import qfunc
from qfunc import targets

X = torch.randn(3, 6, 6, generator=torch.Generator().manual_seed(1))


class Mask(nn.Module):
    """Regions by number, as in windows that are shifted; read before the last write and after it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        mask = x.new_zeros((6, 6))
        for number, rows in enumerate((slice(0, -3), slice(-3, -1), slice(-1, None))):
            mask[rows, 1:4] = number
        early = mask * 2
        mask[0].fill_(7)
        return self.layer(x) + mask.masked_fill(mask == 0, -1.5) - early.transpose(0, 1)


class ByInput(nn.Module):
    """An input decides what is written."""

    def forward(self, x: Tensor) -> Tensor:
        made = torch.zeros(6, 6)
        made[x[0] > 0] = 1.0
        return x + made


def test_the_graph_computes_what_the_model_does() -> None:
    torch.manual_seed(2)
    model = Mask()
    captured = qfunc.capture((X,))(model)
    for x in (X, X[:1]):
        assert torch.equal(captured(x), model(x))
    assert captured.state_dict().keys() == model.state_dict().keys()


def test_it_deploys() -> None:
    model = Mask()
    done = qfunc.calibrate([X], progress=False)(qfunc.quantize(targets.onnxruntime, (X,))(model))
    run = targets.onnxruntime.runtime.runner.session(qfunc.deploy(targets.onnxruntime)(done).files["model.onnx"])
    # A few roundings to 8 bits of values whose range is below 30.
    torch.testing.assert_close(torch.from_numpy(run.run([X])[0]), model(X).detach(), atol=0.5, rtol=0)


def test_what_an_input_decides_is_refused_as_ever() -> None:
    with pytest.raises(qfunc.errors.CaptureError, match="in-place write"):
        qfunc.capture((X,))(ByInput())
