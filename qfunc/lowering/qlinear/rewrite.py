"""From Q/DQ to QLinear: ops between DequantizeLinear and QuantizeLinear become ops on codes."""

from __future__ import annotations

import onnx
from onnx import helper

from qfunc.lowering.onnx.remove_quantizers import prune
from qfunc.lowering.qlinear.code_graph import MICROSOFT, CodeGraph, Codes

_MOVES = ("MaxPool", "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Slice", "Split", "Expand")
_POOLS = {"AveragePool": "QLinearAveragePool", "GlobalAveragePool": "QLinearGlobalAveragePool"}


def on_codes(model: onnx.ModelProto, sites: set[str]) -> onnx.ModelProto:
    """A new model with QLinear operators where there are such; `sites` are the tensors that quantizers made."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    _Rewrite(made, sites).run()
    return made


class _Rewrite:
    """Replaces ops on dequantized tensors by ops on codes, in a model that it owns."""

    def __init__(self, model: onnx.ModelProto, sites: set[str]) -> None:
        self.model, self.graph = model, CodeGraph(model, sites)

    def run(self) -> None:
        made: dict[str, onnx.NodeProto] = {}  # op -> the op on codes in its place
        gone: set[str] = set()  # QuantizeLinear whose codes that op makes
        for node in self.model.graph.node:
            found = self._moved(node) if node.op_type in (*_MOVES, "Resize") else self._computed(node)
            if found is not None:
                made[node.output[0]] = found
                gone.update(found.output)
        nodes = [made.get(n.output[0], n) for n in self.model.graph.node if n.output[0] not in gone]
        del self.model.graph.node[:]
        self.model.graph.node.extend(nodes)
        prune(self.model)
        if any(n.domain == MICROSOFT for n in self.model.graph.node):
            self.model.opset_import.append(helper.make_opsetid(MICROSOFT, 1))

    def _moved(self, node: onnx.NodeProto) -> onnx.NodeProto | None:
        # The same op, on codes, where both sides have the same qparams.
        source = self.graph.codes(node.input[0])
        results = [self.graph.result(name) for name in node.output]
        if source is None or any(r is None or not self.graph.same(source, r) for r in results):
            return None
        if node.op_type == "Resize" and not any(a.name == "mode" and a.s == b"nearest" for a in node.attribute):
            return None
        made = onnx.NodeProto()
        made.CopyFrom(node)
        made.input[0] = source.tensor
        made.output[:] = [r.tensor for r in results if r is not None]
        return made

    def _computed(self, node: onnx.NodeProto) -> onnx.NodeProto | None:
        inputs = [self.graph.codes(name) for name in node.input]
        result = self.graph.result(node.output[0], through=("Relu", "Clip")) if node.output else None
        if result is None or not inputs or any(i is None for i in inputs):
            return None
        return self._operator(node, [i for i in inputs if i is not None], result)

    def _operator(self, node: onnx.NodeProto, inputs: list[Codes], y: Codes) -> onnx.NodeProto | None:
        pairs = [name for i in inputs[:2] for name in i.names]
        match node.op_type:
            case "Conv" | "Gemm":
                if len(inputs) == 3 and not self.graph.bias(*inputs):
                    return None
                bias = [i.tensor for i in inputs[2:]]
                if node.op_type == "Conv":
                    return _like(node, "QLinearConv", [*pairs, y.scale, y.zero_point, *bias], y)
                return _like(node, "QGemm", [*pairs, *(bias or [""]), y.scale, y.zero_point], y, MICROSOFT)
            case "MatMul":
                return _like(node, "QLinearMatMul", [*pairs, y.scale, y.zero_point], y)
            case "Add":
                return _like(node, "QLinearAdd", [*pairs, y.scale, y.zero_point], y, MICROSOFT)
            case "AveragePool" | "GlobalAveragePool":
                return _like(node, _POOLS[node.op_type], [*inputs[0].names, y.scale, y.zero_point], y, MICROSOFT)
            case "Concat":
                tensors = [name for i in inputs for name in i.names]
                return _like(node, "QLinearConcat", [y.scale, y.zero_point, *tensors], y, MICROSOFT)
        return None


def _like(node: onnx.NodeProto, op: str, inputs: list[str], y: Codes, domain: str = "") -> onnx.NodeProto:
    made = helper.make_node(op, inputs, [y.tensor], name=node.name, domain=domain)
    made.attribute.extend(node.attribute)
    return made


__all__ = ["on_codes"]
