"""The lowering to the standard Q/DQ model."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from qfunc.lowering.onnx.opset import ir_version_field, opset_field
from qfunc.lowering.program import Program
from qfunc.specs import FileFormat
from qfunc.specs._values import readable


@readable
@frozen(kw_only=True)
class QdqLowering:
    """`model.onnx`: ONNX with QuantizeLinear and DequantizeLinear, as ONNX Runtime loads it.

    `opset` is the version of ONNX's operators, 11 to 21.  Scales per channel came with 13, 8-bit floats with
    19, integers of 4 and 16 bits and scales per block with 21; `qfunc.quantize` refuses a
    target that needs a later opset.  `ir_version` is that of the file format, None for that of the opset.

    Source: ONNX operator specification, QuantizeLinear-13, -19, -21, DequantizeLinear-13, -19, -21.

    >>> QdqLowering(), QdqLowering(opset=13)
    (QdqLowering(), QdqLowering(opset=13))
    """

    opset: int = opset_field(lowest=11)
    ir_version: int | None = ir_version_field()

    @property
    def format(self) -> FileFormat:
        """Blocks are those of DequantizeLinear; functions of the model quantize at run time, and dequantize wide biases."""
        return FileFormat(opset=self.opset, bias_bits=64, blocks=True, quantizers=True)

    def lower(self, program: Program) -> Mapping[str, bytes]:
        """Return the model's bytes.

        Raises:
            DeployError: an operator without a form in the opset, or a cubic resize by a factor below 1 of an image whose
                sizes vary.
        """
        # Import here, so that `import qfunc` does not import onnx.
        from qfunc.lowering.coded_state.ends import with_coded_state
        from qfunc.lowering.onnx.cubic_resizes import smaller_by_products
        from qfunc.lowering.onnx.versions import to_bytes

        return {"model.onnx": to_bytes(smaller_by_products(with_coded_state(program.model)), self)}


@readable
@frozen(kw_only=True)
class ExplicitQdqLowering:
    """As `QdqLowering`, without the copies (Max of one tensor) that keep ONNX Runtime from quantizing float tensors.

    Engines that fuse by pattern accept no node between an op, its activation and QuantizeLinear.

    Source: NVIDIA TensorRT Developer Guide, Explicit Quantization, Q/DQ placement recommendations.

    >>> ExplicitQdqLowering(opset=17)
    ExplicitQdqLowering(opset=17)
    """

    opset: int = opset_field(lowest=11)
    ir_version: int | None = ir_version_field()

    @property
    def format(self) -> FileFormat:
        """The opset, of the quantizers too."""
        return FileFormat(opset=self.opset, quantizers=True)

    def lower(self, program: Program) -> Mapping[str, bytes]:
        """Return the model's bytes.

        Raises:
            DeployError: an operator without a form in the opset.
        """
        # Import here, so that `import qfunc` does not import onnx.
        from qfunc.lowering.onnx.remove_quantizers import float_model
        from qfunc.lowering.onnx.versions import to_bytes

        return {"model.onnx": to_bytes(float_model(program.model, ()), self)}
