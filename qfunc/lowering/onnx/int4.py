"""Packing of 4-bit constants, two in a byte."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from attrs import evolve, field, frozen

from qfunc.lowering.onnx.lowering import QdqLowering
from qfunc.lowering.program import Program
from qfunc.lowering.quantized_tensor import QuantizedTensor
from qfunc.specs import FileFormat, Int
from qfunc.specs._check import implements, refuse
from qfunc.specs._values import readable
from qfunc.specs.file_format import format_of
from qfunc.specs.protocols import Lowering

BITS, SINCE = 4, 21


def _packing(instance: Any, attribute: Any, value: Any) -> None:
    implements(Lowering)(instance, attribute, value)
    opset = format_of(value).opset or SINCE
    if opset < SINCE:
        do = f"Leave its opset out, or write the weights in bytes, by {value!r} alone."
        raise refuse(instance, attribute.name, value, f"opset {SINCE}, the first with 4-bit integers (ONNX operators)", do)


@readable
@frozen
class PackInt4:
    """The files of a lowering whose model stores weights of at most 4 bits as INT4 or UINT4: half the bytes.

    Other lowerings store such codes in bytes, which 8-bit integer kernels read.  ONNX Runtime 1.31 has no 4-bit kernels for
    CPUs: it dequantizes packed weights when it loads the model and computes in float, so that `verify` reports the
    difference from the integers that `emulate` computes.  TensorRT 11 accepts 4-bit weights only if they are packed.

    Raises:
        SpecError: a lowering of an opset before 21.
    Source: ONNX, DequantizeLinear-21; TensorRT Developer Guide, Working with Quantized Types.

    >>> PackInt4(), PackInt4(QdqLowering()).format.opset
    (PackInt4(), 21)
    """

    lowering: Any = field(default=QdqLowering(), validator=_packing)

    @property
    def format(self) -> FileFormat:
        """The format of the lowering, of opset 21."""
        return evolve(format_of(self.lowering), opset=SINCE)

    def lower(self, program: Program) -> Mapping[str, bytes]:
        """Return the lowering's files of the packed model."""
        return dict(self.lowering.lower(evolve(program, model=packed(program.model, program.tensors))))


def packed(model: Any, sites: Iterable[QuantizedTensor]) -> Any:
    """Return a new ONNX model, in which the constants among `sites` of at most 4 bits are INT4 or UINT4.

    >>> from onnx import parser
    >>> from qfunc.lowering.quantized_tensor import Place, QuantizedTensor
    >>> model = parser.parse_model(
    ...     '''<ir_version: 10, opset_import: ["": 21]> agraph () => (float[2] real)
    ...     <float s = {0.5}, int8 z = {0}, int8[2] c = {-7, 3}> { real = DequantizeLinear(c, s, z) }'''
    ... )
    >>> site = QuantizedTensor("w", "weight", "w", (), Int(4), (0.5,), (0,), "half_even", (Place("w", "real"),))
    >>> [(i.name, i.data_type) for i in packed(model, [site]).graph.initializer]
    [('s', 1), ('z', 22), ('c', 22)]
    """
    import onnx
    from onnx import helper, numpy_helper

    from qfunc.lowering.onnx.builder import storage
    from qfunc.lowering.qdq.reader import QdqModel

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    source = QdqModel(copy)
    for site in sites:
        fmt = site.format
        if site.role == "activation" or not isinstance(fmt, Int) or fmt.bits > BITS:
            continue
        kind = storage(Int(BITS, fmt.signed), site.name)
        for place in site.places:
            codes, _, zero = source.producers[place.real].input
            for constant in (source.initializers[codes], source.initializers[zero]):
                if constant.data_type != kind:  # several places may share it
                    array = numpy_helper.to_array(constant).astype(helper.tensor_dtype_to_np_dtype(kind))
                    constant.CopyFrom(numpy_helper.from_array(array, constant.name))
    return copy
