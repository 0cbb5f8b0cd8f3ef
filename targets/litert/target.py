"""LiteRT (TensorFlow Lite) on x86-64, int8, with its default kernels: XNNPACK's, or the optimised ones where it has none.

Activations int8 affine per tensor, weights int8 symmetric [-127, 127] per output channel, bias int32 with scale
s_x*s_w.  The outputs of softmax and sigmoid have scale 1/256 and zero point -128, those of tanh scale 1/128 and zero
point 0.  Pools, concat, resizing and data movement have equal qparams at input and output.  Relu, relu6 and clip(-1, 1)
are fused into the op before them.

`litert_reference`: LiteRT with its reference kernels, the loops that define TensorFlow Lite: the same file, other roundings.
Floats are quantized half away from zero, by division, in 32 bits.  Convolutions round twice (the doubled high half of the
product, then the shift, half away).  Linear layers multiply in float64 and round once, half away.  Softmax is computed in
fixed point.

`litert_optimised`: LiteRT with its optimised kernels only, without the XNNPACK delegate: the same file, other roundings.
ruy's matrix products double the high half of the product and round the shift half up.  Grouped convolutions, and ops
without optimised kernels, round it half away from zero.  Quantize and dequantize process vectors of 8, additions vectors
of 16; the remaining entries are rounded differently.  Products in vectors of 16 have 16 bits, which wrap.  `litert` has
these kernels too for sums and products of tensors whose scales XNNPACK does not take.
"""

from attrs import evolve

from qfunc.estimators import MinMax
from qfunc.functions import Fixed as FixedFunction
from qfunc.numerics.libraries import GeluErfc
from qfunc.specs import (
    Algorithm, Attr, AverageCodes, Bilinear, Bounds, Build, Copy, DequantizeSum, DerivedQParams, Everything, FixedBits,
    FixedPoint, FixedPointGemv, FixedPointLanes, FixedQParams, FloatKernel, FloatMultiplier, From, Fusion, FusionStep,
    HardSwish16, Int, Kernel, NoZeroPoint, Op, OutputQParams, PerChannel, PerTensor, ProductLanes, QuantizeInt32, QuantizeLanes,
    Refuse, Require, Rule, Runtime, SameQParams, Scale, Scheme, Slower, SoftmaxFixed, SoftmaxFloat, SoftmaxTable16, SumScaled,
    SumShifted, Target, Tie, Trait, ZeroPoint, cpus, edit,
)  # fmt: skip
from qfunc.targets.litert.lowering import TfliteLowering
from qfunc.targets.litert.ratios import MULTIPLIED, SUMMED
from qfunc.targets.litert.runner import LiteRtRunner

S8, NARROW = Int(8), Int(8, low=-127)
ACTIVATION = Scheme(S8, zero_point=ZeroPoint(), division=False)
WEIGHT = Scheme(NARROW, Scale(PerChannel()))
WEIGHTED, TRANSPOSED = Op(("conv", "linear")), Op("conv_transpose")
PRODUCTS, SUMS = WEIGHTED | TRANSPOSED | Op("matmul"), Op(("add", "sub"))
POOLS = Op("adaptive_avg_pool") | Op("avg_pool") & Attr("divisor_override", None)
MEANS, CLIPS = Op(("global_avg_pool", "mean")), Op(Trait.CLAMPS)
BY_MATRIX = Op("matmul") & Attr("constant", "other")
BILINEAR = Op("resize") & Attr("mode", "bilinear")
RELU6, RELU1 = Op("clip") & Attr("min", 0.0) & Attr("max", 6.0), Op("clip") & Attr("min", -1.0) & Attr("max", 1.0)
BOUNDS = Op("relu") | RELU6 | RELU1
MOVES = ("max_pool", "adaptive_max_pool", "reshape", "flatten", "transpose", "squeeze", "unsqueeze", "slice", "split",
         "chunk", "expand", "resize")  # fmt: skip
