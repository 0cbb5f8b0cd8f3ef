"""Constraints of ncnn: ops without a layer, which `quantize` refuses by kind and attributes, and formats of tensors."""

from __future__ import annotations

from qfunc.lowering.format_checks import (
    ALONE, AS_OUTPUTS, BESIDE, MIXED, OF_PLACES, ONE_EXAMPLE, require, require_one_scale, require_symmetric,
)  # fmt: skip
from qfunc.lowering.quantized_tensor import QuantizedTensor
from qfunc.specs import AnyInput, Attr, GraphOutput, Int, Op, Refuse

NO_LAYER = "docs/targets.md lists them"
OUTSIDE = "Keep it out of the deployed model, or deploy Q/DQ ONNX by edit.deploy(QdqLowering())."
EXACT = Op("resize") & (Attr("mode", "nearest-exact") | Attr("mode", "trilinear"))
OTHERS = ("fmod", "grid_sample", "topk", "sort", "argsort", "einsum", "index_put")


MOVED = Attr("batch_axis", 1) | Attr("batch_axis", 2) | Attr("batch_axis", 3)
MASKS = Op(("compare", "logic", "not"))
OF_MASKS = Op(("where", "mask", "logic", "not", "cast", "reshape", "flatten", "squeeze", "unsqueeze", "expand", "size"))
"""Readers of masks that qfunc writes."""

LEGALITY = (
    Refuse(ALONE, because="qfunc writes it as a part of a layer", do=BESIDE),
    Refuse(MIXED, because=ONE_EXAMPLE, do=OUTSIDE),
    Refuse(Op("cast") & AnyInput(MASKS) & ~Attr("created", True), because=NO_LAYER, do="Use torch.where in place of the cast."),
    Refuse(~OF_MASKS & AnyInput(MASKS), because=NO_LAYER, do="Use torch.where with the mask."),
    Refuse(MASKS & GraphOutput(), because="its blobs are real numbers", do="Return real numbers, and compare them outside."),
    Refuse(MOVED & GraphOutput(), because="a blob is one example", do="Make the batch the first axis."),
    Refuse(OF_PLACES, because=AS_OUTPUTS, do=OUTSIDE),
    Refuse(EXACT, because=NO_LAYER, do="Use mode='nearest', mode='bilinear' or mode='bicubic'."),
    Refuse(Op("local_response_norm"), because=NO_LAYER, do="Use batch_norm, which folds."),
    Refuse(Op("rnn") & Attr("nonlinearity", "relu"), because=NO_LAYER, do="Use nonlinearity='tanh', or nn.GRU."),
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
