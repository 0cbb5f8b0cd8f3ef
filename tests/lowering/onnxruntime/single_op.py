"""Models of one op between DequantizeLinear and QuantizeLinear, and adversarial qparams to run them with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime  # type: ignore[import-untyped]
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

Codes = np.ndarray[Any, Any]


class Model:
    """uint8 inputs, DequantizeLinear, one op, QuantizeLinear, uint8 output."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.inputs: list[Any] = []
        self.feed: dict[str, Codes] = {}

    def constant(self, value: Any) -> str:
        self.constants.append(numpy_helper.from_array(np.array(value), f"c{len(self.constants)}"))
        return str(self.constants[-1].name)

    def node(self, op: str, inputs: list[str], **attributes: Any) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name

    def real(self, codes: Codes, scale: float, zero: int) -> str:
        name = f"x{len(self.inputs)}"
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.UINT8, codes.shape))
        self.feed[name] = codes
        return self.node("DequantizeLinear", [name, self.constant(np.float32(scale)), self.constant(np.uint8(zero))])

    def held(self, codes: Codes, scale: Any, axis: int = 0) -> str:
        zeros = self.constant(np.zeros(np.shape(scale), codes.dtype))
        return self.node("DequantizeLinear", [self.constant(codes), self.constant(np.float32(scale)), zeros], axis=axis)

    def run(self, real: str, scale: float, zero: int, kernel: str, folder: Path) -> Tensor:
        out = self.node("QuantizeLinear", [real, self.constant(np.float32(scale)), self.constant(np.uint8(zero))])
        graph = helper.make_graph(self.nodes, "g", self.inputs, [helper.make_empty_tensor_value_info(out)], self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 3
        options.optimized_model_filepath = str(folder / "optimised.onnx")
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        ops = [n.op_type for n in onnx.load(folder / "optimised.onnx").graph.node]
        assert kernel in ops
        assert not {"DequantizeLinear", "QuantizeLinear"} & set(ops)
        return torch.tensor(session.run(None, self.feed)[0]).float()


class Draw:
    """Adversarial scales, zero points and codes from one seed."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def scale(self) -> float:
        kind = self.random.integers(3)
        if kind == 0:
            return float(2.0 ** self.random.integers(-8, 1))
        value = np.exp(self.random.uniform(-6, 0))
        return float(np.float32(value if kind == 1 else np.round(value * 64 + 1) / 64))

    def near_tie(self, scale: float) -> float:
        value = np.float32(scale * (2 * self.random.integers(1, 40) + 1) / 2 ** self.random.integers(2, 7))
        beside = (value, np.nextafter(value, np.float32(0)), np.nextafter(value, np.float32(9)))
        return float(beside[self.random.integers(3)])

    def zero(self) -> int:
        return int(self.random.choice([0, 255, 1, 127, 128, self.random.integers(256)]))

    def codes(self, *shape: int) -> Codes:
        if self.random.random() < 0.8:
            return self.random.integers(0, 256, shape).astype(np.uint8)
        return self.random.choice([0, 1, 254, 255], shape).astype(np.uint8)

    def weights(self, *shape: int) -> Codes:
        return self.random.integers(-127, 128, shape).astype(np.int8)

    def scales(self, count: int) -> Codes:
        return np.array([self.scale() for _ in range(count)], np.float32)


def tensor(codes: Codes) -> Tensor:
    return torch.tensor(codes.astype(np.float32))
