"""TensorRT's implicit int8: a float model and one range a tensor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from qfunc.lowering.format_checks import format_error, require_integers, require_per_tensor, require_symmetric
from qfunc.lowering.quantized_tensor import QuantizedTensor
from qfunc.lowering.toolchains.side_file import by_tensor, json_bytes
from qfunc.specs import Int
from qfunc.specs._values import readable

_ARTIFACT = "a clip range of TensorRT"


@readable
@frozen
class TensorRtRanges:
    """`clip_ranges.json` {"tensorrt": {"blob_range": {tensor: c}}}, and `model_float.onnx`, whose tensors it names.

    c = 127 s for an activation of scale s; TensorRT, given ITensor.setDynamicRange(-c, c), takes c / 127 for its
    scale.  Weights are no part of the file: the float model holds the quantized ones, and TensorRT takes
    max|w| / 127 of each output channel, which is s again where a channel uses its code 127.

    MQBench writes s max(-qmin, qmax), the same number for its codes [-127, 127]; with [-128, 127] that would
    make TensorRT's scale 128/127 of what was trained, so here it stays 127 s.  MQBench clips the weights of
    its float model, here they are quantized.

    For TensorRT up to 10; explicit quantization (`Qdq`) is the documented way, later ones have no other.

    Source: MQBench, deploy_linear.py, backend tensorrt, and user guide, hardware/tensorrt: c = s * 127; NVIDIA
    TensorRT API, ITensor::setDynamicRange.

    >>> TensorRtRanges()
    TensorRtRanges()
    """

    def lower(self, model: Any, sites: Any) -> Mapping[str, bytes]:
        """Return the float model and the ranges of its activations.

        Raises:
            DeployError: an activation with a zero point, several scales, or other codes than int8; names the tensor.
        """
        # onnx is imported here, where it is first needed.
        from qfunc.lowering.onnx.remove_quantizers import float_model

        made = float_model(model, sites)
        ranges = {t: _range(s, t) for t, s in by_tensor(made, sites).items() if s.role == "activation"}
        content = {"tensorrt": {"blob_range": ranges}}
        return {"clip_ranges.json": json_bytes(content), "model_float.onnx": made.SerializeToString(deterministic=True)}


def _range(site: QuantizedTensor, tensor: str) -> float:
    fmt = require_integers(site, tensor, _ARTIFACT)
    require_symmetric(site, tensor, _ARTIFACT)
    require_per_tensor(site, tensor, _ARTIFACT)
    if fmt not in (Int(8), Int(8, low=-127)):
        wanted = f"Int(8) or Int(8, low=-127): {_ARTIFACT} is 127 steps"
        raise format_error(site, tensor, repr(fmt), wanted, "Edit the scheme, or deploy by QdqLowering() alone.")
    return site.scale[0] * 127
