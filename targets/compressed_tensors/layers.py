"""The quantized layers of a Q/DQ model, as modules of a compressed-tensors checkpoint: their tensors and their arguments.

Integers are stored in words of 32 bits, E2M1 in halves of bytes, E8M0 as exponents.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import torch
from attrs import frozen
from torch import Tensor

from qfunc.errors import DeployError
from qfunc.lowering.qdq.qparams import Array
from qfunc.lowering.qdq.reader import QdqModel, copies
from qfunc.specs import Format, Int
from qfunc.specs.formats import E2M1

FP4 = {"num_bits": 4, "type": "float", "symmetric": True}
POWERS = {"strategy": "group", "scale_dtype": "torch.uint8"}
TWO_LEVELS = {"strategy": "tensor_group", "scale_dtype": "torch.float8_e4m3fn"}
_WEIGHT = ".weight"
_E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The magnitudes of E2M1 by the low three bits of a code."""


@frozen(eq=False)
class Layer:
    """A module `name`: its format, the arguments of its weight and of its input, and its tensors by their own names."""

    name: str
    form: str
    weights: Mapping[str, Any]
    inputs: Mapping[str, Any] | None
    tensors: Mapping[str, Tensor]


def module_of(parameter: str) -> str:
    """Return the module of a weight.

    Raises:
        DeployError: a name that no weight of torch.nn.Linear has.
    """
    if not parameter.endswith(_WEIGHT):
        do = "Compute the product by torch.nn.Linear, or leave it in float by edit.skip."
        raise DeployError(
            where=f"tensor {parameter!r}", found="a weight of no module", wanted="that of a module, X.weight", do=do
        )
    return parameter.removesuffix(_WEIGHT)


def layer_of(source: QdqModel, node: onnx.NodeProto, weight: onnx.NodeProto, fmt: Format, largest: float) -> Layer:
    """Return the layer of a product.

    Args:
        source: The model.
        node: The product, a Gemm or MatMul.
        weight: The DequantizeLinear of its weight.
        fmt: The format of the weight.
        largest: The largest scale of all layers that read the same tensor, which share a global scale.
    Raises:
        DeployError: a format, or an input, that compressed-tensors does not have.
    """
    name = module_of(weight.input[0].removesuffix(".codes"))
    codes, scale, zeros = (source.constant(weight, i) for i in range(3))
    block = int(source.attribute(weight, "block_size", 0))
    if not (node.op_type == "Gemm" and source.attribute(node, "transB", 0)):
        codes, scale, zeros = (a.T if a.ndim > 1 else a for a in (codes, scale, zeros))
    inputs, tensors = _input(source, node.input[0], name)
    scale = scale.reshape(1) if scale.ndim == 0 else scale.reshape(len(codes), -1)
    strategy = "group" if block else "channel" if scale.ndim == 2 else "tensor"
    arguments = {"strategy": strategy, "dynamic": False} | ({"group_size": block} if block else {})
    if isinstance(fmt, Int):
        return _of_integers(name, fmt, codes, scale, zeros, arguments, inputs, tensors)
    if fmt == E2M1:
        return _of_halves(name, codes, scale, block, largest, inputs, tensors)
    stored = {"weight": torch.from_numpy(codes.view(np.uint8).copy()).view(torch.float8_e4m3fn)}
    stored |= {"weight_scale": _floats(scale)}
    weights = {"num_bits": 8, "type": "float", "symmetric": True, **arguments}
    return Layer(name, "float-quantized", weights, inputs, {**stored, **tensors})


def before_copies(source: QdqModel, name: str) -> str:
    """Return the tensor of which a tensor is a copy, in another shape perhaps."""
    while (node := source.producers.get(name)) is not None and (node.op_type == "Reshape" or copies(node)):
        name = node.input[0]
    return name


def _of_integers(
    name: str, fmt: Int, codes: Array, scale: Array, zeros: Array, arguments: Mapping[str, Any],
    inputs: Mapping[str, Any] | None, tensors: Mapping[str, Tensor],
) -> Layer:  # fmt: skip
    shift = 0 if fmt.signed else 1 << fmt.bits - 1
    codes, zeros = (a.astype(np.int64) - shift for a in (codes, zeros))
    symmetric = not zeros.any()
    weights = {"num_bits": fmt.bits, "type": "int", "symmetric": symmetric, **arguments}
    if inputs is not None and inputs["type"] == "int":
        stored = {"weight": torch.from_numpy(codes.astype(np.int8)), "weight_scale": _floats(scale)}
        return Layer(name, "int-quantized", weights, inputs, {**stored, **tensors})
    packed = {"weight_packed": torch.from_numpy(pack_words(codes, fmt.bits).copy()), "weight_scale": _floats(scale)}
    packed |= {"weight_shape": torch.tensor(codes.shape)}
    if not symmetric:
        words = pack_words(zeros.reshape(scale.shape).T, fmt.bits).T
        packed["weight_zero_point"] = torch.from_numpy(np.ascontiguousarray(words))
    return Layer(name, "pack-quantized", weights, inputs, packed | dict(tensors))


