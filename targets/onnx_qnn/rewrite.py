"""Rewrite Q/DQ to QLinear: ops between DequantizeLinear and QuantizeLinear become ops on codes."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from qfunc.lowering.onnx.remove_quantizers import prune
from qfunc.lowering.qdq.reader import ACTIVATIONS, QdqModel, is_copy
from qfunc.targets.onnx_qnn.ops import MICROSOFT, MOVES, WITH_BIAS, WRITERS, CodeTensor


def to_qlinear(model: onnx.ModelProto, sites: set[str], in_float: set[str]) -> onnx.ModelProto:
    """Return a new model with QLinear operators where they exist.

    Args:
        model: A Q/DQ model.
        sites: The results of the model's quantizers.
        in_float: The names of the nodes of float units, which stay as they are.
    """
    rewritten = onnx.ModelProto()
    rewritten.CopyFrom(model)
    _Rewrite(rewritten, sites, in_float).run()
    return rewritten


class _Rewrite:
    """Replaces ops on dequantized tensors by ops on codes, in a model that it owns."""

    def __init__(self, model: onnx.ModelProto, sites: set[str], in_float: set[str]) -> None:
        self.model, self.sites, self.in_float, self.source = model, sites, in_float, QdqModel(model)

    def run(self) -> None:
        replaced: dict[str, onnx.NodeProto] = {}  # output of an op -> the op on codes that replaces it
        computed_codes: set[str] = set()  # outputs of these ops; their QuantizeLinear is dropped
        for node in self.model.graph.node:
            replacement = self._move(node) if node.op_type in MOVES else self._compute(node)
            if replacement is not None:
                replaced[node.output[0]] = replacement
                computed_codes.update(replacement.output)
        nodes = [replaced.get(n.output[0], n) for n in self.model.graph.node if n.output[0] not in computed_codes]
        del self.model.graph.node[:]
        self.model.graph.node.extend(nodes)
        prune(self.model)
        if any(n.domain == MICROSOFT for n in self.model.graph.node):
            self.model.opset_import.append(helper.make_opsetid(MICROSOFT, 1))

    def _move(self, node: onnx.NodeProto) -> onnx.NodeProto | None:
        # The same op on codes, if both sides have the same qparams.
        source = self._codes(node.input[0])
        results = [self._result(name) for name in node.output]
        if source is None or any(r is None or not self._same_qparams(source, r) for r in results):
            return None
        if node.op_type == "Resize" and self.source.attribute(node, "mode") != b"nearest":
            return None
        on_codes = onnx.NodeProto()
        on_codes.CopyFrom(node)
        on_codes.input[0] = source.tensor
        on_codes.output[:] = [r.tensor for r in results if r is not None]
        return on_codes

    def _compute(self, node: onnx.NodeProto) -> onnx.NodeProto | None:
        inputs = [codes for name in node.input if (codes := self._codes(name)) is not None]
        result = self._result(node.output[0], through=ACTIVATIONS) if node.output else None
        if node.name in self.in_float or node.op_type not in WRITERS:
            return None
        if result is None or not inputs or len(inputs) < len(node.input):
            return None
        if node.op_type in WITH_BIAS and len(inputs) == 3 and not self._has_product_scale(*inputs):
            return None
        return WRITERS[node.op_type](node, inputs, result)

    def _codes(self, real: str) -> CodeTensor | None:
        # The codes from which a tensor was dequantized, perhaps followed by copies.
        node = self.source.producers.get(real)
        while node is not None and is_copy(node):
            node = self.source.producers.get(node.input[0])
        if node is None or node.op_type != "DequantizeLinear" or node.output[0] not in self.sites:
            return None
        return CodeTensor(*node.input) if len(node.input) == 3 else None

    def _result(self, tensor: str, through: tuple[str, ...] = ()) -> CodeTensor | None:
        # The codes to which its only reader quantizes a tensor, perhaps after activations that the codes imply.
        steps, quantizer = self.source.result(tensor)
        clamps = [step for step in steps if not is_copy(step)]
        if quantizer is None or any(clamp.op_type not in through for clamp in clamps):
            return None
        result = CodeTensor(quantizer.output[0], quantizer.input[1], quantizer.input[2])
        return result if all(self._is_implied(clamp, quantizer) for clamp in clamps) else None

    def _is_implied(self, clamp: onnx.NodeProto, quantizer: onnx.NodeProto) -> bool:
        ends = np.iinfo(self.source.constants[quantizer.input[2]].dtype)
        return self.source.qparams(quantizer).imply(self.source.bounds(clamp), (int(ends.min), int(ends.max)))

    def _same_qparams(self, a: CodeTensor, b: CodeTensor | None) -> bool:
        constants = self.source.constants
        return b is not None and all(
            np.array_equal(constants[x], constants[y]) for x, y in zip(a.names[1:], b.names[1:], strict=True)
        )

    def _has_product_scale(self, x: CodeTensor, w: CodeTensor, b: CodeTensor) -> bool:
        # The operators assume that a bias has the scale s_x s_w.
        constants = self.source.constants
        product = constants[x.scale] * constants[w.scale]
        return bool(np.all(constants[b.scale] == product) and not constants[b.zero_point].any())
