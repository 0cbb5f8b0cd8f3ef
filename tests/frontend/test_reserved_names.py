"""Names that torch.fx cannot use are refused on both roads, and the cure works; all others can be used."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from qfunc import calibrate, capture, emulate, quantize, targets
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


@pytest.mark.parametrize("inputs", [None, (X,)], ids=["traced", "exported"])
def test_a_key_that_is_a_keyword(inputs):
    class Net(nn.Module):
        def __init__(self, key: str) -> None:
            super().__init__()
            self.key, self.parts = key, nn.ModuleDict({key: nn.Linear(4, 3)})

        def forward(self, x):
            return self.parts[self.key](x)

    with pytest.raises(CaptureError, match=r"'parts\.in.*' of the model, and 'in' is a keyword of Python"):
        capture(inputs)(Net("in"))
    model = Net("inner")
    assert torch.equal(capture(inputs)(model)(X), model(X))


@pytest.mark.parametrize(
    "names", [("convA", "BN", "FC"), ("μ", "größe", "層"), ("Conv", "conv", "CONV"), ("a b", "c-d", "e/f")], ids=str
)
@pytest.mark.parametrize("inputs", [False, True], ids=["traced", "exported"])
@pytest.mark.parametrize("target", [targets.onnxruntime, targets.litert], ids=lambda target: target.name)
def test_capitals_and_letters_of_any_script(names, inputs, target):
    """`emulate` did not end for them: torch.fx writes names of placeholders in lower case, and other letters as underscores."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, layer in zip(names, (nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2)), strict=True):
                self.add_module(name, layer)

        def forward(self, X):
            conv, norm, head = (getattr(self, name) for name in names)
            return head(norm(conv(X).relu()).mean((2, 3)))

    torch.manual_seed(0)
    x = torch.randn(2, 3, 8, 8)
    quantized = quantize(target, (x,) if inputs else None)(Net().eval())
    calibrated = calibrate([x], progress=False)(quantized)
    assert len(list(emulate(target)(calibrated).graph.nodes)) > 5
    assert torch.allclose(emulate(target)(calibrated)(x), calibrated(x), atol=0.1)
