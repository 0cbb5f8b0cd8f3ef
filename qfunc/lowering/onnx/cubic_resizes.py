"""Write cubic resizes to fewer entries as two products with matrices.

ONNX Runtime moves the channels of images last between convolutions. Its cubic kernel takes such images for factors of at
least 1 only, and a session with another factor does not load.

Source: onnxruntime 1.31, core/providers/cpu/tensor/upsamplebase.h, ScalesValidation; measured.
"""

from __future__ import annotations

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnx import helper, numpy_helper

from qfunc.errors import DeployError
from qfunc.graph.constants import UniqueNames
from qfunc.lowering.qdq.qparams import Array
from qfunc.lowering.qdq.reader import QdqModel


def smaller_by_products(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with products R x C in place of cubic resizes by a factor below 1; R and C are constants.

    Raises:
        DeployError: such a resize of an image whose height or width varies.

    >>> model = onnx.parser.parse_model(
    ...     '''<ir_version: 10, opset_import: ["": 21]> graph (float[n, 1, 4, 4] x) => (float[n, 1, 2, 8] y)
    ...     <float[4] scales = {1, 1, 0.5, 2}> { y = Resize <mode="cubic", cubic_coeff_a=-0.75> (x, , scales) }'''
    ... )
    >>> [node.op_type for node in smaller_by_products(model).graph.node]
    ['MatMul', 'MatMul']
    """
    cubic = [node for node in model.graph.node if node.op_type == "Resize" and _attribute(node, "mode", b"") == b"cubic"]
    if not any(not _attribute(node, "antialias", 0) for node in cubic):
        return model
    source, made = QdqModel(model), onnx.ModelProto()
    made.CopyFrom(model)
    taken = UniqueNames()
    for used in (*source.initializers, *(n for node in model.graph.node for n in (node.name, *node.output))):
        taken.fresh(used)
    del made.graph.node[:]
    for node in model.graph.node:
        matrices = _matrices(source, node) if node in cubic else None
        if matrices is None:
            made.graph.node.append(node)
            continue
        names = [taken.fresh(f"{node.output[0]}.{part}") for part in ("rows", "columns", "fewer_rows")]
        made.graph.initializer.extend(numpy_helper.from_array(m, n) for m, n in zip(matrices, names, strict=False))
        made.graph.node.append(helper.make_node("MatMul", [names[0], node.input[0]], [names[2]], name=names[2]))
        made.graph.node.append(helper.make_node("MatMul", [names[2], names[1]], [node.output[0]], name=node.name))
    used = {name for node in made.graph.node for name in node.input} | set(source.outputs)
    for tensor in [t for t in made.graph.initializer if t.name not in used]:
        made.graph.initializer.remove(tensor)
    return made


def _attribute(node: onnx.NodeProto, name: str, default: object) -> object:
    return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)


def _matrices(source: QdqModel, node: onnx.NodeProto) -> tuple[Array, Array] | None:
    # (R, C), or None for factors that ONNX Runtime takes wherever the channels are.
    scales = source.constants.get(node.input[2]) if node.input[2] else None
    if _attribute(node, "antialias", 0) or (scales is not None and scales.min() >= 1):
        return None
    if not all(source.has_sizes(name) for name in (node.input[0], node.output[0])):
        found, wanted = "a bicubic resize by a factor below 1 of an image whose sizes vary", "a fixed height and width"
        do = "Fix the height and width where the model is exported, or use mode='bilinear'."
        raise DeployError(where=f"op {node.name!r}", found=found, wanted=wanted, do=do)
    before, after = (source.shape(name, node.name)[2:] for name in (node.input[0], node.output[0]))
    if scales is None and all(b >= a for a, b in zip(before, after, strict=True)):
        return None
    corners = _attribute(node, "coordinate_transformation_mode", b"half_pixel") == b"align_corners"
    factors = None if scales is None or corners else [float(s) for s in scales[2:]]
    rows, columns = (_matrix(n, size, axis, corners, factors) for axis, (n, size) in enumerate(zip(before, after, strict=True)))
    return rows, np.ascontiguousarray(columns.T)


def _matrix(length: int, size: int, axis: int, corners: bool, factors: list[float] | None) -> Array:
    # Along one axis, [size, length]: PyTorch's resize of the identity.
    eye = torch.eye(length, dtype=torch.float64)[None, None]
    if factors is None:
        resized = F.interpolate(eye, size=(size, length), mode="bicubic", align_corners=corners)
    else:
        resized = F.interpolate(eye, scale_factor=(factors[axis], 1.0), mode="bicubic", align_corners=corners)
    matrix: Array = resized[0, 0].float().numpy()
    return matrix
