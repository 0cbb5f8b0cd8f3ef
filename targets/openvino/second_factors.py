"""Second factors of matrix products that a convolution reads, too: each has codes of its own.

OpenVINO 2026.4 multiplies by second factors with a sign only, and convolves activations without a sign only.  One FakeQuantize
cannot serve both: the convolution would run in float.
"""

from __future__ import annotations

import onnx

from qfunc.targets.openvino.barriers import barrier
from qfunc.targets.openvino.edits import set_nodes

_MOVES = ("Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Slice", "Identity")


def separate_second_factors(model: onnx.ModelProto) -> None:
    """Quantize such a factor again behind a barrier, in place; the values are those of its codes already."""
    producers = {output: node for node in model.graph.node for output in node.output}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    nodes, separated = list[onnx.NodeProto](), set[str]()
    for node in model.graph.node:
        if node.op_type == "MatMul" and (found := _shared(node.input[1], producers, readers)) is not None:
            quantizer, again = found
            if again is None:
                name = f"{node.output[0]}.operand_1"
                nodes.append(barrier(model, node.input[1], f"{name}.real"))
                again = onnx.NodeProto()
                again.CopyFrom(quantizer)
                again.name = again.output[0] = node.input[1] = name
                again.input[0] = f"{name}.real"
                nodes.append(again)
            elif again.name not in separated:
                separated.add(again.name)
                place = nodes.index(again)
                nodes.insert(place, barrier(model, again.input[0], f"{again.name}.before"))
                again.input[0] = f"{again.name}.before"
        nodes.append(node)
    set_nodes(model, nodes)


def _shared(
    name: str, producers: dict[str, onnx.NodeProto], readers: dict[str, list[onnx.NodeProto]]
) -> tuple[onnx.NodeProto, onnx.NodeProto | None] | None:
    # The quantizer of a tensor that a convolution reads as its activation, and a second one behind it; None for others.
    again = None
    while (node := producers.get(name)) is not None and node.op_type in (*_MOVES, "FakeQuantize"):
        if node.op_type == "FakeQuantize":
            if any(r.op_type == "Conv" and r.input[0] == node.output[0] for r in readers.get(node.output[0], ())):
                return node, again
            again = node
        name = node.input[0]
    return None