BYTES = (("input", (S8,)), ("weight", (NARROW,)), ("output", (S8,)))
SAME = (SameQParams(),)
CLAMPED = Bounds(zero_point="before")
SQUARE, SQUARED = Op("mul") & Attr("square", True), FloatKernel(division=False, zero_point="before")
UNIT, SIGNED_UNIT = OutputQParams(1 / 256, -128), OutputQParams(1 / 128, 0)  # TFLite takes no others
SOFTMAX = Kernel(Op("softmax"), SoftmaxFloat(), integer_if=UNIT, formats=BYTES)
HARDSWISH = Kernel(Op("hardswish"), HardSwish16(), formats=BYTES)
SQUARES = Kernel(SQUARE, SQUARED, integer_if=MULTIPLIED, formats=BYTES, bounds=CLAMPED)
MEAN = Kernel(MEANS, FloatMultiplier(zero_point="before"), formats=BYTES)
MUL = Kernel(Op("mul"), FloatMultiplier(), integer_if=MULTIPLIED, formats=BYTES, bounds=CLAMPED)
UNITS = (
    Kernel(POOLS, AverageCodes("half_away"), integer_if=SAME, formats=BYTES),
    Kernel(CLIPS, FloatKernel(rounding="half_away"), integer_if=SAME, formats=BYTES),
    Kernel(Op(("concat", "pad")), FloatKernel(), integer_if=SAME, formats=BYTES),
    Kernel(Op("sigmoid"), FloatKernel(), integer_if=UNIT, formats=BYTES),
    Kernel(Op("tanh"), FloatKernel(), integer_if=SIGNED_UNIT, formats=BYTES),
    Kernel(Op("gelu"), FloatKernel(rounding="half_away", division=False, function=GeluErfc()), formats=BYTES),
    SOFTMAX,
    HARDSWISH,
    Kernel(Op("prelu"), FixedPoint(float_ratio=True), formats=BYTES),
    Kernel(Op(MOVES) & ~BILINEAR, Copy(), integer_if=SAME, formats=BYTES),
)
FLOAT_PRODUCT, FLOAT_RATIO = FixedPoint(float_product=True), FixedPoint(float_ratio=True)  # the types of M in TFLite
BY_COLUMNS = Kernel(TRANSPOSED, FixedPointLanes(), formats=BYTES)  # of any batch, which XNNPACK leaves to the optimised kernel
BY_VECTORS = (  # the optimised kernels of pairs
    Kernel(Op("mul"), ProductLanes(), formats=BYTES),
    Kernel(Op("add"), SumShifted(bits=16, lanes=16), formats=BYTES),
    Kernel(SUMS, SumShifted(), formats=BYTES),
)
ARM64 = (cpus.arm64, cpus.arm64_dotprod, cpus.arm64_i8mm)
X86_64 = tuple(map(Build, (cpus.x86_64_vnni, cpus.x86_64_avxvnni, cpus.x86_64_avx2, cpus.x86_64_sse4)))
XNNPACK_ON_ARM64 = (  # what XNNPACK computes in C++ is compiled with fused multiply-adds
    (MUL, evolve(MUL, arithmetic=FixedPoint("half_up", 24, float_ratio=True))),
    (MEAN, evolve(MEAN, arithmetic=FloatMultiplier(zero_point="before", fma=True))),
    (SQUARES, evolve(SQUARES, arithmetic=evolve(SQUARED, fma=True))),
)
CURVES_ON_ARM64 = (
    (SOFTMAX, evolve(SOFTMAX, arithmetic=SoftmaxTable16())),
    (HARDSWISH, evolve(HARDSWISH, arithmetic=HardSwish16(lanes=8))),
)
ON_WASM = (  # the optimised kernels have no vectors
    (BY_VECTORS[0], evolve(BY_VECTORS[0], arithmetic=FLOAT_RATIO)),
    (BY_VECTORS[1], evolve(BY_VECTORS[1], arithmetic=SumShifted())),
    (BY_COLUMNS, evolve(BY_COLUMNS, arithmetic=FixedPoint())),
)
FOUR_AXES = "TensorFlow Lite operators: convolutions and pools take tensors of four axes"
BY_CELLS = "Call nn.LSTMCell, nn.GRUCell or nn.RNNCell at each step, or compute it outside the deployed model."
NO_OPERATOR = "TensorFlow Lite builtin_ops.h and the reference kernels of LiteRT: no such operator, or not in that form"
MASKS = Op(("mask", "where"))  # they write -infinity, or a large negative number in its place
DILATED = ~Attr("dilation", 1) & ~Attr("dilation", (1,)) & ~Attr("dilation", (1, 1)) & ~Attr("dilation", (1, 1, 1))
BECAUSE = (
    "TensorFlow Lite 8-bit quantization specification: int8 activations per tensor, weights [-127, 127] without zero point"
)
RULES = (
    Rule(PRODUCTS, input=ACTIVATION, weight=WEIGHT, bias=DerivedQParams(), output=ACTIVATION),
    Rule(
        SUMS | Op(("mul", "concat", "hardswish", "leaky_relu", "gelu")) | MEANS | POOLS | CLIPS | BILINEAR,
        input=ACTIVATION,
        output=ACTIVATION,
        beside_integers=True,
    ),
    Rule(Op("prelu"), input=ACTIVATION, weight=Scheme(NARROW), output=ACTIVATION, beside_integers=True),
    Rule(
        Op("softmax"),
        input=ACTIVATION,
        output=FixedQParams(ACTIVATION, 1 / 256, -128),
        edges=~From(MASKS),
        beside_integers=True,
    ),
    Rule(Op("sigmoid"), input=ACTIVATION, output=FixedQParams(ACTIVATION, 1 / 256, -128), beside_integers=True),
    Rule(Op("tanh"), input=ACTIVATION, output=FixedQParams(ACTIVATION, 1 / 128, 0), beside_integers=True),
)
PAIRS = evolve(RULES[0], select=Op("matmul") & ~BY_MATRIX, beside_integers=True)
NO_XNNPACK = "litert 2.3 on x86-64, one thread, between two convolutions of 32 channels of 56 x 56: no kernel of XNNPACK"
NO_PRODUCT = "litert 2.3 on x86-64, one thread, attention of 384 channels over 197 tokens: no kernel of XNNPACK"
SLOWER = (
    Slower(Op("prelu"), 4.6, NO_XNNPACK),
    Slower(Op("hardswish"), 2.5, NO_XNNPACK),
    Slower(PAIRS.select, 5.2, NO_PRODUCT),
)
BUILDS = (
    *(evolve(build, slower=SLOWER) for build in X86_64),
    *(Build(cpu, (*XNNPACK_ON_ARM64, *CURVES_ON_ARM64)) for cpu in ARM64),
    Build(cpus.wasm_simd, ON_WASM),
)

