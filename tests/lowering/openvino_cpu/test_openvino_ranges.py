"""Tensors that the graph proves non-negative use all 256 codes in OpenVINO's artifact: [0, amax], not [-amax, amax]."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import Tensor, nn

import qfunc
from qfunc import targets

NON_NEGATIVE: dict[str, Callable[[Tensor], Tensor]] = {
    "softplus": torch.nn.functional.softplus,
    "square": torch.square,
    "exp2": torch.exp2,
    "erfc": torch.erfc,
    "cosh": torch.cosh,
    "acos": lambda x: torch.acos(torch.tanh(x)),
    "acosh": lambda x: torch.acosh(torch.cosh(x)),
    "hypot": lambda x: torch.hypot(x, x),
    "softmin": lambda x: torch.nn.functional.softmin(x, dim=2),
    "std": lambda x: torch.std(x, dim=2),
    "var": lambda x: torch.var(x, dim=2),
    "vector_norm": lambda x: torch.linalg.vector_norm(x, dim=2),
    "relu": torch.relu,
}
"""relu was always known to be non-negative; the others are by the traits of their records."""
SIGNED: dict[str, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh, "softsign": torch.nn.functional.softsign}


class Net(nn.Module):
    def __init__(self, op: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.op, self.head = op, nn.LazyLinear(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.op(x))  # type: ignore[no-any-return]


def written_range(op: Callable[[Tensor], Tensor], x: Tensor) -> tuple[int, float, float]:
    """(levels, low, high) of the FakeQuantize before the linear layer, as the file has them."""
    net = Net(op).eval()
    net(x)
    calibrated = qfunc.calibrate([x], progress=False)(qfunc.quantize(targets.openvino)(net))
    graph = onnx.load_from_string(qfunc.deploy(targets.openvino)(calibrated).files["model.onnx"]).graph
    held = {i.name: numpy_helper.to_array(i) for i in graph.initializer}
    made = {n.output[0]: n for n in graph.node}
    head = next(n for n in graph.node if n.op_type in ("Gemm", "MatMul"))
    node = made[head.input[0]]
    assert node.op_type == "FakeQuantize"
    return node.attribute[0].i, float(held[node.input[1]]), float(held[node.input[2]])


def codes(value: Tensor, levels: int, low: float, high: float) -> np.ndarray:
    """The index of the level, by the formula of FakeQuantize-1."""
    index = (value.double().numpy() - low) / (high - low) * (levels - 1)
    return np.round(np.clip(index, 0, levels - 1)).astype(int)


def drawn() -> Tensor:
    return torch.randn(4, 5, 6, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", NON_NEGATIVE)
def test_a_non_negative_op_has_the_unsigned_range(name: str) -> None:
    op, x = NON_NEGATIVE[name], drawn()
    value = op(x)
    levels, low, high = written_range(op, x)
    assert (levels, low) == (256, 0.0)
    assert np.isclose(high, float(value.max()), rtol=1e-6)  # a scale of amax / 255
    found = codes(value, levels, low, high)
    assert found.max() == 255
    assert (found == np.round(value.double().numpy() / float(value.double().max()) * 255)).mean() > 0.99


@pytest.mark.parametrize("name", SIGNED)
def test_another_op_has_the_signed_range(name: str) -> None:
    op, x = SIGNED[name], drawn()
    top = float(op(x).abs().max())
    levels, low, high = written_range(op, x)
    assert levels == 256
    assert np.allclose((low, high), (-top * 128 / 127, top), rtol=1e-6)
