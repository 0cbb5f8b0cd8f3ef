"""Several products of one tensor with one weight on OpenVINO, which joins them and adds one bias to all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.specs import edit
from qfunc.targets.runtimes import OpenVinoRunner

pytestmark = pytest.mark.skipif(bool(OpenVinoRunner().missing()), reason="openvino is not installed")


class Net(nn.Module):
    def __init__(self, product: Callable[..., Tensor], weight: Tensor, form: Callable[[Callable[..., Tensor], Any], Tensor]):
        super().__init__()
        self.product, self.form, self.weight = product, form, nn.Parameter(weight)
        self.biases = nn.ParameterList(nn.Parameter(torch.randn(4)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.form(lambda i: self.product(x, self.weight, None if i is None else self.biases[i]), None)


PRODUCTS = {
    "linear": (F.linear, (4, 6), (2, 5, 6)),
    "conv": (F.conv2d, (4, 3, 3, 3), (2, 3, 8, 8)),
    "conv_transpose": (F.conv_transpose2d, (3, 4, 2, 2), (2, 3, 5, 5)),
}
FORMS = {
    "two": lambda y, _: torch.relu(y(0)) + torch.sigmoid(y(1)),
    "relus": lambda y, _: torch.relu(y(0)) * torch.relu(y(1)),
    "one bias": lambda y, _: torch.relu(y(0)) + torch.sigmoid(y(None)),
    "equal biases": lambda y, _: torch.relu(y(0)) + torch.sigmoid(y(0)),
    "three": lambda y, _: torch.relu(y(0)) + torch.sigmoid(y(1)) + torch.tanh(y(2)),
}


TARGETS = {
    "integers": lambda name: targets.openvino,
    "shifted": lambda name: edit.weights(symmetric=False)(targets.openvino),  # those of transposed convolutions stay real
    "real": lambda name: edit.skip(edit.op(name))(targets.openvino),
}


@pytest.mark.parametrize("weights", TARGETS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", PRODUCTS)
def test_each_product_has_its_own_bias(name: str, form: str, weights: str) -> None:
    torch.manual_seed(0)
    product, weight, sizes = PRODUCTS[name]
    target = TARGETS[weights](name)
    net, x = Net(product, torch.randn(weight) * 0.3, FORMS[form]).eval(), torch.randn(sizes)
    done = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(net))
    assert "mismatch" not in qfunc.verify(target)(done, [x]).verdict
