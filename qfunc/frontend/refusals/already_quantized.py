"""Refuse models that are quantized already: observers, fake quantizers, quantized layers, tensors and ops of torch."""

from __future__ import annotations

import re

import torch
from torch import fx, nn

from qfunc.errors import CaptureError, a_or_an
from qfunc.frontend.source_location import source_line

_MODULES = re.compile(
    r"torch\.ao\.quantization\.(observer|fake_quantize|experimental|pt2e)|torchao\."
    r"|torch\.ao\.nn\.(qat|quantized|intrinsic\.(qat|quantized)|sparse\.quantized)"
)
"""The modules of Python whose classes quantize; stubs and fused float layers of torch.ao compute in float."""
_OPS = re.compile(
    r"_?fake_quantize_\w+|quantize_per_\w+|dequantize\w*|int_repr|fused_moving_avg_obs_fake_quant|_?choose_qparams\w*"
)
_PACKAGES = ("quantized", "quantized_decomposed", "torchao")
_FLOAT = "a float model, because qfunc places the quantizers"
_CURE = "Pass the float model from before it was prepared or converted."


def require_float_model(model: nn.Module) -> None:
    """Raise if a module or a tensor of a model quantizes already.

    Raises:
        CaptureError: names the first module or tensor.

    >>> require_float_model(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()))
    """
    for path, module in model.named_modules():
        kinds = [kind for kind in type(module).__mro__ if _MODULES.match(f"{kind.__module__}.")]
        if kinds:
            found = f"{a_or_an(type(module))} of {kinds[0].__module__}"
            where = f"module {path!r}" if path else type(module).__name__
            raise CaptureError(where=where, found=found, wanted=_FLOAT, do=_CURE)
    for path, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_quantized or type(tensor).__module__.startswith("torchao."):
            found = f"{a_or_an(type(tensor))} of codes"
            raise CaptureError(where=f"tensor {path!r}", found=found, wanted=_FLOAT, do=_CURE)
    if isinstance(model, fx.GraphModule):
        require_float_ops(model.graph)


def require_float_ops(graph: fx.Graph) -> None:
    """Raise if an op of a graph quantizes already.

    Raises:
        CaptureError: names the user's line and the op.
    """
    for node in graph.nodes:
        if name := _quantizing(node):
            raise _error(source_line(node) or f"op {node.name!r}", name)


def quantizing_op_error(message: str, where: str) -> CaptureError | None:
    """Return the error for an op that quantizes, if the message of torch.export's refusal names one; else None.

    >>> quantizing_op_error("aten.dequantize.self", "model.py:7").found
    'dequantize, an op that quantizes already'
    """
    found = re.search(rf"\b(?:aten|{'|'.join(_PACKAGES)})(?:\.|::)({_OPS.pattern})", message)
    return None if found is None else _error(where, found[1].partition("_cachemask")[0].lstrip("_"))


def _error(where: str, name: str) -> CaptureError:
    do = "Leave the op out of the forward, or pass the float model from before it was prepared or converted."
    return CaptureError(where=where, found=f"{name}, an op that quantizes already", wanted=_FLOAT, do=do)


def _quantizing(node: fx.Node) -> str:
    # The name of an op of torch that quantizes, or "".
    if node.op == "call_method":
        name = str(node.target)
        return name if name in ("dequantize", "int_repr") else ""
    if node.op != "call_function":
        return ""
    if isinstance(node.target, torch._ops.OpOverload):
        package, name, *_ = str(node.target).split(".")
        return name if package in _PACKAGES or (package == "aten" and _OPS.fullmatch(name)) else ""
    name = getattr(node.target, "__name__", "")
    return name if _OPS.fullmatch(name) and getattr(torch, name, None) is node.target else ""
