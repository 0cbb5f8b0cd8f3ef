"""Refuse what a file of one example cannot compute: ops that mix the examples of a batch, and inputs without a batch."""

from __future__ import annotations

import math

import onnx

from qfunc.errors import DeployError
from qfunc.lowering.qdq_reader import QdqModel

_BECAUSE = "because the file computes one example"
_ALONG = {"Softmax": -1, "LogSoftmax": -1, "Hardmax": -1, "CumSum": None, "Concat": None}
"""Ops whose results along an axis depend on all entries of it, and the axis by default."""
_OVER_CHANNELS = ("GroupNormalization", "LRN", "DepthToSpace", "SpaceToDepth")
_OWN = ("Slice", "Tile")
"""Ops whose writers refuse them with a cure of their own."""
_WINDOWS = ("MaxPool", "AveragePool", "Resize", "GlobalAveragePool", "GlobalMaxPool", "LpPool")


def require_batch(source: QdqModel, name: str) -> None:
    """Raise if the network takes one batch size only, and that is not 1.

    Raises:
        DeployError: names the input.
    """
    shape = source.shape(name, name)
    if source.varies(name) is None and shape[:1] != (1,):
        do = "Reshape by sizes of the input, such as x.shape[0], or calibrate with one example."
        found = f"a first axis of {shape[0]} that the network does not let vary" if shape else "a number"
        raise DeployError(where=f"input {name!r}", found=found, wanted=f"a batch of any size, {_BECAUSE}", do=do)


def require_separate(source: QdqModel, node: onnx.NodeProto) -> None:
    """Raise if an example of an op's results depends on other examples.

    Raises:
        DeployError: names the op.
    """
    read = {name: axes for name in node.input if name and (axes := source.varying(name))}
    results = [source.varying(name) for name in node.output if name]
    real = source.is_real(node.output[0]) and node.op_type not in _OWN
    if not read or not real or None in (*read.values(), *results):
        return
    apart = all(axes is not None and len(axes) == 1 for axes in results)
    if not apart or any(_mixes(source, node, name, axes[0]) for name, axes in read.items() if axes):
        do = "Compute it outside of the deployed model, or deploy Q/DQ ONNX by edit.deploy(QdqLowering())."
        found, wanted = f"{node.op_type} that mixes the examples of a batch", f"each by itself, {_BECAUSE}"
        raise DeployError(where=f"op {node.name!r}", found=found, wanted=wanted, do=do)


def _mixes(source: QdqModel, node: onnx.NodeProto, name: str, axis: int) -> bool:
    shape = source.shape(name, node.name)
    if node.op_type in _ALONG:
        over = source.attribute(node, "axis", _ALONG[node.op_type])
        along = int(source.constant(node, 1)) if node.op_type == "CumSum" else int(over)
        return along % len(shape) == axis
    if node.op_type in ("Reshape", "Flatten", "Squeeze", "Unsqueeze"):
        # [p, B, ...] becomes [q, B m, ...]: the examples stay apart if p = q.
        (to,) = source.varying(node.output[0]) or (0,)
        return math.prod(shape[:axis]) != math.prod(source.shape(node.output[0], node.name)[:to])
    if node.op_type == "Pad":
        pads, given = source.constant(node, 1), source.constant(node, 3)
        axes = list(range(len(shape))) if given is None else [int(a) % len(shape) for a in given]
        return any(pads[i] or pads[i + len(axes)] for i, a in enumerate(axes) if a == axis)
    return (node.op_type in _OVER_CHANNELS and axis == 1) or (node.op_type in _WINDOWS and axis > 1)


__all__ = ["require_batch", "require_separate"]
