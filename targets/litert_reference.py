"""LiteRT by its reference kernels, the plain loops that define TensorFlow Lite: the file of `litert`, other roundings.

Floats are quantized half away from zero, by division.  Convolutions round twice (the doubled high half of the product,
then the shift, half away), linear layers once.  Softmax is a fixed-point one there: of its codes 1 in 10^5 differs by
one from what is said here (3 of 518,400).
"""

from attrs import evolve

from qfunc.lowering import LiteRt
from qfunc.specs import Bilinear, Derived, Fixed, FixedPoint, Kernel, Op, Rule, Runtime, Scheme, SumShifted, ZeroPoint
from qfunc.targets.litert import (
    BILINEAR,
    BY_MATRIX,
    BYTES,
    CLIPS,
    MEANS,
    NARROW,
    POOLS,
    PRODUCTS,
    S8,
    SAME,
    SUMS,
    UNITS,
    WEIGHT,
    litert,
)

ACTIVATION = Scheme(S8, zero_point=ZeroPoint(), rounding="half_away")

litert_reference = evolve(
    litert,
    name="litert_reference",
    rules=(
        Rule(PRODUCTS, input=ACTIVATION, weight=WEIGHT, bias=Derived(), output=ACTIVATION),
        Rule(SUMS | Op(("mul", "concat", "hardswish", "leaky_relu")) | MEANS | POOLS | CLIPS | BILINEAR, input=ACTIVATION,
             output=ACTIVATION),
        Rule(Op("prelu"), input=ACTIVATION, weight=Scheme(NARROW), output=ACTIVATION),
        Rule(Op(("softmax", "sigmoid")), input=ACTIVATION, output=Fixed(ACTIVATION, 1 / 256, -128)),
        Rule(Op("tanh"), input=ACTIVATION, output=Fixed(ACTIVATION, 1 / 128, 0)),
    ),
    kernels=(
        Kernel(Op("linear") | BY_MATRIX, FixedPoint("half_away"), formats=BYTES),
        Kernel(Op(("conv", "matmul", "mul", "leaky_relu")) | MEANS, FixedPoint(), formats=BYTES),
        Kernel(SUMS, SumShifted(), formats=BYTES),
        Kernel(BILINEAR, Bilinear("integer", 10), integer_if=SAME, formats=BYTES),
        *UNITS,
    ),
    runtime=Runtime("litert", ">=2.3", "x86-64", "reference", LiteRt("reference")),
    source=("ai-edge-litert 2.3 on x86-64, OpResolverType.BUILTIN_REF, measured",
            "TensorFlow Lite, kernels/internal/reference and gemmlowp/fixedpoint"),
)  # fmt: skip
