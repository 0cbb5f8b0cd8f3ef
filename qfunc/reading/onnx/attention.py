"""Read the fused operators of ONNX Runtime's own domain that exported transformers have."""

from __future__ import annotations

from typing import Any

import onnx
import torch
import torch.nn.functional as F
from onnx import helper

from qfunc.reading.node import NodeReader, Reader
from qfunc.reading.onnx import linear
from qfunc.reading.values import Constant


def _gelu(how: str) -> Reader:
    def read(r: NodeReader) -> Any:
        x = r.call(torch.add, r.x(), r.weight(1)) if r.has(1) else r.x()
        return r.call(F.gelu, x, approximate=how)

    return read


def _quick_gelu(r: NodeReader) -> Any:
    scaled = r.call(torch.mul, r.x(), float(r.attribute("alpha", 1.702)))
    return r.call(torch.mul, r.x(), r.call(torch.sigmoid, scaled))


def _skip_layer_norm(r: NodeReader) -> Any:
    total = r.call(torch.add, r.x(0), r.x(1))
    simple = r.op == "SkipSimplifiedLayerNormalization"
    bias = 3 if simple else 4
    total = r.call(torch.add, total, r.weight(bias)) if r.has(bias) else total
    weight: Any = r.weight(2)
    shape, eps = tuple(weight.tensor.shape), float(r.attribute("epsilon", 1e-12))
    norm = F.rms_norm if simple else F.layer_norm
    found = r.call(norm, total, shape, weight, *(() if simple else (r.weight(3),)), eps)
    return [found, None, None, total]


def _fused_conv(r: NodeReader) -> Any:
    found = linear.READERS["Conv"](r)
    found = r.call(torch.add, found, r.x(3)) if r.has(3) else found
    name = r.attribute("activation", "")
    numbers = r.attribute("activation_params", [])
    functions: dict[str, Any] = {
        "": lambda x: x, "Relu": lambda x: r.call(F.relu, x), "Sigmoid": lambda x: r.call(torch.sigmoid, x),
        "Tanh": lambda x: r.call(torch.tanh, x), "LeakyRelu": lambda x: r.call(F.leaky_relu, x, *numbers[:1]),
        "Clip": lambda x: r.call(torch.clamp, x, *numbers[:2]),
    }  # fmt: skip
    if name not in functions:
        raise r.refuse(f"a convolution with {name!r}", f"one of {sorted(functions)}", "Save the model without optimization.")
    return functions[name](found)


def _fused_matmul(r: NodeReader) -> Any:
    a, b = r.weight(0), r.weight(1)
    if r.attribute("transBatchA", 0) or r.attribute("transBatchB", 0):
        raise r.refuse("a transposed batch", "matrices", "Save the model without optimization.")
    a = r.call(torch.transpose, a, -2, -1) if r.attribute("transA", 0) else a
    b = r.call(torch.transpose, b, -2, -1) if r.attribute("transB", 0) else b
    found, factor = r.call(torch.matmul, a, b), float(r.attribute("alpha", 1.0))
    return found if factor == 1 else r.call(torch.mul, found, factor)


def _attention(r: NodeReader) -> Any:
    heads, weight, bias = int(r.attribute("num_heads")), r.known(1, "weights"), r.known(2, "biases")
    if any(r.has(i) for i in range(3, len(r.inputs))) or r.attribute("unidirectional", 0) or r.attribute("do_rotary", 0):
        raise r.refuse("a mask, a cache or positions", "attention to all positions", "Save the model without optimization.")
    parts = []
    for k, (w, b) in enumerate(zip(weight.chunk(3, 1), bias.chunk(3), strict=True)):
        word = "qkv"[k]
        projected = r.call(
            F.linear, r.x(), Constant(w.T.contiguous(), f"{r.path}.{word}.weight", True),
            Constant(b.clone(), f"{r.path}.{word}.bias", True),
        )  # fmt: skip
        parts.append(_heads(r, projected, heads))
    return _attended(r, parts, r.attribute("scale"))


def _multi_head_attention(r: NodeReader) -> Any:
    if any(r.has(i) for i in range(4, len(r.inputs))) or r.attribute("unidirectional", 0) or not (r.has(1) and r.has(2)):
        raise r.refuse("a mask, a cache or packed inputs", "queries, keys and values", "Save the model without optimization.")
    given: list[Any] = [r.x(i) for i in range(3)]
    if r.has(3):
        given = [r.call(torch.add, x, Constant(b.clone(), f"{r.path}.bias_{k}", True))
                 for k, (x, b) in enumerate(zip(given, r.known(3, "biases").chunk(3), strict=True))]  # fmt: skip
    heads = int(r.attribute("num_heads"))
    return _attended(r, [_heads(r, x, heads) for x in given], r.attribute("scale"))


def _heads(r: NodeReader, x: Any, heads: int) -> Any:
    return r.call(torch.transpose, r.call(torch.unflatten, x, -1, (heads, -1)), 1, 2)


def _attended(r: NodeReader, parts: list[Any], scale: Any) -> Any:
    factor = None if scale in (None, 0.0) else float(scale)
    found = r.call(F.scaled_dot_product_attention, *parts, None, 0.0, False, scale=factor)
    return r.call(torch.flatten, r.call(torch.transpose, found, 1, 2), 2)


def _standard_attention(r: NodeReader) -> Any:
    """Read Attention of ONNX's own domain, versions 23 and 24: softmax(scale Q K^T + mask) V, by heads."""
    rows, given = r.known_rank() == 3, [r.x(i) for i in range(3)]
    if rows:
        queries, keys = int(r.attribute("q_num_heads")), int(r.attribute("kv_num_heads"))
        given = [_heads(r, x, n) for x, n in zip(given, (queries, keys, keys), strict=True)]
        grouped = queries != keys
    else:
        grouped = r.length(1) != r.length(1, 1)
    mask, causal = r.x(3) if r.has(3) else None, bool(r.attribute("is_causal", 0))
    scale = r.attribute("scale")
    factor = None if scale is None else float(scale)
    found = r.call(F.scaled_dot_product_attention, *given, mask, 0.0, causal, scale=factor, enable_gqa=grouped)
    return r.call(torch.flatten, r.call(torch.transpose, found, 1, 2), 2) if rows else found


def is_plain(node: onnx.NodeProto) -> bool:
    """Return True for an Attention of ONNX's own domain that is one op of torch; others are expanded as ONNX defines them."""
    named = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    plain = {"is_causal", "kv_num_heads", "q_num_heads", "scale"} >= set(named)
    given = [bool(name) for name in node.input] + [False] * 7
    return plain and not any(given[4:]) and not any(node.output[1:]) and not (given[3] and named.get("is_causal"))


STANDARD: dict[str, Reader] = {"Attention": _standard_attention}
"""The readers of ONNX's own domain, by operator."""
READERS: dict[str, Reader] = {
    "Gelu": _gelu("none"), "BiasGelu": _gelu("none"), "FastGelu": _gelu("tanh"), "QuickGelu": _quick_gelu,
    "SkipLayerNormalization": _skip_layer_norm, "SkipSimplifiedLayerNormalization": _skip_layer_norm,
    "FusedConv": _fused_conv, "FusedMatMul": _fused_matmul, "Attention": _attention,
    "MultiHeadAttention": _multi_head_attention,
}  # fmt: skip
"""The readers of com.microsoft, by operator."""
