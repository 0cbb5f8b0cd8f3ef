"""What the files of ncnn have no layer for, by kind and attributes: `quantize` says it, sizes are left to `deploy`."""

from __future__ import annotations

from typing import Any

from qfunc.specs import Attr, Op, Refuse, Where

NO_LAYER = "docs/targets.md lists them"
LAYERS = "ncnn, docs/developer-guide/operators.md: "
OUTSIDE = "Keep it out of the deployed model, or deploy Q/DQ ONNX by edit.deploy(QdqLowering())."
INTERPOLATED = Op("resize") & ~Attr("mode", "nearest") & ~Attr("mode", "bilinear")
WRAPPED = Op("pad") & Attr("mode", "circular")
UNDILATED = Attr("dilation", 1) | Attr("dilation", (1,)) | Attr("dilation", (1, 1))
NORMS = ("layer_norm", "group_norm", "instance_norm", "rms_norm", "local_response_norm")
CURVES = ("softplus", "celu", "selu", "softsign", "softshrink", "hardshrink", "log_sigmoid")
OTHERS = (
    "lstm", "gru", "rnn", "embedding", "threshold", "cumsum", "repeat", "tile", "flip", "sin", "cos", "tan", "atan", "sinh",
    "cosh", "asinh", "erf", "erfc", "floor", "ceil", "round", "sign", "trunc", "frac", "fmod", "amax", "amin", "prod",
    "logsumexp", "var", "std", "vector_norm", "pixel_shuffle", "pixel_unshuffle", "grid_sample",
)  # fmt: skip


def skips_channels(op: Any) -> bool:
    """Whether a slice takes every so manieth channel.

    >>> from types import SimpleNamespace
    >>> [skips_channels(SimpleNamespace(attributes={"index": (slice(None), slice(0, 8, n))})) for n in (1, 2)]
    [False, True]
    """
    index = op.attributes.get("index")
    second = index[1] if isinstance(index, tuple) and len(index) > 1 and index[0] is not ... else None
    return isinstance(second, slice) and second.step not in (None, 1)


LEGALITY = (
    Refuse(Op("max_pool") & ~UNDILATED, because=f"{LAYERS}Pooling has no dilation", do="Use dilation=1."),
    Refuse(INTERPOLATED, because=NO_LAYER, do="Resize images by mode='nearest' or 'bilinear'."),
    Refuse(
        WRAPPED,
        because=f"{LAYERS}Padding writes a constant, the edge or its mirror",
        do="Pad by mode='constant', 'replicate' or 'reflect'.",
    ),
    Refuse(Op("slice") & Where(skips_channels), because=NO_LAYER, do="Take every channel, or steps along height and width."),
    Refuse(Op(NORMS), because=NO_LAYER, do="Use batch_norm, which folds."),
    Refuse(Op(CURVES), because=NO_LAYER, do="Use leaky_relu, elu, gelu or mish."),
    Refuse(Op("log_softmax"), because=NO_LAYER, do="Use softmax, or leave it out: the largest logit is the same."),
    Refuse(Op(OTHERS), because=NO_LAYER, do=OUTSIDE),
)

__all__ = ["LEGALITY", "skips_channels"]
