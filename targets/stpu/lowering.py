"""STPU: a float model, and ranges with the exponents that its accumulators need."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from qfunc.lowering.onnx.opset import ir_version_field, opset_field
from qfunc.lowering.program import Program
from qfunc.lowering.side_file import json_bytes
from qfunc.specs import FileFormat
from qfunc.specs._values import readable


@readable
@frozen
class StpuLowering:
    """`model.onnx` (float, with the quantized weights) and `stpu_minmax.json`, an entry a tensor, weight and bias.

    * A tensor t: {"min": -127 s, "max": 127 s}; the input of a Relu or Clip has the range of its output.
    * The weight of node n, under "n_weights": its range; the bias, under "n_bias": {"alpha": s_w s_x, "zero_point": 0}.
    * "emin" beside the range of a node's output: Conv e(max(sqrt(N) i w, o)) - 10, with N products a sum and i,
      w, o the largest input, weight and output; Resize e(o) - 20; Gemm 128.  e(v) is the biased exponent of v as
      a float32: 0 of 0, 1 below 2^-126.
    * A product by one constant after a convolution is folded into its weights, bias and range; the inputs of
      a Concat have its output's range; a Sigmoid of scale 1/127 writes [-1, 1].

    MQBench differs: it takes a folded factor's sign into the range (then min > max) and fails on a factor a channel
    or without a bias; folds although others read the convolution; leaves the weights of transposed convolutions
    among the activations and counts their output channels as products; overwrites the Sigmoid's range when a
    Concat has given it another; fails on Clip and on a quantized network output; clips weights, not quantizes.

    `opset` is the version of ONNX's operators, 11 to 21, and `ir_version` that of the file format, None for that of the
    opset.

    Source: MQBench, deploy/deploy_stpu.py; there is no public document of the chip.

    >>> StpuLowering()
    StpuLowering()
    """

    opset: int = opset_field(21, lowest=11)
    ir_version: int | None = ir_version_field()

    @property
    def format(self) -> FileFormat:
        """The opset."""
        return FileFormat(opset=self.opset)

    def lower(self, program: Program) -> Mapping[str, bytes]:
        """Return the float model and its ranges.

        Raises:
            DeployError: codes other than symmetric int8 with one scale per tensor, a folded product of several
                factors, a Concat of different ranges, or a quantized convolution without a range; names the tensor.
        """
        # Import here, so that `import qfunc` does not import onnx.
        from qfunc.lowering.onnx.remove_quantizers import float_model
        from qfunc.lowering.onnx.versions import to_bytes
        from qfunc.targets.stpu.ranges import StpuRanges

        ranges = StpuRanges(float_model(program.model, program.tensors), program.tensors)
        content = ranges.entries()
        return {
            "model.onnx": to_bytes(ranges.model, self),
            "stpu_minmax.json": json_bytes(content),
        }
