"""The ops that no operator of TFLite computes, by kind and attributes: `quantize` refuses them."""

from __future__ import annotations

from qfunc.lowering.format_checks import MIXED, OF_THE_BATCH, SELECTED
from qfunc.specs import Attr, Op, Refuse

NO_OPERATOR = "TensorFlow Lite builtin_ops.h: no such operator on real values, or not in that form"
OUTSIDE = "Compute it outside the deployed model, or deploy Q/DQ ONNX by edit.deploy(QdqLowering())."
UNWRITTEN = (
    "einsum", "fmod", "hypot", "logaddexp", "atan2", "xlogy", "nan_to_num", "threshold", "tan", "asin", "acos", "atan", "sinh",
    "cosh", "asinh", "acosh", "atanh", "isnan", "isinf", "gather", "index_put", "topk", "sort", "argsort", "cumsum",
    "grid_sample", "antialias", "lstm", "gru", "rnn",
)  # fmt: skip
"""Kinds of ops without a form in the channels-last formats."""
MODES = Attr("mode", "bicubic") | Attr("mode", "trilinear") | Attr("mode", "linear") | Attr("mode", "area")

COMPARISONS = Op("compare") & ~Attr("created", True)
MATRICES = Op("matmul") & Attr("matrices", True)
OF_INPUTS = "Give the model a mask of 0 and 1 as its input."
BY_ONE = "Multiply by one matrix, or compute the batch of matrices."

LEGALITY = (
    Refuse(Op(UNWRITTEN), because=NO_OPERATOR, do=OUTSIDE),
    Refuse(COMPARISONS, because="qfunc writes masks that are inputs, cast to bool", do=OF_INPUTS),
    Refuse(MATRICES, because="FULLY_CONNECTED takes one constant matrix", do=BY_ONE),
    Refuse(Op("resize") & MODES, because=NO_OPERATOR, do="Use mode='nearest' or mode='bilinear'."),
    Refuse(SELECTED | MIXED & Op(("flip", "roll")), because="qfunc writes slices of the other axes", do=OF_THE_BATCH),
)

__all__ = ["BY_ONE", "COMPARISONS", "LEGALITY", "MATRICES", "MODES", "NO_OPERATOR", "OF_INPUTS", "OUTSIDE", "UNWRITTEN"]
