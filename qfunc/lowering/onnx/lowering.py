"""The lowering to the standard Q/DQ model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from qfunc.lowering.onnx.opset import ir_version_field, opset_field, written_opset
from qfunc.lowering.program import Program
from qfunc.specs import FileFormat, Float, Int, PerBlock, PerChannel, Scheme
from qfunc.specs._values import readable

_STORED = (8, 16, 32)


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
        return FileFormat(opset=self.opset, bias_bits=64, blocks=True)

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

    def refuses(self, scheme: Scheme, constant: bool) -> str:
        """Return the lowering that a tensor of that scheme needs instead; empty if this one writes it.

        >>> from qfunc.specs import Int, Scheme
        >>> QdqLowering(opset=13).refuses(Scheme(Int(4)), constant=False)
        'QdqLowering(opset=21): QuantizeLinear has 4-bit integers from opset 21 on (ONNX operators)'
        >>> QdqLowering(opset=13).refuses(Scheme(Int(4)), constant=True)  # stored in a byte
        ''
        """
        return _wanted("QdqLowering", self.opset, scheme, constant)


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
        """The opset."""
        return FileFormat(opset=self.opset)

    def lower(self, program: Program) -> Mapping[str, bytes]:
        """Return the model's bytes.

        Raises:
            DeployError: an operator without a form in the opset.
        """
        # Import here, so that `import qfunc` does not import onnx.
        from qfunc.lowering.onnx.remove_quantizers import float_model
        from qfunc.lowering.onnx.versions import to_bytes

        return {"model.onnx": to_bytes(float_model(program.model, ()), self)}

    def refuses(self, scheme: Scheme, constant: bool) -> str:
        """Return what `QdqLowering.refuses` returns, for this lowering.

        >>> from qfunc.specs import Int, Scheme
        >>> ExplicitQdqLowering(opset=13).refuses(Scheme(Int(4)), constant=True)
        ''
        """
        return _wanted("ExplicitQdqLowering", self.opset, scheme, constant)


def later_opset(lowering: Any, scheme: Scheme, constant: bool) -> str:
    """Return the lowering with the opset that a scheme needs in the Q/DQ model from which a float model is made, or "".

    >>> from qfunc.targets.runtimes import PplDspLowering
    >>> later_opset(PplDspLowering(opset=13), Scheme(Int(16)), constant=False)
    'PplDspLowering(opset=21): QuantizeLinear has 16-bit integers from opset 21 on (ONNX operators)'
    >>> later_opset(PplDspLowering(opset=11), Scheme(Int(16)), constant=False)  # converted from opset 21
    ''
    """
    return _wanted(type(lowering).__name__, written_opset(lowering.opset), scheme, constant)


def _wanted(name: str, opset: int, scheme: Scheme, constant: bool) -> str:
    if isinstance(scheme.format, Int) and scheme.format.bits > 16 and not constant:
        return "at most 16 bits: QuantizeLinear has no wider codes (ONNX operators)"
    for needed, what in _needs(scheme, constant):
        if opset < needed:
            return f"{name}(opset={needed}): QuantizeLinear has {what} from opset {needed} on (ONNX operators)"
    return ""


def _needs(scheme: Scheme, constant: bool) -> list[tuple[int, str]]:
    needs = []
    match scheme.format:
        case Int(bits):
            stored = bits if bits == 4 and not constant else next((b for b in _STORED if b >= bits), bits)
            needs += [(21, f"{stored}-bit integers")] if stored not in (8, 32) else []
        case Float(exponent, mantissa) if exponent + mantissa == 7:
            needs += [(19, "8-bit floats")]
    if isinstance(scheme.scale.shared, PerBlock):
        needs += [(21, "scales per block")]
    if isinstance(scheme.scale.shared, PerChannel):
        needs += [(13, "scales per channel")]
    return sorted(needs, reverse=True)
