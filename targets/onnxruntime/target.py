"""ONNX Runtime on x86-64 with VNNI, CPUExecutionProvider: QLinear kernels of MLAS, default optimisation.

Activations uint8 affine per tensor; weights int8 symmetric [-127, 127] per output channel; bias int32 with
scale s_x*s_w.  The fused graph determines where rounding happens: a Relu or Clip is dropped if the clamp to the
codes implies it; MaxPool and data movement run on codes if their qparams are equal at input and output.
The output of a softmax has the scale 1/256 of the quantization tool; its kernel also takes smaller scales.
"""

from attrs import evolve

from qfunc.estimators import MinMax
from qfunc.functions import Fixed as FixedFunction
from qfunc.numerics.libraries import WindowSum
from qfunc.specs import (
    FLOAT32, Accumulator, Algorithm, AtMost, Attr, Build, ClampImplied, Copy, DerivedQParams, First, FixedQParams, FloatKernel,
    FloatMultiplier, From, Fusion, FusionStep, InputRatios, Int, Kernel, Multiple, Op, PerChannel, PerTensor, ReadBy, Require,
    Rule, Runtime, SameQParams, SaturatesPairs, Scale, Scheme, Slower, SoftmaxTable, SumFma, SumScaled, Target, Trait,
    ZeroPoint, cpus,
)  # fmt: skip
from qfunc.targets.onnxruntime.dynamic_lstm import RUN_TIME, DynamicLstm
from qfunc.targets.onnxruntime.eigen import Eigen
from qfunc.targets.onnxruntime.lowering import OnnxRuntimeLowering
from qfunc.targets.onnxruntime.mlas import Mlas, MlasLogistic
from qfunc.targets.onnxruntime.runner import OnnxRuntimeRunner

U8, S8 = Int(8, signed=False), Int(8, low=-127)
ACTIVATION = Scheme(U8, zero_point=ZeroPoint())
WEIGHT = Scheme(S8, Scale(PerChannel()))
MOVES = ("max_pool", "adaptive_max_pool", "reshape", "flatten", "transpose", "squeeze", "unsqueeze", "slice", "expand",
         "split", "chunk", "resize", "repeat_heads", "repeat", "tile", "repeat_interleave", "take", "index", "gather", "flip",
         "pixel_shuffle", "pixel_unshuffle", "channel_shuffle")  # fmt: skip
EXTREMES = ("amax", "amin")  # ReduceMax and ReduceMin take uint8
MASKS = ("mask", "where")  # they write -infinity, or a large negative number in its place
CURVES = ("layer_norm", "softmax", "gelu", "erf", "tanh", "sigmoid", "silu", "hardsigmoid", "hardswish")
PACKETS = Op(("rms_norm", "sin", "cos")) | Op("sum") & (Attr("dim", -1) | Attr("dim", (-1,)))
ONCE = ("add", "sub", "mul", "div", "neg", "abs", "relu", "clip", "concat", "mask", "where", "scale", "embedding",
        *EXTREMES, *(kind for kind in MOVES if kind != "resize"))  # fmt: skip
POOLS = ("avg_pool", "adaptive_avg_pool", "global_avg_pool")
ROOTS = Op(("conv", "linear", "matmul", "add", "mul", "concat", *POOLS, "leaky_relu", "sigmoid", "softmax"))
VECTORS = "onnxruntime 1.31, QLinearConv: 'filter scale shape invalid' except for one scale, or one per output channel"
RATIO = InputRatios(0, 256)  # of an average over a whole image
BYTES = (("input", (U8,)), ("weight", (S8, U8)), ("output", (U8,)))
INTO_REAL = (("input", (U8,)), ("weight", (S8, U8)), ("output", (FLOAT32,)))
IN_FLOAT = (("input", (FLOAT32,)), ("output", (FLOAT32,)))
FLOAT_KERNELS = (
    Kernel(Op(CURVES), FloatKernel(function=Mlas()), formats=IN_FLOAT),
    Kernel(PACKETS, FloatKernel(function=Eigen()), formats=IN_FLOAT),
    Kernel(Op(ONCE), FloatKernel(), formats=IN_FLOAT),
)

