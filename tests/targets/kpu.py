"""A simulator of the K210's KPU in plain integers, from the sentences of nncase's sources and of Kendryte's kpu.h.

It reads the artifact alone: the tables of `kpu.json`, the weights of `kpu.bin`, and the chain of ops of `model.onnx`.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnx import helper, numpy_helper
from torch import Tensor

Image = list[list[list[int]]]
"""Codes by channel, row and column."""


def signed(value: int, bits: int) -> int:
    """A field of a register: it must hold the value."""
    assert -(1 << (bits - 1)) <= value < 1 << (bits - 1), (value, bits)
    return value


def carry_shift(value: int, shift: int) -> int:
    """carry_shift with Banker: floor, then one away from 0 above a half, and at a half if the result is odd."""
    if shift == 0:
        return value
    integral, fraction, half = value >> shift, value & ((1 << shift) - 1), 1 << (shift - 1)
    away = -1 if value < 0 else 1
    return integral + away if fraction > half or (fraction == half and integral % 2) else integral


def sums(x: Image, weights: Any, layer: dict[str, Any]) -> Image:
    """alu_out = sum x w + (arg_x sum x >> shift_x) + (arg_w sum w >> shift_w) + arg_add for each input channel, 36 bits."""
    size, depthwise = layer["filter"], layer["depthwise"]
    pad = 0 if size == 1 else 1
    rows, columns = len(x[0]), len(x[0][0])
    found: Image = []
    for out in range(weights.shape[0]):
        inputs = [out] if depthwise else range(len(x))
        plane = [[0] * columns for _ in range(rows)]
        for row in range(rows):
            for column in range(columns):
                products = total_x = total_w = 0
                for i, channel in enumerate(inputs):
                    for dy in range(size):
                        for dx in range(size):
                            y, z = row + dy - pad, column + dx - pad
                            inside = 0 <= y < rows and 0 <= z < columns
                            code = x[channel][y][z] if inside else layer["pad_value"]
                            weight = int(weights[out, i, dy, dx])
                            products, total_x, total_w = products + code * weight, total_x + code, total_w + weight
                alu = products + (signed(layer["arg_x"], 24) * total_x >> layer["shift_x"])
                alu += (signed(layer["arg_w"], 24) * total_w >> layer["shift_w"]) + signed(layer["arg_add"], 40) * len(inputs)
                plane[row][column] = signed(alu, 36)
        found.append(plane)
    return found


def code_of(alu: int, batch_norm: list[int], table: list[list[int]]) -> int:
    """(alu mul >> shift) + add, then the last segment with value > start_x, and 0 to 255."""
    mul, shift, add = batch_norm
    assert 0 <= shift <= 15
    value = signed((alu * signed(mul, 23) >> shift) + signed(add, 32), 36)
    start, slope, f, bias = next(s for s in reversed(table) if value > s[0])
    assert 0 <= f <= 43
    assert 0 <= bias <= 255
    return min(max(carry_shift((value - signed(start, 36)) * signed(slope, 16), f) + bias, 0), 255)


def layer_codes(x: Image, weights: Any, layer: dict[str, Any]) -> Image:
    """The codes of a convolution: padded before, cropped and picked after the KPU."""
    assert len(layer["activation"]) == 16
    kpu_pad = 0 if layer["filter"] == 1 else 1
    top, left, bottom, right = layer["pads"]
    more = [max(p - kpu_pad, 0) for p in (top, left, bottom, right)]
    value = layer["pad_value"]
    wide = [
        [[value] * (more[1] + len(plane[0]) + more[3])] * more[0]
        + [[value] * more[1] + row + [value] * more[3] for row in plane]
        + [[value] * (more[1] + len(plane[0]) + more[3])] * more[2]
        for plane in x
    ]
    full = sums(wide, weights, layer)
    crop = [max(kpu_pad - p, 0) for p in (top, left, bottom, right)]
    rows, columns = len(full[0]) - crop[2], len(full[0][0]) - crop[3]
    step_y, step_x = layer["strides"]
    return [
        [
            [code_of(plane[r][c], layer["batch_norm"][out], layer["activation"]) for c in range(crop[1], columns, step_x)]
            for r in range(crop[0], rows, step_y)
        ]
        for out, plane in enumerate(full)
    ]


class Simulator:
    """The chip and its CPU, on chains of convolutions, clamps, pools and one linear layer."""

    def __init__(self, artifact: Any) -> None:
        self.graph = onnx.load_from_string(artifact.files["model.onnx"]).graph
        self.constants = {i.name: numpy_helper.to_array(i).copy() for i in self.graph.initializer}
        self.layers = json.loads(artifact.files["kpu.json"])["layers"]
        self.weights = artifact.files["kpu.bin"]
        self.qparams: tuple[Any, int] = (np.float32(1), 0)  # of the codes at hand

    def run(self, x: Tensor) -> Tensor:
        """The output for one image, in real values."""
        value: Any = x
        codes: Image | None = None
        for node in self.graph.node:
            arguments = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            if node.name in self.layers:
                layer = self.layers[node.name]
                offset, shape = layer["weights"]["offset"], layer["weights"]["shape"]
                weights = np.frombuffer(self.weights, np.uint8, int(np.prod(shape)), offset).reshape(shape)
                codes = layer_codes(codes or quantized(value, layer["reads"]), weights, layer)
                self.qparams = np.float32(layer["returns"]["scale"]), layer["returns"]["zero_point"]
            elif node.op_type in ("Relu", "Clip") and codes is not None:
                pass  # in the table of the convolution
            elif node.op_type == "MaxPool" and codes is not None:
                codes = (
                    F.max_pool2d(torch.tensor(codes).double(), arguments["kernel_shape"], arguments["strides"]).long().tolist()
                )
            elif node.op_type == "AveragePool" and codes is not None:
                size = arguments["kernel_shape"][0]
                assert arguments["kernel_shape"] == arguments["strides"] == [size, size]
                codes = [
                    [
                        [sum(p[r + i][c + j] for i in range(size) for j in range(size)) // size**2 for c in _steps(p[0], size)]
                        for r in _steps(p, size)
                    ]
                    for p in codes
                ]
            else:
                value, codes = self.real(codes, value), None
                value = self.on_cpu(node, arguments, value)
        return self.real(codes, value)

    def real(self, codes: Image | None, value: Tensor) -> Tensor:
        """s (q - z) of codes; pools keep the qparams of the convolution before them."""
        if codes is None:
            return value
        scale, zero = self.qparams
        return (torch.tensor(codes) - zero).float() * float(scale)

    def on_cpu(self, node: Any, arguments: dict[str, Any], x: Tensor) -> Tensor:
        """An op in float."""
        match node.op_type:
            case "Identity":
                return x
            case "Flatten":
                return x.flatten()
            case "GlobalAveragePool" | "ReduceMean":
                return x.mean((1, 2), keepdim=node.op_type == "GlobalAveragePool" or bool(arguments.get("keepdims", 1)))
            case "Gemm":
                weight = torch.tensor(self.constants[node.input[1]])
                bias = torch.tensor(self.constants[node.input[2]])
                return F.linear(x, weight if arguments.get("transB") else weight.T, bias)
        raise AssertionError(node.op_type)


def quantized(x: Tensor, tensor: dict[str, Any]) -> Image:
    """lrintf(x / s + z), from 0 to 255."""
    codes = np.rint(x.numpy().astype(np.float32) / np.float32(tensor["scale"]) + np.float32(tensor["zero_point"]))
    return np.clip(codes, 0, 255).astype(int).tolist()


def _steps(rows: list[Any], size: int) -> range:
    return range(0, len(rows) - size + 1, size)


def run(artifact: Any, inputs: list[Tensor]) -> list[Any]:
    """Run an artifact on a batch."""
    chip = Simulator(artifact)
    return [torch.stack([chip.run(x) for x in inputs[0]]).numpy()]
