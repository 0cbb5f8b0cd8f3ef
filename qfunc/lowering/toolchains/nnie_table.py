"""NNIE's layers in an ONNX model: which have entries in the vendor's table, and Upsample."""

from __future__ import annotations

import onnx
from onnx import helper

from qfunc.errors import DeployError

LEFT_OUT = ("Flatten", "Relu", "PRelu", "Sigmoid", "Reshape", "Softmax", "Clip", "GlobalAveragePool", "Mul", "Identity")
UPSAMPLE = """
<opset_import: ["" : 21], domain: "qfunc">
Upsample <mode: string>(x, scales) => (y) {
    y = Resize <coordinate_transformation_mode = "asymmetric", mode: string = @mode, nearest_mode = "floor"> (x, , scales)
}
"""


def entries(model: onnx.ModelProto, kept: set[str], clips: dict[str, float]) -> dict[str, list[float]]:
    """Node -> the clip of each quantized input, for the nodes that are kept; `clips` are by quantized tensor.

    It is read off the model with quantizers: two readers of one tensor may have it with different qparams.
    """
    found: dict[str, list[float]] = {}
    upsamples = 0
    for node in model.graph.node:
        resized = node.op_type == "Resize"
        inputs = [clips[name] for name in node.input if name in clips]
        grouped = node.op_type in ("Conv", "ConvTranspose") and any(a.name == "group" and a.i != 1 for a in node.attribute)
        if inputs and not grouped and node.op_type not in LEFT_OUT and node.name in kept:
            found[node.name] = inputs
            if resized:
                found[f"{node.name}_permute_{upsamples}"] = inputs
        upsamples += resized
    return found


def upsample(model: onnx.ModelProto, node: onnx.NodeProto) -> None:
    """Makes a Resize an Upsample, in a model that the caller owns.

    Raises:
        DeployError: a resizing that Upsample does not do.
    """
    held = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    mode, place = (held.get(n, b"").decode() for n in ("mode", "coordinate_transformation_mode"))
    if (mode, place) != ("nearest", "asymmetric"):
        do = "Resize by mode='nearest'."
        raise DeployError(
            where=f"op {node.name!r}", found=f"resizing by mode {mode!r}", wanted="NNIE's Upsample, nearest", do=do
        )
    scales = node.input[2]
    del node.attribute[:], node.input[1:]
    node.input.append(scales)
    node.op_type, node.domain = "Upsample", "qfunc"
    node.attribute.append(helper.make_attribute("mode", mode))
    if not any(f.name == "Upsample" for f in model.functions):
        function = onnx.parser.parse_function(UPSAMPLE)
        function.opset_import[0].version = next(o.version for o in model.opset_import if o.domain == "")
        model.functions.append(function)
        model.opset_import.append(helper.make_opsetid("qfunc", 1))


__all__ = ["entries", "upsample"]
