"""LiteRT and TensorFlow Lite: one .tflite."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from attrs import frozen

from qfunc.lowering.format_checks import require_int8
from qfunc.lowering.quantized_tensor import QuantizedTensor
from qfunc.specs._values import readable


@readable
@frozen
class TfliteLowering:
    """`model.tflite`: int8 operators with the model's own scales and zero points, weights and biases as stored codes.

    Written with the flatbuffer classes of the package ai-edge-litert, the extra `litert`; no TensorFlow is needed.
    Inputs and outputs are float32 in the model's own layout, before QUANTIZE and after DEQUANTIZE.  Between them
    images have their channels last and the weights of convolutions as OHWI; a linear layer after a flattened image
    has its columns in that order.  Relu, relu6 and clip(-1, 1) are fused into the op before them; ops that are not
    surrounded by quantizers compute in float32.  The first axis of the inputs can be resized.

    Source: TensorFlow Lite schema.fbs (v3), 8-bit quantization specification.

    >>> TfliteLowering()
    TfliteLowering()
    """

    def lower(self, model: Any, sites: Iterable[QuantizedTensor]) -> Mapping[str, bytes]:
        """Return the file's bytes.

        Raises:
            DeployError: a tensor that is not in int8, an op that TFLite does not have, or no ai-edge-litert.
        """
        # Import here, so that `import qfunc` does not import onnx.
        from qfunc.lowering.nhwc.ops import WRITERS
        from qfunc.lowering.nhwc.writer import Writer
        from qfunc.lowering.qdq_reader import QdqModel
        from qfunc.lowering.tflite.builder import TfliteBuilder

        for site in sites:
            require_int8(site, "litert", "TFLite")
        return {"model.tflite": Writer(QdqModel(model), TfliteBuilder()).write(WRITERS)}


__all__ = ["TfliteLowering"]
