"""Ops that become several TFLite operators: NumPy computes the operators, ONNX's reference evaluator the op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from qfunc.lowering.constant_folding import NO_CURVES
from qfunc.lowering.nhwc.ops import WRITERS
from qfunc.lowering.nhwc.tensor import NhwcTensor
from qfunc.lowering.nhwc.writer import Writer
from qfunc.lowering.qdq.qparams import Array, QParams
from qfunc.lowering.qdq.reader import QdqModel

OPERATORS: dict[str, Callable[..., Array]] = {
    "MINIMUM": np.minimum, "MUL": np.multiply, "SUB": np.subtract, "ADD": np.add, "EXP": np.exp,
    "RELU": lambda x: np.maximum(x, np.float32(0)),
}  # fmt: skip


class Computed:
    """A file whose operators NumPy computes as they are written, in float32, on one input."""

    lowering, any_padding, batched, hard_swish_ratio, curves = "Computed", True, False, None, NO_CURVES

    def __init__(self, given: Array) -> None:
        self.given, self.values = given, list[Array | None]()

    def tensor(self, name: str, shape: Sequence[int], qparams: QParams | None = None, *, value: Array | None = None,
               varies: int | None = None, dtype: Any = None, **place: Any) -> NhwcTensor:  # fmt: skip
        """The tensor whose batch varies is the input."""
        self.values.append(value if varies is None else self.given)
        return NhwcTensor(len(self.values) - 1, name, tuple(shape), qparams, value=value, **place)

    def integers(self, values: Any, name: str) -> NhwcTensor:
        """No operator here has any."""
        raise NotImplementedError

    def operator(
        self, op: str, inputs: Sequence[NhwcTensor], outputs: Sequence[NhwcTensor], options: str = "", **fields: Any
    ) -> None:
        """Compute it."""
        assert fields in ({}, {"fusedActivationFunction": "NONE"})
        made = OPERATORS[op](*(self.values[t.index] for t in inputs))
        assert made.dtype == np.float32
        self.values[outputs[0].index] = made

    def serialize(self, inputs: Sequence[NhwcTensor], outputs: Sequence[NhwcTensor]) -> bytes:
        """The output's bytes."""
        value = self.values[outputs[0].index]
        assert value is not None
        return value.tobytes()


def model(op: str, *shape: int, element: int = TensorProto.FLOAT, **attributes: float) -> onnx.ModelProto:
    """One op of one input of any batch."""
    infos = [helper.make_tensor_value_info(n, element, ["N", *shape]) for n in "xy"]
    graph = helper.make_graph([helper.make_node(op, ["x"], ["y"], "op", **attributes)], "g", infos[:1], infos[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])


def written(op: str, x: Array, **attributes: float) -> Array:
    """The op's value by the operators of the file."""
    file = Computed(x)
    found = Writer(QdqModel(model(op, *x.shape[1:], **attributes)), file, {}).write(WRITERS)
    return np.frombuffer(found, np.float32).reshape(x.shape)


@pytest.mark.parametrize("alpha", [None, 1.0, 0.3, 7.0, 200.0, 0.01])
def test_celu_is_within_four_roundings_of_alpha(alpha: float | None) -> None:
    attributes = {} if alpha is None else {"alpha": alpha}
    alpha = float(np.float32(1.0 if alpha is None else alpha))
    scale = np.float32(alpha) * np.logspace(-6, 2, 500, dtype=np.float32)
    x = np.concatenate([-scale[::-1], np.float32([0.0, np.inf, -np.inf]), scale]).reshape(1, -1)
    found = written("Celu", x, **attributes)
    (wanted,) = ReferenceEvaluator(model("Celu", x.shape[1], element=TensorProto.DOUBLE, **attributes)).run(
        None, {"x": x.astype(np.float64)}
    )
    assert np.array_equal(found[x >= 0], x[x >= 0])
    # Two of the argument of exp, one of exp, one of the product with alpha, each of a number up to 1.
    assert np.abs(found[x < 0] - wanted[x < 0]).max() <= alpha * 2.0**-22
    assert found.min() == -np.float32(alpha)
