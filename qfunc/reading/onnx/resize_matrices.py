"""Resizing in ways that torch does not have, of known sizes: A X B^T, with the matrices that ONNX Runtime computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from onnx import TensorProto, helper

from qfunc.reading.node import NodeReader
from qfunc.reading.values import Constant

_OPSET = 19


def by_matrices(r: NodeReader, scales: list[float] | None, wanted: list[int]) -> Any:
    """Return the image resized along its last two axes.

    Resizing along one axis is linear, so that its matrix is what it makes of the identity.

    Raises:
        CaptureError: a region is cut out, beyond which is a constant.
    """
    if r.attribute("coordinate_transformation_mode") == "tf_crop_and_resize":
        raise r.refuse("a region that is cut out", "the whole image", "Cut it by an op of its own.")
    found: Any = r.x()
    for place in (-2, -1):
        have, size = int(r.length(place) or 1), wanted[place]
        factor = None if scales is None else scales[place]
        if have == size and factor in (None, 1.0):
            continue
        matrix = _matrix(r, have, size, factor)
        if r.attribute("mode", "nearest") == "nearest":
            found = r.call(torch.index_select, found, place, Constant(torch.from_numpy(matrix.argmax(0)), f"{r.path}.places"))
        elif place == -1:
            found = r.call(torch.matmul, found, Constant(torch.from_numpy(matrix), f"{r.path}.columns"))
        else:
            found = r.call(torch.matmul, Constant(torch.from_numpy(matrix.T.copy()), f"{r.path}.rows"), found)
    return found


def _matrix(r: NodeReader, have: int, wanted: int, factor: float | None) -> Any:
    import onnxruntime

    kept = ("mode", "nearest_mode", "cubic_coeff_a", "exclude_outside", "antialias", "coordinate_transformation_mode")
    attributes = {name: r.attribute(name) for name in kept if name in r.attribute_names}
    if r.version < 11:
        attributes |= {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    sized: Any = (["x", "", "", "v"], TensorProto.INT64, [1, 1, have, wanted])
    scaled: Any = (["x", "", "v"], TensorProto.FLOAT, [1.0, 1.0, 1.0, factor])
    inputs, kind, values = sized if factor is None else scaled
    graph = helper.make_graph(
        [helper.make_node("Resize", inputs, ["y"], **attributes)], "resize",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, have, have])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [helper.make_tensor("v", kind, [4], values)],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found: Any = session.run(None, {"x": np.eye(have, dtype=np.float32)[None, None]})[0]
    return found[0, 0]
