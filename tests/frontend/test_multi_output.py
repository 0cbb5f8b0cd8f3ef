"""Parts of a split that are read as one tuple, without example inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.errors import CaptureError
from qfunc.frontend.capture import capture
from qfunc.graph.view import QuantizedModel
from qfunc.placement.partition import Partition


class Net(nn.Module):
    """A call between two convolutions."""

    def __init__(self, call: Callable[[Tensor], Any], channels: int) -> None:
        super().__init__()
        self.first, self.call, self.last = nn.Conv2d(3, 8, 1), call, nn.Conv2d(channels, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.call(self.first(x)))  # type: ignore[no-any-return]


CASES = {
    "chunk, whole": (lambda x: torch.cat(x.chunk(2, 1), 1), 8),
    "chunk, backwards": (lambda x: torch.cat(torch.chunk(x, 4, dim=1)[::-1], 1), 8),
    "split, some": (lambda x: torch.cat(x.split([1, 3, 4], 1)[1:], 1), 7),
    "split, both ways": (lambda x: (lambda p: torch.cat([torch.cat(p[:2], 1), p[2]], 1))(x.split([2, 3, 3], 1)), 8),
    "a part of some": (lambda x: x.split([2, 2, 4], 1)[:2][1], 2),
}


@pytest.mark.parametrize("name", CASES)
def test_they_are_parts_like_others(name: str) -> None:
    call, channels = CASES[name]
    torch.manual_seed(0)
    model, x = Net(call, channels).eval(), torch.randn(2, 3, 5, 6)
    assert torch.equal(capture()(model)(x), model(x))
    done = qfunc.calibrate([x], progress=False)(qfunc.quantize(targets.onnxruntime)(model))
    assert not Partition(QuantizedModel(done), targets.onnxruntime).float_units
    assert qfunc.verify(targets.onnxruntime)(done, [x]).mismatches == 0


def test_a_number_that_the_size_decides() -> None:
    with pytest.raises(CaptureError) as caught:
        capture()(Net(lambda x: torch.stack(x.unbind(1)).sum(0), 8))
    where, _, rest = str(caught.value).partition(": ")
    assert "test_multi_output.py:" in where
    assert rest == (
        "found all parts of unbind as one tuple, whose length depends on the size, wanted parts selected by index. Name "
        "the parts: "
        "a, b = x.unbind(0); or give example_inputs=(...,), so that the model is captured by torch.export."
    )


@pytest.mark.parametrize("call", [lambda x: F.adaptive_max_pool2d(x, 1), lambda x: F.adaptive_max_pool2d(x, (2, 3))])
def test_the_values_of_a_pool_that_torch_export_writes_with_indices(call: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    model, x = Net(call, 8).eval(), torch.randn(2, 3, 4, 6)
    assert torch.equal(capture((x,))(model)(x), model(x))
