"""ONNX's reference evaluator and ml_dtypes as a second oracle for quantize and dequantize."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from qfunc.numerics import Affine, dequantize, quantize
from qfunc.specs import Int, PerChannel, PerTensor, Scale, Scheme, ZeroPoint

KINDS = {
    "int8": (Int(8), TensorProto.INT8, np.int8),
    "uint8": (Int(8, signed=False), TensorProto.UINT8, np.uint8),
    "int4": (Int(4), TensorProto.INT4, ml_dtypes.int4),
    "uint4": (Int(4, signed=False), TensorProto.UINT4, ml_dtypes.uint4),
    "uint16": (Int(16, signed=False), TensorProto.UINT16, np.uint16),
    "int16": (Int(16), TensorProto.INT16, np.int16),
}


def evaluate(op: str, element: int, inputs: list[np.ndarray[Any, Any]], axis: int | None) -> np.ndarray[Any, Any]:
    names, float32 = ["x", "s", "z"], TensorProto.FLOAT
    attributes: dict[str, Any] = {} if axis is None else {"axis": axis}
    node = helper.make_node(op, names, ["y"], **attributes)
    types = (element if op == "DequantizeLinear" else float32, float32, element)
    given = [helper.make_tensor_value_info(n, t, None) for n, t in zip(names, types, strict=True)]
    made = helper.make_tensor_value_info("y", float32 if op == "DequantizeLinear" else element, None)
    model = helper.make_model(helper.make_graph([node], "g", given, [made]), opset_imports=[helper.make_opsetid("", 21)])
    results: Any = ReferenceEvaluator(model).run(None, dict(zip(names, inputs, strict=True)))
    result: np.ndarray[Any, Any] = results[0]
    return result


@pytest.mark.parametrize("axis", [None, 0, 1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_codes_and_values_equal_onnx(kind: str, axis: int | None) -> None:
    """Ties, neighbours of ties and saturation, per tensor and along each axis; every bit."""
    fmt, element, dtype = KINDS[kind]
    random, shape = np.random.default_rng(axis or 7), (3, 5, 7)
    count = () if axis is None else (shape[axis],)
    along = [1, 1, 1] if axis is None else [n if i == axis else 1 for i, n in enumerate(shape)]
    scale = random.uniform(0.01, 1.0, count).astype(np.float32)
    zero = random.integers(fmt.qmin, fmt.qmax, count, endpoint=True)
    wide = scale.reshape(() if axis is None else along)
    codes = random.integers(fmt.qmin - 2, fmt.qmax + 2, shape, endpoint=True)
    x = ((codes - zero.reshape(wide.shape) + 0.5) * wide).astype(np.float32)
    x = np.where(random.random(shape) < 0.5, np.nextafter(x, np.float32(99)), x)

    scheme = Scheme(fmt, Scale(PerTensor() if axis is None else PerChannel(axis)), ZeroPoint())
    qparams = Affine(torch.tensor(wide), torch.tensor(zero.reshape(wide.shape)).float())
    found = quantize(torch.tensor(x), qparams, scheme)
    held = dequantize(found, qparams, scheme)

    expected = evaluate("QuantizeLinear", element, [x, scale, zero.astype(dtype)], axis)
    assert np.array_equal(found.numpy(), expected.astype(np.float32))
    back = evaluate("DequantizeLinear", element, [expected, scale, zero.astype(dtype)], axis)
    assert np.array_equal(held.numpy().view(np.int32), back.astype(np.float32).view(np.int32))


@pytest.mark.parametrize("kind", ["int4", "uint4"])
def test_codes_survive_storage_in_four_bits(kind: str) -> None:
    """Every code of the format is a value of ml_dtypes' own four-bit type and comes back from it."""
    fmt, _, dtype = KINDS[kind]
    scheme = Scheme(fmt, zero_point=ZeroPoint())
    codes = quantize(torch.arange(-20.0, 20.0), Affine(torch.tensor(1.0), torch.tensor(0.0)), scheme).numpy()

    assert np.array_equal(codes.astype(dtype).astype(np.float32), codes)
    assert set(codes.tolist()) == set(range(fmt.qmin, fmt.qmax + 1))
