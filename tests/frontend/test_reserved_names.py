"""Members with names that fx.GraphModule has: refused on both roads, and the cure works."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from qfunc import capture, quantize, targets
from qfunc.errors import CaptureError

X = torch.linspace(-1, 1, 8).view(2, 4)


def named(name: str, member: nn.Module) -> nn.Module:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.add_module(name, member)

        def forward(self, x):
            return getattr(self, name)(x)

    return Net().eval()


@pytest.mark.parametrize("inputs", [None, (X,)], ids=["traced", "exported"])
@pytest.mark.parametrize("name", ["graph", "code", "meta", "recompile"])
def test_a_member_with_the_name_of_an_attribute_of_graph_module(name, inputs):
    model = named(name, nn.Linear(4, 3))
    with pytest.raises(CaptureError, match=f"a member '{name}' of the model"):
        quantize(targets.onnxruntime, inputs)(model)
    captured = capture(inputs)(nn.Sequential(model))
    assert torch.equal(captured(X), model(X))
    assert f"0.{name}.weight" in captured.state_dict()


@pytest.mark.parametrize("inputs", [None, (X,)], ids=["traced", "exported"])
@pytest.mark.parametrize("kind", ["parameter", "buffer"])
def test_a_tensor_with_the_name_of_an_attribute_of_graph_module(kind, inputs):
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            value = torch.ones(4)
            self.register_parameter("meta", nn.Parameter(value)) if kind == "parameter" else self.register_buffer("meta", value)

        def forward(self, x):
            return x * self.meta

    with pytest.raises(CaptureError, match=r"Rename self\.meta"):
        capture(inputs)(Net())
    assert torch.equal(capture(inputs)(nn.Sequential(Net()))(X), X)
