"""Lower a model to ExecuTorch's XNNPACK delegate: one .pte file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from attrs import frozen

from qfunc.lowering.format_checks import require_int8
from qfunc.lowering.program import Program, by_node
from qfunc.specs import FileFormat
from qfunc.specs._values import readable
from qfunc.targets.executorch.constraints import LEGALITY


@readable
@frozen
class XnnpackLowering:
    """`model.pte`: one method, "forward": one XNNPACK graph with the model's scales, zero points and codes.

    qfunc writes the file by ExecuTorch's schemas; ExecuTorch is needed only to run it.  Inputs and outputs are float32 in
    the model's layout, for one example.  Images inside the file have their channels last.  Relu, relu6 and clip(-1, 1) are
    fused into the op before them.  Average pools and softmax, which XNNPACK has only in float32, and ops without
    quantizers on both sides compute in float32.  Inputs of weights with scales of blocks are quantized at run time, one scale
    a row.  `model.values.json` maps tensors to values of the graph.

    Source: ExecuTorch 1.5, schema/program.fbs and backends/xnnpack/serialization/schema.fbs.

    >>> XnnpackLowering()
    XnnpackLowering()
    """

    format: ClassVar[FileFormat] = FileFormat(one_size="a .pte", blocks=True, legality=LEGALITY)

    def lower(self, program: Program) -> Mapping[str, bytes]:
        """Return the files' bytes.

        Raises:
            DeployError: a tensor that is not int8, or an op that XNNPACK does not have.
        """
        # Import here, so that `import qfunc` does not import onnx.
        from qfunc.lowering.constant_folding import folded
        from qfunc.lowering.inline_functions import without_functions
        from qfunc.lowering.nhwc.ops import WRITERS
        from qfunc.lowering.nhwc.writer import Writer
        from qfunc.targets.executorch.builder import XnnpackBuilder
        from qfunc.targets.executorch.ops import NODES

        for site in program.tensors:
            require_int8(site, "executorch_xnnpack", "XNNPACK")
        graph = XnnpackBuilder(NODES)
        source, _ = folded(without_functions(program.model), curves=graph.curves)
        file = Writer(source, graph, by_node(program)).write(WRITERS)
        return {"model.pte": file, "model.values.json": graph.values_json()}
