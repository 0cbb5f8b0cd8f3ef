"""Lower a model to OpenVINO: float ops between FakeQuantize nodes, and weights as codes."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from qfunc.lowering.onnx.opset import opset_field
from qfunc.lowering.program import Program
from qfunc.specs import FileFormat
from qfunc.specs._values import readable
from qfunc.targets.openvino.constraints import require_site


@readable
@frozen
class OpenVinoLowering:
    """`model.onnx`: float ops between FakeQuantize nodes of OpenVINO's domain, org.openvinotoolkit.

    A node has inputs x, input_low, input_high, output_low, output_high and the attribute levels, and computes

        y = round((x - low) / (high - low) (levels - 1)) / (levels - 1) (high - low) + low

    with x clamped to [low, high] and round half to even.  Here levels = qmax - qmin + 1, high = s (qmax - z) and
    low = high - s (qmax - qmin), for input and output.

    A weight of at most 8 bits that a product reads is a constant of bytes before DequantizeLinear, which OpenVINO converts
    to the dequantization of its own int8 models: Convert, Subtract, Multiply.  Its step is that of a FakeQuantize of 256 or
    255 levels, as OpenVINO computes it in float32, also for codes such as MQBench's [-64, 63] for CPUs whose products can
    overflow.  Weights of recurrent layers are float constants with the values of their codes, and OpenVINO computes these
    layers in float.  Other weights are float constants before a FakeQuantize with ranges of the weight's rank.  Biases stay
    float constants; a bias with a scheme has the values of its codes.

    MQBench differs: it shapes the ranges of every weight along the first axis, although the axis of a transposed
    convolution is the second, and writes weights that are clipped but not quantized, so that the runtime rounds them.

    `opset` is the version of ONNX's operators, 13 to 21.

    Source: OpenVINO operation specification, FakeQuantize-1; MQBench, deploy/deploy_openvino.py.

    >>> OpenVinoLowering()
    OpenVinoLowering()
    """

    opset: int = opset_field()

    @property
    def format(self) -> FileFormat:
        """The opset."""
        return FileFormat(opset=self.opset)

    def lower(self, program: Program) -> Mapping[str, bytes]:
        """Return the model's bytes.

        Raises:
            DeployError: a tensor whose format is not an integer of at most 16 bits.
        """
        # Import here, so that `import qfunc` does not import onnx.
        from qfunc.lowering.inline_functions import without_functions
        from qfunc.lowering.onnx.remove_quantizers import float_model
        from qfunc.targets.openvino.nodes import insert_fake_quantize
        from qfunc.targets.openvino.rewrites import rewrite
        from qfunc.targets.openvino.second_factors import separate_second_factors

        for site in program.tensors:
            require_site(site)
        whole = without_functions(program.model)
        float_network = float_model(whole, program.tensors, kept=[s.name for s in program.tensors if s.role == "activation"])
        rewrite(float_network)
        insert_fake_quantize(float_network, program.tensors)
        separate_second_factors(float_network)
        return {"model.onnx": float_network.SerializeToString(deterministic=True)}
