"""ExecuTorch on x86-64, "8da4w": linear layers with 4-bit weights, whose inputs are quantized at run time.

A weight is symmetric, with a scale in bfloat16 for each block of its inputs.  Its input is 8-bit and affine, with a scale and
a zero point for each token, which XNNPACK computes while it runs: nothing has to be calibrated but shapes.  All else
computes in float32, and embeddings are looked up outside of the file.
"""

from attrs import evolve

from qfunc.estimators import MinMax
from qfunc.functions import Fixed
from qfunc.specs import (
    BFLOAT16, FLOAT32, Algorithm, Build, DynamicProduct, FloatKernel, Int, Kernel, Lanes, Op, PerBlock, PerToken, Refuse, Rule,
    Runtime, Scale, Scheme, Target, WeightSums, ZeroPoint, cpus,
)  # fmt: skip
from qfunc.specs.arguments import made
from qfunc.targets.executorch.float_functions import XnnpackFloat
from qfunc.targets.executorch.lowering import XnnpackLowering
from qfunc.targets.executorch.runner import ExecuTorchRunner

INPUT = Scheme(Int(8), Scale(PerToken(), dynamic=True), ZeroPoint(nudge="nearest"), division=False)
PRODUCT = DynamicProduct(INPUT, zero_point=WeightSums(16, offset=128), denormals=False, clamps=True)
ON_AVX2 = evolve(PRODUCT, zero_point=WeightSums(16), lanes=Lanes(4, 2, "pairs"), fused_bias=True)
ON_SSE4 = evolve(PRODUCT, zero_point=WeightSums(16), fma=False)
FORMATS = (("input", (FLOAT32,)), ("weight", (Int(4),)), ("output", (FLOAT32,)))
IN_FLOAT = (("input", (FLOAT32,)), ("output", (FLOAT32,)))
LINEAR = Kernel(Op("linear"), PRODUCT, formats=FORMATS)
MOVES = ("reshape", "flatten", "transpose", "squeeze", "unsqueeze", "slice", "expand", "split", "chunk", "repeat_heads", "tile",
         "repeat", "repeat_interleave", "concat", "neg", "abs", "embedding")  # fmt: skip
ONCE = ("add", "sub", "mul", "div", "relu", "clip", "mask", "where", "scale", "maximum", "minimum", "square", "guard")
CURVES = ("sigmoid", "silu", "tanh", "gelu", "exp", "log", "sin", "cos", "sqrt", "rsqrt")
FLOAT = Kernel(
    Op(("softmax", "rms_norm", "layer_norm", "mean", "matmul", "linear", *CURVES)),
    FloatKernel(function=XnnpackFloat(), denormals=False),
    formats=(*IN_FLOAT, ("weight", (FLOAT32,))),
)
FLOAT_ON_AVX2 = evolve(FLOAT, arithmetic=FloatKernel(function=XnnpackFloat(avx2=True), denormals=False))
BUILDS = (
    Build(cpus.x86_64_vnni),
    *(
        Build(cpu, ((LINEAR, evolve(LINEAR, arithmetic=ON_AVX2)), (FLOAT, FLOAT_ON_AVX2)))
        for cpu in (cpus.x86_64_avxvnni, cpus.x86_64_avx2)
    ),
    Build(cpus.x86_64_sse4, ((LINEAR, evolve(LINEAR, arithmetic=ON_SSE4)), (FLOAT, evolve(FLOAT, unit=Op("mean"))))),
)
MULTIPLE = "XNNPACK, qd8-f32-qb4w: blocks are multiples of 32"
SMALLEST = 2.0**-120  # below 2^-122 a scale is subnormal where XNNPACK stores it divided by 16


def executorch_8da4w(block: int = 32) -> Target:
    """Return the target for blocks of this size: 32, 64, 128 or another multiple of 32, a divisor of all inputs' sizes.

    >>> executorch_8da4w(128).rules[0].weight.scale.shared
    PerBlock(-1, size=128)
    """
    shared = made("executorch_8da4w, block", PerBlock, -1, block)
    return Target(
        name=f"executorch_8da4w_b{block}",
        rules=(
            Rule(
                Op("linear"),
                input=INPUT,
                weight=Scheme(Int(4), Scale(shared, format=BFLOAT16, divisor="half_range", low=SMALLEST)),
            ),
        ),
        kernels=(
            LINEAR,
            Kernel(Op(MOVES), FloatKernel(), formats=IN_FLOAT),
            Kernel(Op(ONCE), FloatKernel(denormals=False), formats=IN_FLOAT),
            FLOAT,
        ),
        legality=()
        if block % 32 == 0
        else (Refuse(Op("linear"), because=MULTIPLE, do="Choose a block of 32, 64 or 128."),),
        runtime=Runtime("executorch", ">=1.5", cpus.x86_64_vnni, "XNNPACK", ExecuTorchRunner(), BUILDS),
        lowering=XnnpackLowering(),
        source=("executorch 1.5.1 on x86-64, measured: scales, rounding, order of sums, subnormal numbers",
                "ExecuTorch, backends/xnnpack/operators/node_visitor.py: 4-bit codes, scales in bfloat16, groups of 32 k",
                "XNNPACK, qd8-f32-qb4w-gemm (avx512vnni, avx2, sse41), src/packing.cc, src/xnnpack/quantization.h",
                "torchao, Int8DynActInt4WeightConfig: 4-bit scales are absmax / 7.5"),
        weight=Algorithm(MinMax(), Fixed()),
        activation=Algorithm(MinMax(), Fixed()),
    )  # fmt: skip
