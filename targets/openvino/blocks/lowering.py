"""Lower linear layers with weights in blocks to ONNX as OpenVINO fuses it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from attrs import frozen

from qfunc.lowering.program import Program
from qfunc.specs import FileFormat
from qfunc.specs._values import readable


@readable
@frozen
class OpenVinoBlocksLowering:
    """`model.onnx`: linear layers whose weights are constants of 4 or 8 bits before DequantizeLinear with a block size.

    OpenVINO converts these to Convert, Subtract and Multiply, which the CPU plugin fuses into the product, and quantizes the
    product's input at run time: the file has no quantizer of it.

    Source: OpenVINO, "Weight compression"; ONNX operator specification, DequantizeLinear-21.

    >>> OpenVinoBlocksLowering().format.opset
    21
    """

    @property
    def format(self) -> FileFormat:
        """Opset 21 is the first with blocks."""
        return FileFormat(opset=21, blocks=True)

    def lower(self, program: Program) -> Mapping[str, bytes]:
        """Return the model's bytes."""
        # Import here, so that `import qfunc` does not import onnx.
        from qfunc.lowering.onnx.int4 import packed
        from qfunc.lowering.onnx.remove_quantizers import prune
        from qfunc.lowering.qdq.reader import QdqModel

        made, source = packed(program.model, program.tensors), QdqModel(program.model)
        before = {n.output[0]: n.input[0] for n in made.graph.node if n.op_type.startswith("DynamicQuantize")}
        for node in made.graph.node:
            node.input[:] = [before.get(name, name) for name in node.input]
            zero = source.constant(node, 2) if node.op_type == "DequantizeLinear" else None
            if zero is not None and zero.dtype == np.int8 and not zero.any():
                # OpenVINO computes products of signed codes with zero points in float, those of 4 bits also with 0.
                del node.input[2:]
        kept = [node for node in made.graph.node if node.output[0] not in before]
        del made.graph.node[:]
        made.graph.node.extend(kept)
        prune(made)
        return {"model.onnx": made.SerializeToString(deterministic=True)}
