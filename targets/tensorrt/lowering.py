"""TensorRT's implicit int8: a float model, and one range for each tensor."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from qfunc.lowering.format_checks import format_error, require_integers, require_per_tensor, require_symmetric
from qfunc.lowering.program import Program
from qfunc.lowering.quantized_tensor import QuantizedTensor
from qfunc.lowering.side_file import by_tensor, json_bytes
from qfunc.specs import Int
from qfunc.specs._values import readable

_ARTIFACT = "a clip range of TensorRT"


@readable
@frozen
class TensorRtRanges:
    """`clip_ranges.json` {"tensorrt": {"blob_range": {tensor: c}}}, and `model_float.onnx`, whose tensors it names.

    c = 127 s for an activation of scale s; after ITensor.setDynamicRange(-c, c), TensorRT computes the scale c / 127.
    The file has no weights: the float model contains the quantized weights, and TensorRT computes max|w| / 127 for each
    output channel, which is s if the channel uses the code 127.

    MQBench writes s max(-qmin, qmax), the same number for its codes [-127, 127].  With [-128, 127] TensorRT's scale
    would be 128/127 times the trained one, so this lowering writes 127 s.  MQBench stores weights clipped, not quantized.

    For TensorRT up to 10.  NVIDIA recommends explicit quantization (`QdqLowering`); later versions support nothing else.

    Source: MQBench, deploy_linear.py, backend tensorrt, and user guide, hardware/tensorrt: c = s * 127; NVIDIA
    TensorRT API, ITensor::setDynamicRange.

    >>> TensorRtRanges()
    TensorRtRanges()
    """

    def lower(self, program: Program) -> Mapping[str, bytes]:
        """Return the float model and the ranges of its activations.

        Raises:
            DeployError: an activation with a zero point, several scales, or codes other than int8; names the tensor.
        """
        # Import here, so that `import qfunc` does not import onnx.
        from qfunc.lowering.onnx.remove_quantizers import float_model

        proto = float_model(program.model, program.tensors)
        ranges = {t: _range(s, t) for t, s in by_tensor(proto, program.tensors).items() if s.role == "activation"}
        content = {"tensorrt": {"blob_range": ranges}}
        return {"clip_ranges.json": json_bytes(content), "model_float.onnx": proto.SerializeToString(deterministic=True)}


def _range(site: QuantizedTensor, tensor: str) -> float:
    fmt = require_integers(site, tensor, _ARTIFACT)
    require_symmetric(site, tensor, _ARTIFACT)
    require_per_tensor(site, tensor, _ARTIFACT)
    if fmt not in (Int(8), Int(8, low=-127)):
        wanted = f"Int(8) or Int(8, low=-127): {_ARTIFACT} is 127 steps"
        raise format_error(site, tensor, repr(fmt), wanted, "Edit the scheme: format=Int(8, low=-127).")
    return site.scale[0] * 127
