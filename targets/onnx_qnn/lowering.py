"""Lower a model to QLinear operators of ONNX, for TVM."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from qfunc.lowering.onnx.opset import ir_version_field, opset_field
from qfunc.lowering.program import Program
from qfunc.specs import FileFormat
from qfunc.specs._values import readable
from qfunc.targets.onnx_qnn.constraints import require_site


@readable
@frozen
class QLinearLowering:
    """`model.onnx`: QLinear operators on codes, between a QuantizeLinear of each input and a DequantizeLinear of each output.

    Conv becomes QLinearConv and MatMul QLinearMatMul; Gemm, Add, Concat and average pools become QGemm, QLinearAdd,
    QLinearConcat, QLinearAveragePool and QLinearGlobalAveragePool of the domain com.microsoft.  MaxPool, reshape,
    transpose, slice and nearest Resize run on codes.  A Relu or Clip after such an op is dropped if every code lies
    within its bounds.  Weights are the simulation's codes; biases are int32 with the scale s_x s_w, rounded half to even.
    An op without such an operator, or without quantizers on both sides, stays in float.

    MQBench differs.  Its weight codes wrap around, its biases are truncated, and its linear layers stay in float.  It
    drops every Relu by setting zero points to 0 and limits relu6's scale to 6/255, so that the artifact has other qparams
    than the simulation.  It writes into the current directory, and ONNX Runtime rejects its model.

    `opset` is the version of ONNX's operators, 11 to 21, and `ir_version` that of the file format, None for that of the
    opset.  Units in float with scales per channel need opset 13, and MaxPool of codes 12.
    TVM's importer has converters by opset; 13 is the first with all operators of these files.

    Source: ONNX operator specification, QLinearConv-10, QLinearMatMul-21; onnxruntime, docs/ContribOperators.md;
    Apache TVM, python/tvm/relay/frontend/onnx.py; MQBench, deploy/deploy_onnx_qnn.py.

    >>> QLinearLowering()
    QLinearLowering()
    """

    opset: int = opset_field(13, lowest=11)
    ir_version: int | None = ir_version_field()

    @property
    def format(self) -> FileFormat:
        """The opset."""
        return FileFormat(opset=self.opset)

    def lower(self, program: Program) -> Mapping[str, bytes]:
        """Return the model's bytes.

        Raises:
            DeployError: a tensor whose codes are not bytes.
        """
        # Import here, so that `import qfunc` does not import onnx.
        from qfunc.lowering.onnx.versions import to_bytes
        from qfunc.targets.onnx_qnn.rewrite import to_qlinear

        for site in program.tensors:
            require_site(site)
        in_float = {name for unit in program.units if not unit.integer for name in unit.nodes}
        rewritten = to_qlinear(program.model, {p.real for s in program.tensors for p in s.places}, in_float)
        return {"model.onnx": to_bytes(rewritten, self)}
