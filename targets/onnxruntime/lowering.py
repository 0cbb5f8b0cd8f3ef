"""The lowerings to ONNX with operators of ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import evolve, field, frozen

from qfunc.lowering.onnx.lowering import QdqLowering
from qfunc.lowering.onnx.opset import ir_version_field, opset_field
from qfunc.lowering.program import Program
from qfunc.specs import FileFormat
from qfunc.specs._check import instance_of, integer
from qfunc.specs._values import readable
from qfunc.targets.onnxruntime.experts import ExpertSums


@readable
@frozen(kw_only=True)
class OnnxRuntimeLowering:
    """`model.onnx`: ONNX with QuantizeLinear and DequantizeLinear, and com.microsoft.DynamicQuantizeLSTM for LSTM layers.

    `opset` and `ir_version` are as in `QdqLowering`. Layers in float, and all other ops, are as there.

    Source: ONNX Runtime, docs/ContribOperators.md, com.microsoft.DynamicQuantizeLSTM; onnxruntime 1.31.

    >>> OnnxRuntimeLowering(opset=17)
    OnnxRuntimeLowering(opset=17)
    """

    opset: int = opset_field(lowest=11)
    ir_version: int | None = ir_version_field()

    @property
    def format(self) -> FileFormat:
        """As `QdqLowering`, with recurrent layers."""
        return evolve(self._plain.format, recurrent=True)

    @property
    def _plain(self) -> QdqLowering:
        return QdqLowering(opset=self.opset, ir_version=self.ir_version)

    def lower(self, program: Program) -> Mapping[str, bytes]:
        """Return the model's bytes.

        Raises:
            DeployError: an operator without a form in the opset, or a cubic resize by a factor below 1 of an image whose
                sizes vary.
        """
        # Import here, so that `import qfunc` does not import onnx.
        from qfunc.targets.onnxruntime.lstm_nodes import with_dynamic_lstms

        return self._plain.lower(evolve(program, model=with_dynamic_lstms(program.model)))


@readable
@frozen(kw_only=True)
class MatMulNBitsLowering:
    """`model.onnx`: ONNX, with com.microsoft.MatMulNBits for linear layers whose weights have scales of blocks.

    Attention to a cache in codes is com.microsoft.GroupQueryAttention.

    `accuracy_level` is that of the operator: at 4 it quantizes its input to int8 at run time, if it has kernels for the
    width and the block; at 0, 1, 2 and 3 it computes in float32 on x86-64.

    With `experts`, at level 4, mixtures of experts become com.microsoft.QMoE, with stacked weights of 4 or 8 bits: the experts
    are gated by SiLU, their weights have one form, and the block divides their inputs.  Other experts stay as they are.

    Source: ONNX Runtime, docs/ContribOperators.md, com.microsoft.MatMulNBits, GroupQueryAttention and QMoE; onnxruntime 1.31.

    >>> MatMulNBitsLowering()
    MatMulNBitsLowering()
    """

    accuracy_level: int = field(default=4, validator=integer(0, 4))
    experts: ExpertSums | None = field(default=None, validator=instance_of(ExpertSums, optional=True))
    ir_version: int | None = ir_version_field()

    @property
    def format(self) -> FileFormat:
        """Opset 21 is the first with blocks."""
        return FileFormat(opset=21, blocks=True, experts=self.experts)

    def lower(self, program: Program) -> Mapping[str, bytes]:
        """Return the model's bytes."""
        # Import here, so that `import qfunc` does not import onnx.
        from qfunc.lowering.coded_state.ends import with_coded_state
        from qfunc.lowering.onnx.cubic_resizes import smaller_by_products
        from qfunc.lowering.onnx.versions import to_bytes
        from qfunc.targets.onnxruntime.block_weights import with_block_products
        from qfunc.targets.onnxruntime.group_query_attention import with_cached_attention
        from qfunc.targets.onnxruntime.stacked_experts import with_stacked_experts

        written = with_block_products(program.model, program.tensors, self.accuracy_level)
        if self.experts is not None:
            written = with_stacked_experts(written)
        written = with_cached_attention(with_coded_state(written))
        return {"model.onnx": to_bytes(smaller_by_products(written), self)}
