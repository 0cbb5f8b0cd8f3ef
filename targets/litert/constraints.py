"""The ops that no operator of TFLite computes, by kind and attributes: `quantize` refuses them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qfunc.errors import DeployError
from qfunc.lowering.format_checks import ALONE, AS_OUTPUTS, BESIDE, MIXED, OF_PLACES, OF_THE_BATCH, SELECTED
from qfunc.specs import Attr, Op, Refuse

if TYPE_CHECKING:
    from qfunc.lowering.nhwc.tensor import NhwcTensor  # which loads onnx

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
    Refuse(ALONE, because=NO_OPERATOR, do=BESIDE),
    Refuse(Op(UNWRITTEN), because=NO_OPERATOR, do=OUTSIDE),
    Refuse(OF_PLACES, because=AS_OUTPUTS, do=OUTSIDE),
    Refuse(COMPARISONS, because="qfunc writes masks that are inputs, cast to bool", do=OF_INPUTS),
    Refuse(MATRICES, because="FULLY_CONNECTED takes one constant matrix", do=BY_ONE),
    Refuse(Op("resize") & MODES, because=NO_OPERATOR, do="Use mode='nearest' or mode='bilinear'."),
    Refuse(SELECTED | MIXED & Op(("flip", "roll")), because="qfunc writes slices of the other axes", do=OF_THE_BATCH),
)


def require_exponent(x: NhwcTensor) -> None:
    """Raise if the scale of the codes of a softmax is 2^-26 or less: the reference kernel ends the process there.

    Raises:
        DeployError: names the tensor.

    Source: TFLite, kernels/internal/quantization_util.cc, PreprocessSoftmaxScaling and QuantizeMultiplierGreaterThanOne.
    """
    if x.qparams is not None and x.qparams.scale[0] <= 2.0**-26:
        do = "Calibrate on inputs of the deployed range."
        raise DeployError(
            where=f"tensor {x.name!r}", found=f"a scale of {x.qparams.scale[0]:g}", wanted="more than 2^-26", do=do
        )