litert = Target(
    name="litert",
    rules=(evolve(RULES[0], select=WEIGHTED | TRANSPOSED), *RULES[1:], evolve(RULES[0], select=BY_MATRIX), PAIRS),
    fusions=(Fusion(WEIGHTED | TRANSPOSED | SUMS | Op("mul") | POOLS, (FusionStep(BOUNDS),)),),
    ties=(Tie(Op("concat"), ("input", "output"), "union"), Tie(POOLS | CLIPS | BILINEAR, ("input", "output"), "input")),
    kernels=(
        SQUARES,
        MUL,
        Kernel(WEIGHTED | BY_MATRIX, FloatMultiplier(), formats=BYTES, bounds=CLAMPED),
        BY_COLUMNS,
        MEAN,
        Kernel(Op("matmul"), FloatMultiplier(), integer_if=(NoZeroPoint(1),), formats=BYTES),
        Kernel(Op("matmul"), FLOAT_PRODUCT, formats=BYTES),
        Kernel(SUMS, SumScaled(), integer_if=SUMMED, formats=BYTES, bounds=CLAMPED),
        *BY_VECTORS,
        Kernel(Op("leaky_relu"), FixedBits(least=2**-8), formats=BYTES),
        Kernel(BILINEAR, Bilinear("float", 11), integer_if=SAME, formats=BYTES),
        *UNITS,
    ),
    commuting=Op((*MOVES, "pad")),  # a pad writes the zero point
    legality=(
        Require(Everything(), ("input", "output"), formats=S8, shared=PerTensor(), because=BECAUSE),
        Refuse(Attr("spatial", 3), because=FOUR_AXES, do="Slide along one or two axes."),
        Refuse(TRANSPOSED & DILATED, because=NO_OPERATOR, do="Resize the image and convolve it."),
        Refuse(Op(Trait.RECURRENT), because=NO_OPERATOR, do=BY_CELLS),
        Require(Everything(), "weight", formats=NARROW, zero_point=False, shared=(PerTensor(), PerChannel()), because=BECAUSE),
    ),
    runtime=Runtime("litert", ">=2.3", cpus.x86_64_vnni, "XNNPACK", LiteRtRunner(), BUILDS),
    lowering=TfliteLowering(),
    source=(
        "ai-edge-litert 2.3 on x86-64, and LiteRT.js 2.5.3, measured",
        "TensorFlow Lite 8-bit quantization specification",
        "XNNPACK, src/microparams-init.c and src/operators: requantization of qs8",
    ),
    weight=Algorithm(MinMax(), FixedFunction()),
    activation=Algorithm(MinMax(), FixedFunction()),
)

