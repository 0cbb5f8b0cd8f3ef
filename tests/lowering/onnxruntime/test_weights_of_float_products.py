"""A product in float with a weight of codes stays one: ONNX Runtime's MatMulNBits would quantize the activation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import qfunc
from qfunc.specs import edit
from tests.onnxruntime_target import ONNXRUNTIME


class Product(nn.Module):
    """x w, with a stored w; its input may come from another layer."""

    def __init__(self, behind: bool) -> None:
        super().__init__()
        self.first = nn.Linear(16, 16) if behind else nn.Identity()
        self.w = nn.Parameter(torch.randn(16, 32) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.first(x) @ self.w


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize(
    "change",
    [edit.activations(symmetric=True), edit.activations(bits=16), edit.activations(bits=4, symmetric=True)],
    ids=["int8", "uint16", "int4"],
)
def test_the_product_is_that_of_float32(change: Any, behind: bool) -> None:
    torch.manual_seed(0)
    target = edit.pipe(ONNXRUNTIME, edit.weights(bits=7), change)
    batches = [torch.randn(2, 5, 16) for _ in range(2)]
    done = qfunc.calibrate(batches, progress=False)(qfunc.quantize(target)(Product(behind).eval()))
    report = qfunc.verify(target, latency=False)(done, [batches[0], 2 * batches[1]])
    assert not report.disagreements, report
    # Sums in another order may move one code of many; activations of 8 bits move one of ten.
    assert report.mismatches <= report.elements / 1000


@pytest.mark.parametrize("with_itself", [False, True])
def test_a_product_of_bytes_whose_result_is_signed_is_in_float(with_itself: bool) -> None:
    """A softmax has codes without a sign, so that no kernel has this result; both factors are codes, though."""

    class Attended(Product):
        def forward(self, x: Tensor) -> Tensor:
            scores = self.first(x).softmax(-1)
            return scores @ (scores.transpose(1, 2) if with_itself else self.w)

    torch.manual_seed(0)
    target, x = edit.activations(symmetric=True)(ONNXRUNTIME), torch.randn(2, 5, 16)
    done = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(Attended(False).eval()))
    report = qfunc.verify(target, latency=False)(done, [x])
    assert not report.disagreements, report
    assert report.mismatches == 0
