"""Intel OpenVINO on CPU: int8 by FakeQuantize, placed as by NNCF (PERFORMANCE preset) except where the plugin fuses.

Weights have 255 levels [-127, 127] per output channel.  Activations have 256 levels per tensor, unsigned [0, 255] if the
graph proves them non-negative, else signed with scale amax/127.  FakeQuantize rounds the index of the level half to even,
so that with 255 levels ties go to odd integers.  Convolutions and linear layers add their float bias to the product in
real units and round once.  All tensors of a concat share qparams.

The CPU plugin fuses an addition into the convolution before it, with the activations between and after them.  NNCF 3.4
places a quantizer between the two.  The plugin would fuse it and omit its rounding, so this target places none.  Of two
convolutions that feed an addition, the plugin fuses the one without a quantizer, which is the later one here.

Weights with a zero point are stored as codes, but the plugin computes their products in float, as it does products of two
activations and depthwise convolutions of volumes whose input has a zero point.

CPUs without VNNI add two products in 16 bits, which can overflow.  For them, NNCF halves the range of the first layer's
weights, and MQBench that of all weights: `evolve(rule, weight=evolve(WEIGHT, format=Int(8, low=-64, high=63)))`.
"""

from qfunc.estimators import Ema, MinMax
from qfunc.functions import Fixed
from qfunc.specs import (
    FLOAT32, Algorithm, Attr, Cases, Copy, Everything, FloatKernel, FloatRequantize, Fusion, FusionStep, Int, Kernel,
    NonNegative, NoZeroPoint, Op, PerChannel, QuantizeRange, Require, Rule, Runtime, SameQParams, Scale, Scheme, Target, Tie,
    Trait,
)  # fmt: skip
from qfunc.targets.openvino.lowering import OpenVinoLowering
from qfunc.targets.openvino.runner import OpenVinoRunner

S8, U8, NARROW = Int(8), Int(8, signed=False), Int(8, low=-127)
SIGNED = Scheme(S8, rounding="half_even_on_index")
UNSIGNED = Scheme(U8, rounding="half_even_on_index")
ACTIVATION = Cases(((NonNegative(), UNSIGNED),), default=SIGNED)
WEIGHT = Scheme(NARROW, Scale(PerChannel()), rounding="half_even_on_index")
WEIGHTED = Op(("conv", "conv_transpose", "linear", "matmul"))
SYMMETRIC = Op("conv") & Attr("spatial", 3) & Attr("depthwise", True) | Op("matmul") & ~Attr("constant", "other")
BY_RANGE = FloatRequantize(by_range=True)
REAL = Op(("add", "mul", "avg_pool", "adaptive_avg_pool", "global_avg_pool", "mean", "sum"))
BOUND = Op(Trait.CLAMPS)
NEAREST = Attr("mode", "nearest")
MOVES = ("max_pool", "adaptive_max_pool", "reshape", "flatten", "transpose", "squeeze", "unsqueeze", "slice", "split",
         "chunk", "expand", "resize")  # fmt: skip
BYTES = (("input", (S8, U8)), ("weight", (NARROW,)), ("output", (S8, U8)))
INTO_REAL = (("input", (S8, U8)), ("weight", (NARROW,)), ("output", (FLOAT32,)))
BITS = "NNCF, CPU hardware configuration: weights and activations have 8 bits; the runtime's integers have 256 or 255 levels"

openvino = Target(
    name="openvino",
    rules=(
        Rule(WEIGHTED, input=ACTIVATION, weight=WEIGHT),
        Rule(REAL | Op("resize") & ~NEAREST, input=ACTIVATION, beside_integers=True),
        Rule(Op("concat") & NonNegative(), input=UNSIGNED, output=UNSIGNED, beside_integers=True),
        Rule(Op("concat"), input=SIGNED, output=SIGNED, beside_integers=True),
    ),
    fusions=(
        Fusion(
            Op("conv"),
            (FusionStep(Op("batch_norm")), FusionStep(BOUND), FusionStep(Op("add"), optional=False), FusionStep(BOUND)),
        ),
        Fusion(WEIGHTED, (FusionStep(Op("batch_norm")), FusionStep(BOUND))),
        Fusion(Op(("add", "mul")), (FusionStep(BOUND),)),
    ),
    ties=(Tie(Op("concat"), ("input", "output"), "union"),),
    kernels=(
        Kernel(SYMMETRIC & Op("conv"), BY_RANGE, integer_if=(NoZeroPoint(0), NoZeroPoint(1)), formats=BYTES),
        Kernel(SYMMETRIC, FloatRequantize(), integer_if=(NoZeroPoint(0), NoZeroPoint(1)), formats=BYTES),
        Kernel(Op("conv") & ~SYMMETRIC, BY_RANGE, integer_if=(NoZeroPoint(1),), formats=BYTES),
        Kernel(Op(("linear", "matmul")) & ~SYMMETRIC, FloatRequantize(), integer_if=(NoZeroPoint(1),), formats=BYTES),
        Kernel(Op(("conv", "linear", "matmul")) & ~SYMMETRIC, BY_RANGE, integer_if=(NoZeroPoint(1),), formats=INTO_REAL),
        Kernel(Op("quantize"), QuantizeRange()),
        Kernel(REAL, FloatKernel(), formats=BYTES),
        Kernel(Op(("concat", *MOVES)), Copy(), integer_if=(SameQParams(),), formats=BYTES),
    ),
    commuting=Op((*MOVES, "pad")),
    legality=(
        Require(Everything(), ("input", "output"), formats=(S8, U8, NARROW), because=BITS),
        Require(Everything(), "weight", formats=(S8, U8), because=BITS),
    ),
    runtime=Runtime("openvino", ">=2026.4", "x86-64 VNNI", "oneDNN, INFERENCE_PRECISION_HINT=f32", runner=OpenVinoRunner()),
    lowering=OpenVinoLowering(),
    source=(
        "OpenVINO operation specification, FakeQuantize-1, and measurements of openvino 2026.4",
        "OpenVINO, intel_cpu/docs/internal_cpu_plugin_optimization.md: Fusing Convolution and Sum Layers",
        "NNCF, quantization of CPU targets: narrow symmetric weights, unified scales of concat, pass-through ops",
    ),
    weight=Algorithm(MinMax(), Fixed()),
    activation=Algorithm(Ema(), Fixed()),
)
