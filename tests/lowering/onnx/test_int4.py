"""Weights of 4 bits, two in a byte: the same numbers in half the bytes, and what ONNX Runtime makes of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.errors import SpecError
from qfunc.lowering import PackInt4, QdqLowering
from qfunc.specs import Target, edit

UNSIGNED = edit.weights(bits=4, symmetric=False, signed=False)
CASES: dict[str, Target] = {
    "INT4": edit.weights(bits=4)(targets.qdq),
    "INT4 by 3 bits": edit.weights(bits=3)(targets.qdq),
    "UINT4": UNSIGNED(targets.academic(4, 8)),
}


class Tied(nn.Module):
    """A convolution used twice, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear = nn.Conv2d(3, 3, 3, padding=1), nn.Linear(42, 7)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.conv(self.conv(x).relu()).mean(1).flatten(1))


def calibrated(target: Target) -> tuple[Any, Tensor]:
    torch.manual_seed(5)
    x = torch.randn(4, 3, 7, 6)
    return qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(Tied().eval())), x


def written(target: Target) -> onnx.ModelProto:
    return onnx.load_from_string(qfunc.deploy(target)(calibrated(target)[0]).files["model.onnx"])


def kinds(model: onnx.ModelProto) -> dict[str, int]:
    return {i.name: i.data_type for i in model.graph.initializer if len(i.dims) > 1}


@pytest.mark.parametrize("name", CASES)
def test_packed_weights_are_the_same_numbers(name: str) -> None:
    """By ONNX's reference evaluator; two in a byte."""
    loose, dense = (written(edit.deploy(lowering)(CASES[name])) for lowering in (QdqLowering(), PackInt4()))
    onnx.checker.check_model(dense, full_check=True)
    kind = name.split()[0]
    assert set(kinds(dense).values()) == {onnx.TensorProto.DataType.Value(kind)}
    assert kinds(loose).keys() == kinds(dense).keys()
    assert len(kinds(dense)) == 2, "the convolution's weight stands there once"
    sizes = [sum(len(i.raw_data) for i in m.graph.initializer if i.name in kinds(dense)) for m in (loose, dense)]
    assert sizes == [3 * 3 * 9 + 42 * 7, -(-3 * 3 * 9 // 2) + 42 * 7 // 2]
    given = {loose.graph.input[0].name: calibrated(CASES[name])[1].numpy()}
    for one, other in zip(*(ReferenceEvaluator(m).run(None, given) for m in (loose, dense)), strict=True):
        assert np.array_equal(one, other)


def test_onnx_runtime_computes_packed_weights_in_float() -> None:
    """Which `verify` says; the float sums of these codes round to the integers' codes."""
    target = edit.pipe(targets.onnxruntime, edit.weights(bits=4), edit.deploy(PackInt4()))
    quantized, x = calibrated(target)
    found = qfunc.verify(target)(quantized, [x])
    assert found.verdict == (
        "mismatch: the runtime's units are not the predicted ones (conv: predicted integer, but the runtime runs it as float)"
    )


def test_eight_bits_stay_as_they_are() -> None:
    one, other = (written(edit.deploy(lowering)(targets.qdq)) for lowering in (QdqLowering(), PackInt4()))
    assert one == other


def test_an_old_opset_is_refused() -> None:
    with pytest.raises(SpecError) as caught:
        PackInt4(QdqLowering(opset=13))
    assert str(caught.value) == (
        "PackInt4.lowering: found QdqLowering(opset=13), wanted opset 21, the first with 4-bit integers (ONNX operators). "
        "Leave its opset out, or write the weights in bytes, by QdqLowering(opset=13) alone."
    )
