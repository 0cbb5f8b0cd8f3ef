"""LiteRT with its reference kernels, the loops that define TensorFlow Lite: the file of `litert`, with other roundings.

Floats are quantized half away from zero, by division.  Convolutions round twice (the doubled high half of the product,
then the shift, half away), linear layers once.  Softmax is computed in fixed point.
"""

from attrs import evolve

from qfunc.lowering import LiteRtRunner
from qfunc.specs import Bilinear, FixedPoint, Kernel, Op, Runtime, SoftmaxFixed, SumShifted, edit
from qfunc.targets.litert import BILINEAR, BY_MATRIX, BYTES, MEANS, SAME, SUMS, UNITS, litert

litert_reference = evolve(
    edit.activations(rounding="half_away", division=True)(litert),
    name="litert_reference",
    kernels=(
        Kernel(Op("linear") | BY_MATRIX, FixedPoint("half_away"), formats=BYTES),
        Kernel(Op(("conv", "conv_transpose", "matmul", "mul", "leaky_relu")) | MEANS, FixedPoint(), formats=BYTES),
        Kernel(SUMS, SumShifted(), formats=BYTES),
        Kernel(BILINEAR, Bilinear("integer", 10), integer_if=SAME, formats=BYTES),
        Kernel(Op("softmax"), SoftmaxFixed(), formats=BYTES),
        *UNITS,
    ),
    runtime=Runtime("litert", ">=2.3", "x86-64", "reference", LiteRtRunner("reference")),
    source=("ai-edge-litert 2.3 on x86-64, OpResolverType.BUILTIN_REF, measured",
            "TensorFlow Lite, kernels/internal/reference and gemmlowp/fixedpoint"),
)  # fmt: skip
