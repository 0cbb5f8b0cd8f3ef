"""ncnn on x86-64, int8: convolutions and linear layers on codes, everything between them in float32.

Activations are symmetric int8 [-127, 127] per tensor, only at the inputs of convolutions and linear layers.  Weights are
symmetric int8 per output channel, with 6 bits [-31, 31] for 3x3 convolutions of stride 1, for which ncnn uses Winograd's
algorithm.  The bias is float.  Codes are round(x * float32(1/s)), ties away from zero.  A convolution dequantizes its
accumulators with one fused multiply-add, a depthwise convolution or linear layer with a product and a sum, each with the
factor 1/(float32(1/s_x)*float32(1/s_w)).  With AVX-512, depthwise convolutions of 3x3 without a clip also fuse them.

Known deviation: ncnn rounds vectors of four by trunc(v + copysign(0.5, v)) in float32, so that the single value
v = +-0.49999997, the neighbour of 1/2, becomes +-1; the remaining entries of a row are rounded as here.
"""

from attrs import evolve

from qfunc.estimators import MinMax
from qfunc.functions import Fixed
from qfunc.specs import (
    FLOAT32, Algorithm, Attr, Build, Everything, FloatKernel, FloatRequantize, FusesOnly, Fusion, FusionStep, Int, Kernel, Op,
    PerChannel, PerTensor, Refuse, Require, Rule, Runtime, Scale, Scheme, Target, Trait, cpus,
)  # fmt: skip
from qfunc.targets.ncnn.functions import Ncnn
from qfunc.targets.ncnn.lowering import NcnnLowering
from qfunc.targets.ncnn.runner import NcnnRunner

NARROW, SIX = Int(8, low=-127), Int(6, low=-31)
ACTIVATION = Scheme(NARROW, rounding="half_away", division=False)
WEIGHT = Scheme(NARROW, Scale(PerChannel()), rounding="half_away")
DEPTHWISE = Op("conv") & Attr("depthwise", True)
CONV = Op("conv") & ~Attr("depthwise", True)
WINOGRAD = CONV & Attr("kernel", (3, 3)) & Attr("stride", (1, 1)) & Attr("dilation", (1, 1))
LINEAR = Op("linear") | Op("matmul") & Attr("constant", "other")
REAL = ("add", "sub", "mul", "relu", "clip", "leaky_relu", "concat", "max_pool", "adaptive_max_pool", "amax", "amin", "neg",
        "abs", "maximum", "minimum", "pad", "reshape", "flatten", "transpose", "squeeze", "unsqueeze", "slice", "split",
        "chunk", "unbind", "stack", "expand", "repeat", "tile", "flip", "roll", "take", "pixel_shuffle", "pixel_unshuffle",
        "channel_shuffle")  # fmt: skip
NEAREST = Op("resize") & Attr("mode", "nearest")
POOLS = Op(("adaptive_avg_pool", "global_avg_pool")) | Op("avg_pool") & Attr("divisor_override", None)
OWN = POOLS | Op(("hardswish", "hardsigmoid", "elu", "exp"))
BYTES = (("input", (NARROW,)), ("weight", (NARROW,)), ("output", (NARROW, FLOAT32)))
EITHER = (("input", (NARROW, FLOAT32)), ("output", (NARROW, FLOAT32)))
THROUGH = FloatRequantize("half_away", division=False, reciprocals=True)
FUSED = evolve(THROUGH, fma=True)
NINE = DEPTHWISE & Attr("kernel", (3, 3)) & Attr("dilation", (1, 1)) & (Attr("stride", (1, 1)) | Attr("stride", (2, 2)))
DENSE = Kernel(CONV, FUSED, formats=BYTES)
OF_NINE = Kernel(NINE, FUSED, integer_if=FusesOnly("relu"), formats=BYTES)
REPEATED = Kernel(NINE & ~Attr("multiplier", 1), FUSED, formats=BYTES)  # several layers, with a clip of their own behind them
ALONE = Kernel(DEPTHWISE, THROUGH, formats=BYTES)
NINE_APART = tuple((kernel, evolve(kernel, arithmetic=THROUGH)) for kernel in (OF_NINE, REPEATED))
ON_ARM64 = (
    (DENSE, evolve(DENSE, arithmetic=evolve(FUSED, merged=True))),
    (ALONE, evolve(ALONE, arithmetic=evolve(THROUGH, quotient=True))),
)
BUILDS = (
    Build(cpus.x86_64_vnni),
    *(Build(cpu, NINE_APART) for cpu in (cpus.x86_64_avxvnni, cpus.x86_64_avx2)),
    Build(cpus.x86_64_sse4, ((DENSE, evolve(DENSE, arithmetic=THROUGH)), *NINE_APART)),
    *(Build(cpu, ON_ARM64) for cpu in (cpus.arm64, cpus.arm64_dotprod, cpus.arm64_i8mm)),
)
BECAUSE = "ncnn, quantized int8 inference: codes [-127, 127] without zero points; activations per tensor, weights per channel"
VOLUMES = "ncnn, src/layer/convolution3d.cpp, deconvolution3d.cpp and pooling3d.cpp: no int8"

ncnn = Target(
    name="ncnn",
    rules=(
        Rule(WINOGRAD, input=ACTIVATION, weight=evolve(WEIGHT, format=SIX)),
        Rule(Op("conv") | LINEAR, input=ACTIVATION, weight=WEIGHT),
    ),
    fusions=(Fusion(Op("conv") | LINEAR, (FusionStep(Op(Trait.CLAMPS)),)),),
    kernels=(
        DENSE,
        OF_NINE,
        REPEATED,
        ALONE,
        Kernel(LINEAR, THROUGH, formats=BYTES),
        Kernel(Op(REAL) | NEAREST, FloatKernel(rounding="half_away", division=False), formats=EITHER),
        Kernel(OWN, FloatKernel(rounding="half_away", division=False, function=Ncnn()), formats=EITHER),
    ),
    legality=(
        Require(Everything(), ("input", "output"), formats=NARROW, zero_point=False, shared=PerTensor(), because=BECAUSE),
        Require(Everything(), "weight", formats=NARROW, zero_point=False, shared=(PerTensor(), PerChannel()), because=BECAUSE),
        Refuse(Attr("spatial", 3), because=VOLUMES, do="Slide along one or two axes."),
    ),
    runtime=Runtime(
        "ncnn", ">=1.0.20261020", cpus.x86_64_vnni, "float32 between layers, no packed layout", NcnnRunner(), BUILDS
    ),
    lowering=NcnnLowering(),
    source=(
        "ncnn 1.0.20261020 on x86-64, measured",
        "ncnn, docs/how-to-use-and-FAQ/quantized-int8-inference.md; src/layer/x86/{convolution,innerproduct}_x86.cpp",
        "ncnn, tools/quantize/ncnn2table.cpp: 6 bits for 3x3 convolutions of stride 1",
    ),
    weight=Algorithm(MinMax(), Fixed()),
    activation=Algorithm(MinMax(), Fixed()),
)