INTO_INT32 = Kernel(Op("quantize"), QuantizeInt32())
REFERENCE_ON_ARM64 = ((INTO_INT32, evolve(INTO_INT32, arithmetic=QuantizeInt32(saturates=True))),)

litert_reference = evolve(
    edit.activations(rounding="half_away", division=True)(evolve(litert, rules=RULES)),
    name="litert_reference",
    kernels=(
        Kernel(Op("linear") | BY_MATRIX, FloatMultiplier("half_away", dtype="float64"), formats=BYTES),
        Kernel(Op("matmul"), FLOAT_PRODUCT, formats=BYTES),
        Kernel(Op(("mul", "leaky_relu")), FLOAT_RATIO, formats=BYTES),
        Kernel(Op(("conv", "conv_transpose")) | MEANS, FixedPoint(), formats=BYTES),
        Kernel(SUMS, SumShifted(), formats=BYTES),
        Kernel(BILINEAR, Bilinear("integer", 10), integer_if=SAME, formats=BYTES),
        Kernel(Op("softmax"), SoftmaxFixed(), integer_if=UNIT, formats=BYTES),
        INTO_INT32,
        *UNITS,
    ),
    runtime=Runtime(
        "litert",
        ">=2.3",
        cpus.x86_64_vnni,
        "reference",
        LiteRtRunner("reference"),
        (*X86_64, *(Build(cpu, REFERENCE_ON_ARM64) for cpu in ARM64)),
    ),
    source=("ai-edge-litert 2.3 on x86-64, OpResolverType.BUILTIN_REF, measured",
            "TensorFlow Lite, kernels/internal/reference and gemmlowp/fixedpoint"),
)  # fmt: skip

RUY = FixedPoint(("srdhm", "half_up"))
BY_RUY = Kernel(Op("conv"), RUY, formats=BYTES)
ROWS_BY_RUY = Kernel(Op("linear") | BY_MATRIX, evolve(RUY, float_product=True), formats=BYTES)
INTO_LANES = Kernel(Op("quantize"), QuantizeLanes())
FROM_LANES = Kernel(Op("dequantize"), DequantizeSum())
OPTIMISED_ON_ARM64 = (
    *CURVES_ON_ARM64,
    (BY_RUY, evolve(BY_RUY, arithmetic=FixedPointGemv(("sqdmulh", "half_up")))),
    (ROWS_BY_RUY, evolve(ROWS_BY_RUY, arithmetic=FixedPointGemv(("sqdmulh", "half_up"), float_product=True))),
    (INTO_LANES, evolve(INTO_LANES, arithmetic=QuantizeLanes(saturates=True))),
    (FROM_LANES, evolve(FROM_LANES, arithmetic=DequantizeSum(fma=True))),
)
ON_SSE4 = (
    (BY_RUY, evolve(BY_RUY, arithmetic=FixedPointGemv("half_up"))),
    (ROWS_BY_RUY, evolve(ROWS_BY_RUY, arithmetic=FixedPointGemv("half_up", float_product=True))),
)
GROUPED = Op("conv") & ~Attr("groups", 1) & ~Attr("depthwise", True)

litert_optimised = evolve(
    litert,
    name="litert_optimised",
    rules=RULES,
    kernels=(
        Kernel(GROUPED, FixedPoint(), formats=BYTES),
        Kernel(TRANSPOSED | Op("conv") & Attr("depthwise", True), FixedPointLanes(), formats=BYTES),
        BY_RUY,
        ROWS_BY_RUY,
        *BY_VECTORS,
        Kernel(Op("matmul"), FLOAT_PRODUCT, formats=BYTES),
        Kernel(Op("leaky_relu"), FLOAT_RATIO, formats=BYTES),
        Kernel(MEANS, FixedPoint(), formats=BYTES),
        Kernel(BILINEAR, Bilinear("integer", 10), integer_if=SAME, formats=BYTES),
        INTO_LANES,
        FROM_LANES,
        *UNITS,
    ),
    runtime=Runtime(
        "litert",
        ">=2.3",
        cpus.x86_64_vnni,
        "optimised",
        LiteRtRunner("optimised"),
        (
            *X86_64[:3],
            Build(cpus.x86_64_sse4, ON_SSE4),
            *(Build(cpu, OPTIMISED_ON_ARM64) for cpu in ARM64),
        ),
    ),
    source=("ai-edge-litert 2.3 on x86-64, OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES, measured",
            "TensorFlow Lite, kernels/internal/optimized and ruy"),
)  # fmt: skip
