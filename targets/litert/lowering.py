"""Lower a model to LiteRT (TensorFlow Lite): one .tflite file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

from qfunc.lowering.format_checks import require_int8
from qfunc.lowering.program import Program, by_node
from qfunc.specs import FileFormat, Int
from qfunc.specs._check import refuse
from qfunc.specs._values import readable
from qfunc.targets.litert.constraints import LEGALITY


def _width(instance: Any, attribute: Any, value: Any) -> None:
    if type(value) is not int or value not in (8, 16):
        raise refuse(
            instance, attribute.name, value, "8 or 16", "Give one of them: TFLite has no other integers for activations."
        )


@readable
@frozen
class TfliteLowering:
    """`model.tflite`: int8 operators with the model's scales and zero points; weights and biases are codes.

    The flatbuffer classes of the package ai-edge-litert, the extra `litert`, write the file; TensorFlow is not needed.
    Inputs and outputs are float32 in the model's layout, before QUANTIZE and after DEQUANTIZE; the signature
    "serving_default" has their names.  Between them images have their channels last, weights of convolutions are OHWI, and
    the columns of a linear layer after a flattened image have that order.  Relu, relu6 and clip(-1, 1) are fused into the
    op before them.  Ops without quantizers on both sides compute in float32.  The first axis of the inputs can be resized.
    With `bits=16`, activations are int16 without zero points, and biases int64.

    Source: TensorFlow Lite schema.fbs (v3), 8-bit quantization specification, 16x8 quantization.

    >>> TfliteLowering()
    TfliteLowering()
    """

    bits: int = field(default=8, kw_only=True, validator=_width)

    @property
    def format(self) -> FileFormat:
        """The batch may vary."""
        return FileFormat(one_size="a .tflite", bias_bits=32 if self.bits == 8 else 64, legality=LEGALITY, names=True)

    def lower(self, program: Program) -> Mapping[str, bytes]:
        """Return the file's bytes.

        Raises:
            DeployError: a tensor of another format, an op that TFLite does not have, or ai-edge-litert is not installed.
        """
        # Import here, so that `import qfunc` does not import onnx.
        from qfunc.lowering.constant_folding import folded
        from qfunc.lowering.inline_functions import without_functions
        from qfunc.lowering.nhwc.ops import WRITERS
        from qfunc.lowering.nhwc.writer import Writer
        from qfunc.targets.litert.builder import TfliteBuilder
        from qfunc.targets.litert.signature import with_signature

        for site in program.tensors:
            target = "litert" if self.bits == 8 else "cmsis_nn_16x8"
            require_int8(site, target, "TFLite", Int(self.bits), Int(self.format.bias_bits))
        source, _ = folded(without_functions(program.model))
        file = Writer(source, TfliteBuilder(self.bits), by_node(program)).write(WRITERS)
        return {"model.tflite": with_signature(file, program.inputs, program.outputs) if program.outputs else file}
