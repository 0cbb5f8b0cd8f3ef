"""Q/DQ ONNX for Qualcomm's HTP: bounds are codes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
from attrs import frozen

from qfunc.lowering.onnx.lowering import ExplicitQdqLowering, QdqLowering
from qfunc.lowering.onnx.opset import opset_field
from qfunc.lowering.qnn.constraints import LEGALITY
from qfunc.lowering.qnn.scale_limits import require_scales
from qfunc.specs import Refuse, Scheme
from qfunc.specs._values import readable


@readable
@frozen(kw_only=True)
class QnnHtpLowering:
    """`model.onnx` as `ExplicitQdqLowering` writes it, but that a Relu or Clip in front of a QuantizeLinear bounds codes.

    With bounds a, b and codes q(x) of m..n, q(min(max(x, a), b)) = min(max(q(x), q(a)), q(b)), as q never falls.  Where
    q(a) = m and q(b) = n nothing is left to do and the op is dropped; else it becomes Max, Min or both, each on codes, with the
    bound as a code.  Left as a Clip, the HTP forgets b where a is the lowest code, and behind a convolution the provider takes
    none.  A bias beside a weight of one scale has one scale, for the HTP takes several equal ones for others.

    Source: onnxruntime-qnn 2.7, measured.

    >>> QnnHtpLowering(opset=17)
    QnnHtpLowering(opset=17)
    """

    legality: ClassVar[tuple[Refuse, ...]] = LEGALITY
    opset: int = opset_field()

    def lower(self, model: Any, sites: Any) -> Mapping[str, bytes]:
        """The model's bytes, the same for the same model.

        Raises:
            DeployError: a product whose scale is 2^8 times the output's or more.
        """
        # onnx is imported here, where it is first needed.
        from qfunc.lowering.onnx.remove_quantizers import float_model, prune

        made = float_model(model, ())
        _bound_codes(made.graph)
        _one_bias_scale(made.graph)
        require_scales(made.graph)
        prune(made)
        return QdqLowering().lower(made, sites)

    def refuses(self, scheme: Scheme, constant: bool) -> str:
        """As Qdq's.

        >>> from qfunc.specs import Int, Scheme
        >>> QnnHtpLowering(opset=13).refuses(Scheme(Int(4)), constant=True)
        ''
        """
        return ExplicitQdqLowering(opset=self.opset).refuses(scheme, constant).replace("ExplicitQdqLowering", "QnnHtpLowering")


def _bound_codes(graph: Any) -> None:
    # In place: every Relu and Clip that one QuantizeLinear reads, and nothing else.
    from onnx import NodeProto, numpy_helper

    values = {i.name: numpy_helper.to_array(i) for i in graph.initializer}
    readers: dict[str, list[Any]] = defaultdict(list)
    for node in graph.node:
        for name in node.input:
            readers[name].append(node)
    outputs = {o.name for o in graph.output}
    kept: list[NodeProto] = []
    for node in graph.node:
        behind = readers[node.output[0]]
        alone = [n.op_type for n in behind] == ["QuantizeLinear"] and node.output[0] not in outputs
        if node.op_type in ("Relu", "Clip") and alone:
            steps = _CodeRounding(graph, node, behind[0], values)
            kept += steps.nodes()
            behind[0].input[0] = steps.last
        else:
            kept.append(node)
    nodes = [NodeProto.FromString(n.SerializeToString()) for n in kept]
    del graph.node[:]
    graph.node.extend(nodes)


def _one_bias_scale(graph: Any) -> None:
    # In place: a bias beside a weight of one scale has one too; the HTP takes several equal ones for others.
    from onnx import numpy_helper

    held = {i.name: i for i in graph.initializer}
    made = {n.output[0]: n for n in graph.node if n.op_type == "DequantizeLinear"}
    for node in graph.node:
        weight, bias = (made.get(name) for name in (*node.input, "", "", "")[1:3])
        if weight is None or bias is None or held[weight.input[1]].dims or not held[bias.input[1]].dims:
            continue
        for name in bias.input[1:]:
            held[name].CopyFrom(numpy_helper.from_array(numpy_helper.to_array(held[name])[0], name))
        del bias.attribute[:]


class _CodeRounding:
    """What takes the place of a Relu or Clip in front of the quantizer `behind`; `last` is what that reads."""

    def __init__(self, graph: Any, node: Any, behind: Any, values: Mapping[str, Any]) -> None:
        self.graph, self.name, self.last = graph, node.output[0], node.input[0]
        self.qparams = list(behind.input[1:])
        scale, zero = (values[name] for name in self.qparams)
        self.ends = np.iinfo(zero.dtype)
        given = [values[n] if n else None for n in (*node.input[1:], "", "")[:2]] if node.op_type == "Clip" else [0.0, None]
        codes = [None if b is None else np.rint(np.float32(b) / scale) + zero for b in given]
        self.bounds = [None if c is None else np.clip(c, self.ends.min, self.ends.max).astype(zero.dtype) for c in codes]

    def nodes(self) -> Iterator[Any]:
        """Of each bound inside the codes: quantize, dequantize, Max or Min with a constant."""
        from onnx import helper, numpy_helper

        ends = ("Max", "above", self.ends.min), ("Min", "below", self.ends.max)
        for (op, kind, end), code in zip(ends, self.bounds, strict=True):
            if code is None or code == end:
                continue
            made = f"{self.name}.{kind}"
            self.graph.initializer.append(numpy_helper.from_array(np.reshape(code, 1), f"{made}.bound"))
            for step, given, output in (
                ("QuantizeLinear", [self.last, *self.qparams], f"{made}.codes"),
                ("DequantizeLinear", [f"{made}.codes", *self.qparams], f"{made}.real"),
                ("DequantizeLinear", [f"{made}.bound", *self.qparams], f"{made}.bound.real"),
                (op, [f"{made}.real", f"{made}.bound.real"], made),
            ):
                yield helper.make_node(step, given, [output], name=output)
            self.last = made


__all__ = ["QnnHtpLowering"]