ADD = Kernel(Op("add"), SumFma(), formats=BYTES)
MUL = Kernel(Op("mul"), FloatMultiplier(zero_point="before"), formats=BYTES)
POOL = Kernel(
    Op("adaptive_avg_pool") | Op("avg_pool") & Attr("divisor_override", None),
    FloatKernel(zero_point="before", function=WindowSum()),
    integer_if=RATIO,
    formats=BYTES,
)
GLOBAL_POOL = Kernel(Op("global_avg_pool"), FloatMultiplier(), integer_if=RATIO, formats=BYTES)
SOFTMAX = Kernel(Op("softmax"), SoftmaxTable(), formats=BYTES)
SATURATED = (SOFTMAX, evolve(SOFTMAX, arithmetic=SoftmaxTable(saturates=True)))
ON_NEON = SumScaled("half_away", 22, least=-14, outside=FloatKernel(zero_point="before"))
LSTM = Kernel(Op("lstm"), DynamicLstm(), formats=(("input", (FLOAT32,)), ("weight", (S8,)), ("output", (FLOAT32,))))
WITHOUT_FMA = (LSTM, evolve(LSTM, arithmetic=DynamicLstm(fma=False)))
ON_SSE4 = ((ADD, evolve(ADD, arithmetic=SumFma(fma=False))), WITHOUT_FMA)
ON_WASM = ((ADD, evolve(ADD, arithmetic=FloatKernel(zero_point="before"))), SATURATED, WITHOUT_FMA)
ON_ARM64 = ((ADD, evolve(ADD, arithmetic=ON_NEON)), SATURATED)
PRODUCTS = Kernel(Op(("conv", "linear", "matmul")), FloatMultiplier(), formats=BYTES)
REAL_PRODUCTS = Kernel(Op("linear"), FloatMultiplier(), formats=INTO_REAL)
PAIRS = FloatMultiplier(accumulator=Accumulator(32, SaturatesPairs()))
ON_AVX2 = (
    *((kernel, evolve(kernel, arithmetic=PAIRS)) for kernel in (PRODUCTS, REAL_PRODUCTS)),
    (LSTM, evolve(LSTM, arithmetic=DynamicLstm(SaturatesPairs()))),
)
OF_IMAGES = Op("conv") & AtMost("in_channels", 3) & Multiple("out_channels", 16) & AtMost("out_channels", 32)
NARROW = Op("conv") & AtMost("in_channels", 10) & AtMost("out_channels", 16) & Attr("groups", 1)
SMALL_STATE = Op("lstm") & AtMost("hidden_size", 48)
STEMS = "onnxruntime 1.31, AVX-512 VNNI, 64 pixels, 1 and 2 threads: such networks of three convolutions, 1.2 to 1.7"
SPARSE = (
    "onnxruntime 1.31, AVX-512 VNNI, 48 to 224 pixels: 1.5 and 2.3 of the first convolutions of P-net; such networks 1.0 to 1.3"
)
STATES = "onnxruntime 1.31, AVX-512 VNNI, 20 steps: a state of 16 and 32 entries, 1.3; of 64 entries 1.0"
SLOWER = (
    Slower(OF_IMAGES & ReadBy(Op("hardswish")), 1.4, STEMS),
    Slower(NARROW & ReadBy(Op("prelu")), 1.5, SPARSE),
    Slower(SMALL_STATE, 1.3, STATES),
)
BUILDS = (
    Build(cpus.x86_64_vnni, slower=SLOWER),
    Build(cpus.x86_64_avxvnni),
    Build(cpus.x86_64_avx2, ON_AVX2),
    Build(cpus.x86_64_sse4, ON_SSE4),
    *(Build(cpu, ON_ARM64) for cpu in (cpus.arm64, cpus.arm64_dotprod, cpus.arm64_i8mm)),
    Build(cpus.wasm_simd, ON_WASM),
)

onnxruntime = Target(
    name="onnxruntime",
    rules=(
        Rule(Op(("conv", "linear", "matmul")), input=ACTIVATION, weight=WEIGHT, bias=DerivedQParams(), output=ACTIVATION),
        Rule(Op("lstm") & ~First(), input=RUN_TIME, weight=WEIGHT),
        Rule(Op(("add", "mul", "concat", *POOLS)), input=ACTIVATION, output=ACTIVATION, beside_integers=True),
        Rule(Op(("sigmoid", "leaky_relu")), input=ACTIVATION, output=ACTIVATION, beside_integers=True),
        Rule(
            Op("softmax"),
            input=ACTIVATION,
            output=FixedQParams(ACTIVATION, 1 / 256, 0, smaller=True),
            edges=~From(Op(MASKS)),
            beside_integers=True,
        ),
    ),
    fusions=(Fusion(ROOTS, (FusionStep(Op(Trait.CLAMPS)),), integer_if=(ClampImplied(),)),),
    kernels=(
        PRODUCTS,
        GLOBAL_POOL,
        ADD,
        MUL,
        POOL,
        Kernel(Op("concat"), FloatKernel(), formats=BYTES),
        Kernel(Op("leaky_relu"), FloatKernel(), formats=BYTES),
        Kernel(Op("sigmoid"), FloatKernel(function=MlasLogistic()), formats=BYTES),
        SOFTMAX,
        LSTM,
        Kernel(Op((*MOVES, *EXTREMES)), Copy(), integer_if=(SameQParams(),), formats=BYTES),
        REAL_PRODUCTS,
        *FLOAT_KERNELS,
    ),
    commuting=Op((*MOVES, "pad")),  # Pad runs in float, with equal qparams at input and output
    legality=(Require(Op(("conv", "linear", "matmul")), "weight", shared=(PerTensor(), PerChannel()), because=VECTORS),),
    runtime=Runtime("onnxruntime", ">=1.31", cpus.x86_64_vnni, "MLAS", OnnxRuntimeRunner(), BUILDS),
    lowering=OnnxRuntimeLowering(),
    source=("onnxruntime 1.31 CPUExecutionProvider, quantization documentation and measurements",),
    weight=Algorithm(MinMax(), FixedFunction()),
    activation=Algorithm(MinMax(), FixedFunction()),
)