def _of_halves(
    name: str, codes: Array, scale: Array, block: int, largest: float, inputs: Mapping[str, Any] | None,
    tensors: Mapping[str, Tensor],
) -> Layer:  # fmt: skip
    packed = {"weight_packed": torch.from_numpy(_pack_halves(codes.astype(np.float32))), **tensors}
    arguments = FP4 | {"dynamic": False, "group_size": block}
    if block == 32:
        packed["weight_scale"] = torch.from_numpy(exponents(scale))
        return Layer(name, "mxfp4-pack-quantized", arguments | POWERS, inputs, packed)
    inner, outer = two_levels(scale, largest)
    packed["weight_scale"] = torch.from_numpy(inner).to(torch.float8_e4m3fn)
    packed["weight_global_scale"] = torch.tensor([outer])
    return Layer(name, "nvfp4-pack-quantized", arguments | TWO_LEVELS, inputs, packed)


def _input(source: QdqModel, name: str, layer: str) -> tuple[dict[str, Any] | None, dict[str, Tensor]]:
    # (the arguments, the scale) of the quantizer before a product; (None, {}) for a real input.
    node = source.producers.get(before_copies(source, name))
    if node is None or not (node.domain == "qfunc" or node.op_type == "DequantizeLinear"):
        return None, {}
    if "Half" in node.op_type:
        block, outer = (source.attribute(node, key, None) for key in ("size", "outer"))
        if outer is None:
            return FP4 | POWERS | {"dynamic": True, "group_size": block}, {}
        return FP4 | TWO_LEVELS | {"dynamic": "local", "group_size": block}, {"input_global_scale": torch.tensor([1 / outer])}
    kind = "float" if "Float" in node.op_type else "int"
    arguments = {"num_bits": 8, "type": kind, "symmetric": True}
    if node.op_type.startswith("Dynamic"):
        return arguments | {"strategy": "token", "dynamic": True}, {}
    if kind == "int" and source.constant(node, 2).any():
        found, do = "an input with a zero point", "Edit the scheme: zero_point=None."
        raise DeployError(where=f"layer {layer!r}", found=found, wanted="a symmetric input, as vLLM takes", do=do)
    return arguments | {"strategy": "tensor", "dynamic": False}, {"input_scale": _floats(source.constant(node, 1).reshape(1))}


def _floats(values: Array) -> Tensor:
    return torch.from_numpy(np.array(values, np.float32))


def pack_words(codes: Array, bits: int) -> Array:
    """Return signed codes [N, K] in words, int32 [N, ceil(K bits / 32)].

    A row is one string of bits: code + 2^(bits - 1) by code, the low bits first, and zeros up to the end of a word.
    Source: compressed-tensors, compressors/pack_quantized/helpers.py.

    >>> [hex(word) for word in pack_words(np.array([[-8, -7, -6, 7]]), 4)[0]]
    ['0xf210']
    """
    unsigned = (codes.astype(np.int64) + (1 << bits - 1)).astype(np.uint8)
    row = np.unpackbits(unsigned[..., None], axis=-1, bitorder="little")[..., :bits].reshape(len(codes), -1)
    return np.packbits(np.pad(row, ((0, 0), (0, -row.shape[1] % 32))), axis=-1, bitorder="little").view("<i4")


def _pack_halves(values: Array) -> Array:
    """Return values of E2M1 [N, K], K even, in bytes [N, K / 2], the first of two in the low half.

    Source: compressed-tensors, compressors/nvfp4/helpers.py; OCP Microscaling Formats 1.0, table 1.

    >>> _pack_halves(np.array([[0.5, -6.0, 1.0, -0.0]])).tolist()
    [[241, 130]]
    """
    index = np.searchsorted(_E2M1_VALUES, np.abs(values)).astype(np.uint8) | np.signbit(values).astype(np.uint8) << 3
    return np.asarray(index[:, ::2] | index[:, 1::2] << 4, np.uint8)


def exponents(scale: Array) -> Array:
    """Return powers of two as E8M0, 127 + log2 s.

    >>> exponents(np.float32([0.25, 1.0])).tolist()
    [125, 127]
    """
    return (np.frexp(scale)[1] + 126).astype(np.uint8)


def two_levels(scale: Array, largest: float) -> tuple[Array, float]:
    """Return (s1, g) with s = s1 / g: g is a power of two by which `largest` is at most 448 and above 224.

    >>> two_levels(np.float32([0.5, 0.25]), 0.5)
    (array([256., 128.], dtype=float32), 512.0)
    """
    fraction, exponent = np.frexp(largest / 448.0)
    outer = 2.0 ** float(exponent - (fraction == 0.5)) if largest else 1.0
    return np.asarray(scale / np.float32(outer), np.float32), 1.0 / outer
