"""LiteRT with its optimised kernels only, without the XNNPACK delegate: the file of `litert`, with other roundings.

ruy's matrix products double the high half of the product and round the shift half up.  Grouped convolutions, and ops
without optimised kernels, round it half away from zero.  Quantize and dequantize process vectors of 8, additions vectors
of 16; the remaining entries are rounded differently.
"""

from attrs import evolve

from qfunc.lowering import LiteRtRunner
from qfunc.specs import (
    Attr,
    Bilinear,
    DequantizeSum,
    FixedPoint,
    FixedPointLanes,
    Kernel,
    Op,
    QuantizeLanes,
    Runtime,
    SumShifted,
)
from qfunc.targets.litert import BILINEAR, BY_MATRIX, BYTES, MEANS, SAME, SUMS, TRANSPOSED, UNITS, WEIGHTED, litert

RUY = FixedPoint(("srdhm", "half_up"))
GROUPED = Op("conv") & ~Attr("groups", 1) & ~Attr("depthwise", True)

litert_optimised = evolve(
    litert,
    name="litert_optimised",
    kernels=(
        Kernel(GROUPED, FixedPoint(), formats=BYTES),
        Kernel(TRANSPOSED | Op("conv") & Attr("depthwise", True), FixedPointLanes(), formats=BYTES),
        Kernel(WEIGHTED | BY_MATRIX, RUY, formats=BYTES),
        Kernel(Op(("matmul", "mul", "leaky_relu")) | MEANS, FixedPoint(), formats=BYTES),
        Kernel(Op("add"), SumShifted(bits=16, lanes=16), formats=BYTES),
        Kernel(SUMS, SumShifted(), formats=BYTES),
        Kernel(BILINEAR, Bilinear("integer", 10), integer_if=SAME, formats=BYTES),
        Kernel(Op("quantize"), QuantizeLanes()),
        Kernel(Op("dequantize"), DequantizeSum()),
        *UNITS,
    ),
    runtime=Runtime("litert", ">=2.3", "x86-64", "optimised", LiteRtRunner("optimised")),
    source=("ai-edge-litert 2.3 on x86-64, OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES, measured",
            "TensorFlow Lite, kernels/internal/optimized and ruy"),
)  # fmt: skip
