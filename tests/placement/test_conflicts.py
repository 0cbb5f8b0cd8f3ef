"""One layer with wider activations: the errors on the way name edits, which give its tensors one format when applied."""

import re

import pytest
import torch
from torch import nn

import qfunc
from qfunc import targets
from qfunc.errors import SpecError
from qfunc.specs import Int, Name, Op, Scheme, ZeroPoint, edit

WIDE = Scheme(Int(16, signed=False), zero_point=ZeroPoint())
NAMES = {"edit": edit, "Int": Int, "Name": Name, "Op": Op, "Scheme": Scheme, "ZeroPoint": ZeroPoint}


class Residual(nn.Module):
    """Convolutions with a sum and a concat: most tensors have two readers."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.a(x))
        z = self.b(y) + y
        return torch.cat([self.c(z), z], 1).mean((2, 3))


def edits(sentence: str) -> list:
    return [eval(one, NAMES) for one in re.split(r"Use |, use ", sentence.removesuffix("."))[1].split(" and ")]


def cured(target, net: nn.Module):
    """Apply the edits of each error, and return the quantized model with its target."""
    for _ in range(4):
        try:
            return qfunc.quantize(target)(net), target
        except SpecError as error:
            target = edit.pipe(target, *edits(error.do))
    raise AssertionError("the edits do not end")


@pytest.mark.parametrize("name", ["qnn_htp", "snpe", "qdq", "onnxruntime"])
@pytest.mark.parametrize("layer", ["a", "b", "c"])
def test_one_layer_has_16_bits_by_the_edits_of_the_messages(name: str, layer: str) -> None:
    net, target, x = Residual().eval(), getattr(targets, name), torch.randn(2, 3, 4, 4)
    with pytest.raises(SpecError) as caught:
        edit.override(edit.name(layer), activations={"bits": 16})
    alone, every = caught.value.do.split(". ")
    assert every == "For all ops, use edit.activations(bits=16)."
    quantized, target = cured(edit.pipe(target, *edits(alone)), net)
    done = qfunc.calibrate([x], progress=False)(quantized)
    assert "model.onnx" in qfunc.deploy(target)(done).files
    formats = {s.tensor: s.format for s in qfunc.explain(done).sites if s.slot in ("input", "output")}
    wide = {tensor for tensor, fmt in formats.items() if fmt == "Int(16, signed=False)"}
    assert {"a": {"x"}, "b": {"relu", "b"}, "c": {"add", "c"}}[layer] <= wide
    assert wide < {*formats}  # the others keep 8 bits


def test_the_whole_message_of_two_formats() -> None:
    with pytest.raises(SpecError) as caught:
        qfunc.quantize(edit.outputs(edit.name("b"), WIDE)(targets.qnn_htp))(Residual().eval())
    wide = "Scheme(Int(16, signed=False), zero_point=ZeroPoint())"
    assert str(caught.value) == (
        "target 'qnn_htp', tensor 'b': found Int(16, signed=False) by its producer's rule and Int(8, signed=False) by the rule "
        "of 'add', wanted one format, because no tensor has two quantizers in series. "
        f"Use edit.inputs(edit.name('add'), {wide})."
    )
