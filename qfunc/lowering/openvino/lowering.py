"""OpenVINO: a float model with FakeQuantize nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from attrs import frozen

from qfunc.lowering.onnx.opset import opset_field
from qfunc.lowering.openvino.constraints import require_site
from qfunc.lowering.quantized_tensor import QuantizedTensor
from qfunc.specs._values import readable


@readable
@frozen
class OpenVinoLowering:
    """`model.onnx`: float ops between FakeQuantize nodes of the domain org.openvinotoolkit, as OpenVINO reads them.

    A node has inputs x, input_low, input_high, output_low, output_high and the attribute levels, and computes

        y = round((x - low) / (high - low) (levels - 1)) / (levels - 1) (high - low) + low

    with x clamped to [low, high], the index of the level rounded half to even.  Here levels = qmax - qmin + 1,
    high = s (qmax - z), low = high - s (qmax - qmin), input and output alike; a weight with a scale a channel has
    ranges of the weight's rank.  The weights that the nodes read are the quantized ones.  OpenVINO makes integers
    only of 256 or 255 levels: a weight of fewer, as MQBench's [-64, 63] for CPUs whose products can overflow, is
    written with the same step and all levels of its byte.  Biases stay float constants, those with a scheme at the
    values of their codes.

    MQBench differs: it shapes the ranges of any weight along its first axis, where that of a transposed
    convolution is the second; writes weights that are clipped and not quantized, so that the runtime rounds them.

    `opset` is the version of ONNX's operators, 13 to 21.

    Source: OpenVINO operation specification, FakeQuantize-1; MQBench, deploy/deploy_openvino.py.

    >>> OpenVinoLowering()
    OpenVinoLowering()
    """

    opset: int = opset_field()

    def lower(self, model: Any, sites: Iterable[QuantizedTensor]) -> Mapping[str, bytes]:
        """Return the model's bytes.

        Raises:
            DeployError: a tensor that is not in integers of 16 bits at most.
        """
        # Import here, so that `import qfunc` does not import onnx.
        from qfunc.lowering.onnx.remove_quantizers import float_model
        from qfunc.lowering.openvino.nodes import insert

        sites = tuple(sites)
        for site in sites:
            require_site(site)
        made = float_model(model, sites, kept=[s.name for s in sites if s.role == "activation"])
        insert(made, sites)
        return {"model.onnx": made.SerializeToString(deterministic=True)}


__all__ = ["OpenVinoLowering"]
