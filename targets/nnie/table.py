"""NNIE's table of the layers of an ONNX model, and its Upsample."""

from __future__ import annotations

import onnx
from onnx import helper

from qfunc.errors import DeployError

WITHOUT_ENTRY = ("Flatten", "Relu", "PRelu", "Sigmoid", "Reshape", "Softmax", "Clip", "GlobalAveragePool", "Mul", "Identity")
UPSAMPLE = """
<opset_import: ["" : 21], domain: "qfunc">
Upsample <mode: string>(x, scales) => (y) {
    y = Resize <coordinate_transformation_mode = "asymmetric", mode: string = @mode, nearest_mode = "floor"> (x, , scales)
}
"""


def entries(model: onnx.ModelProto, nodes: set[str], clips: dict[str, float]) -> dict[str, list[float]]:
    """Return {node: the clip of each quantized input}, for the nodes in `nodes`; `clips` maps a quantized tensor to its clip.

    `model` is the model with quantizers, because two readers of one tensor may have different qparams.
    """
    table: dict[str, list[float]] = {}
    upsamples = 0
    for node in model.graph.node:
        resized = node.op_type == "Resize"
        inputs = [clips[name] for name in node.input if name in clips]
        if inputs and node.op_type not in WITHOUT_ENTRY and node.name in nodes:
            table[node.name] = inputs
            if resized:
                table[f"{node.name}_permute_{upsamples}"] = inputs
        upsamples += resized
    return table


def upsample(model: onnx.ModelProto, node: onnx.NodeProto) -> None:
    """Replace a Resize by an Upsample, in place.

    Raises:
        DeployError: a Resize that Upsample cannot represent.
    """
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    mode, coordinates = (attributes.get(n, b"").decode() for n in ("mode", "coordinate_transformation_mode"))
    if (mode, coordinates) != ("nearest", "asymmetric"):
        do = "Resize by mode='nearest'."
        raise DeployError(
            where=f"op {node.name!r}",
            found=f"resizing by mode {mode!r}",
            wanted="mode 'nearest', as NNIE's Upsample",
            do=do,
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
