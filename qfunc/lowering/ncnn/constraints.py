"""Constraints of ncnn: ops without a layer, which `quantize` refuses by kind and attributes, and formats of tensors."""

from __future__ import annotations

from typing import Any

from qfunc.lowering.format_checks import require, require_one_scale, require_symmetric
from qfunc.lowering.quantized_tensor import QuantizedTensor
from qfunc.specs import Attr, Int, Op, Refuse, Where

NO_LAYER = "docs/targets.md lists them"
LAYERS = "ncnn, docs/developer-guide/operators.md: "
OUTSIDE = "Keep it out of the deployed model, or deploy Q/DQ ONNX by edit.deploy(QdqLowering())."
INTERPOLATED = Op("resize") & ~Attr("mode", "nearest") & ~Attr("mode", "bilinear")
WRAPPED = Op("pad") & Attr("mode", "circular")
UNDILATED = Attr("dilation", 1) | Attr("dilation", (1,)) | Attr("dilation", (1, 1))
CURVES = ("softplus", "celu", "softsign", "softshrink", "hardshrink", "log_sigmoid")
OTHERS = (
    "lstm", "gru", "rnn", "embedding", "threshold", "cumsum", "repeat", "tile", "flip", "tan", "sinh", "cosh", "asinh", "erf",
    "erfc", "sign", "trunc", "frac", "fmod", "logsumexp", "var", "std", "vector_norm", "pixel_shuffle", "pixel_unshuffle",
    "grid_sample",
)  # fmt: skip


def skips_channels(op: Any) -> bool:
    """Return True if a slice steps over channels.

    >>> from types import SimpleNamespace
    >>> [skips_channels(SimpleNamespace(attributes={"index": (slice(None), slice(0, 8, n))})) for n in (1, 2)]
    [False, True]
    """
    index = op.attributes.get("index")
    second = index[1] if isinstance(index, tuple) and len(index) > 1 and index[0] is not ... else None
    return isinstance(second, slice) and second.step not in (None, 1)


LEGALITY = (
    Refuse(Op("max_pool") & ~UNDILATED, because=f"{LAYERS}Pooling has no dilation", do="Use dilation=1."),
    Refuse(INTERPOLATED, because=NO_LAYER, do="Use mode='nearest' or mode='bilinear'."),
    Refuse(
        WRAPPED,
        because=f"{LAYERS}Padding writes a constant, the edge or its mirror",
        do="Use mode='constant', mode='replicate' or mode='reflect'.",
    ),
    Refuse(Op("slice") & Where(skips_channels), because=NO_LAYER, do="Take every channel, or steps along height and width."),
    Refuse(Op("local_response_norm"), because=NO_LAYER, do="Use batch_norm, which folds."),
    Refuse(Op(CURVES), because=NO_LAYER, do="Use leaky_relu, elu, gelu or mish."),
    Refuse(Op("log_softmax"), because=NO_LAYER, do="Use softmax, or leave it out: the largest logit is the same."),
    Refuse(Op(OTHERS), because=NO_LAYER, do=OUTSIDE),
)


def require_site(site: QuantizedTensor) -> None:
    """Raise unless a tensor is symmetric int8 without the code -128, per tensor if it is an activation.

    Raises:
        DeployError: names the tensor.
    """
    do = "Use the schemes of targets.ncnn, or edit.deploy(QdqLowering())."
    fmt = site.format
    narrow = isinstance(fmt, Int) and fmt.signed and fmt.qmin >= -127 and fmt.qmax <= 127
    if site.role == "activation":
        require(site, fmt == Int(8, low=-127), repr(fmt), "Int(8, low=-127)", do)
        require_one_scale(site, "ncnn")
    else:
        require(site, narrow, repr(fmt), "Int(8, low=-127) at most, biases in float", do)
    require_symmetric(site, site.name, "ncnn")


__all__ = ["LEGALITY", "require_site", "skips_channels"]
