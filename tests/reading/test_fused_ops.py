"""The fused operators of ONNX Runtime's own domain, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper

import qfunc
from qfunc.errors import CaptureError
from tests.reading.test_read import made, same, values

W, B, V = values(8, 8), values(8), values(8) + 1
X = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
CASES: dict[str, tuple[list[str], dict[str, Any]]] = {
    "Gelu": (["x"], {}), "BiasGelu": (["x", "b"], {}), "FastGelu": (["x", "b"], {}), "QuickGelu": (["x"], {"alpha": 1.5}),
    "SkipLayerNormalization": (["x", "x", "v", "b", "b"], {"epsilon": 1e-5}),
    "SkipSimplifiedLayerNormalization": (["x", "x", "v"], {"epsilon": 1e-5}),
    "FusedMatMul": (["x", "w"], {"transB": 1, "alpha": 0.3}), "Attention": (["x", "qkv", "qkv_b"], {"num_heads": 2}),
    "MultiHeadAttention": (["x", "x", "x", "qkv_b"], {"num_heads": 2, "scale": 0.4}),
}  # fmt: skip
STORED = {"w": W, "b": B, "v": V, "qkv": values(8, 24), "qkv_b": values(24)}


def fused(op: str, inputs: list[str], attributes: dict[str, Any], sizes: list[Any], stored: dict[str, Any]) -> onnx.ModelProto:
    """A model of one operator."""
    node = helper.make_node(op, inputs, ["y"], domain="com.microsoft", **attributes)
    model = made([node], {"x": sizes}, ["y"], {name: v for name, v in stored.items() if name in inputs})
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return model


@pytest.mark.parametrize("op", CASES)
def test_each_is_onnxruntime_s(op: str) -> None:
    inputs, attributes = CASES[op]
    same(fused(op, inputs, attributes, ["n", 5, 8], STORED), X)


@pytest.mark.parametrize(
    ("activation", "numbers"), [("Relu", []), ("LeakyRelu", [0.3]), ("Clip", [-0.2, 0.4]), ("Sigmoid", []), ("Tanh", [])]
)
def test_convolutions_with_an_activation(activation: str, numbers: list[float]) -> None:
    attributes = {"activation": activation, **({"activation_params": numbers} if numbers else {})}
    model = fused("FusedConv", ["x", "k"], attributes, ["n", 3, 6, 6], {"k": values(4, 3, 3, 3)})
    same(model, torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0)))


def test_a_mask_is_refused() -> None:
    model = fused("Attention", ["x", "qkv", "qkv_b", "m"], {"num_heads": 2}, ["n", 5, 8], {**STORED, "m": np.int32([5, 5])})
    with pytest.raises(CaptureError, match="found a mask, a cache or positions, wanted attention to all positions"):
        qfunc.read(model)
