"""ONNX Runtime removes ops that compute nothing, and takes extremes of codes: the partition predicts both."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import qfunc
from qfunc import targets
from qfunc.specs import edit

TARGET = edit.weights(bits=7)(targets.onnxruntime)  # of 7 bits, so that any x86-64 computes the same


class _Between(nn.Module):
    def __init__(self, between, channels=8):
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(channels, 4, 3, padding=1)
        self.between = between

    def forward(self, x):
        return self.last(self.between(self.first(x)))


class _Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return F.scaled_dot_product_attention(self.query(x), self.key(x), self.value(x), scale=1.0)


def _extremes(y):
    y = torch.relu(y)
    return torch.cat([y.amax(1, keepdim=True), y.amin(1, keepdim=True)], 1)


BETWEEN = {
    "detached": (lambda y: y.detach(), 8),
    "detached relu": (lambda y: torch.relu(y).detach(), 8),
    "detached twice, moved": (lambda y: y.detach().transpose(2, 3).detach(), 8),
    "extremes": (_extremes, 2),
    "rolled": (lambda y: torch.roll(y, (1, 1), (2, 3)), 8),
}


def _verdict(model, batch):
    calibrated = qfunc.calibrate([batch], progress=False)(qfunc.quantize(TARGET)(model.eval()))
    return qfunc.verify(TARGET)(calibrated, [batch, 2 * batch]).verdict


@pytest.mark.parametrize("name", BETWEEN)
def test_runtime_executes_the_predicted_units(name):
    torch.manual_seed(0)
    assert _verdict(_Between(*BETWEEN[name]), torch.randn(2, 3, 8, 8)).startswith("bit-exact: 0 of")


def test_attention_without_a_scale():
    torch.manual_seed(0)
    assert _verdict(_Attention(), torch.randn(2, 4, 8)).startswith("bit-exact: 0 of")


def test_detached_values_get_no_gradient():
    torch.manual_seed(0)
    model, batch = _Between(*BETWEEN["detached"]), torch.randn(2, 3, 8, 8)
    trained = qfunc.calibrate([batch], progress=False)(qfunc.quantize(TARGET)(model)).train()
    trained(batch).sum().backward()
    gradients = {name: p.grad for name, p in trained.named_parameters()}
    assert gradients["first.weight"] is None
    assert gradients["last.weight"] is not None
