"""Tengine, uint8 on CPU: a float simulator of integers.

Weights and activations uint8 affine per tensor; zero points are truncated, z = trunc(-min / s), not rounded.  Biases
int32 with scale s_x*s_w, rounded half away from zero.  Every op dequantizes, computes in float32 and quantizes by
round(y / s) + z, half away from zero.  The order of float32 sums depends on the compiler, so the emulation is exact
only if the sums are.  The output of softmax has scale 1/255.  Ops that work in place (relu, max pools, data movement)
have the qparams of their output.
"""

from qfunc.estimators import Ema, MinMax
from qfunc.functions import Fixed as FixedFunction
from qfunc.specs import (
    Algorithm, Attr, Copy, DerivedQParams, Everything, FixedQParams, FloatKernel, Fusion, FusionStep, GraphOutput, Int, Kernel,
    Op, PerTensor, Refuse, Require, Rule, Runtime, SameQParams, Scheme, Target, Tie, Trait, ZeroPoint,
)  # fmt: skip
from qfunc.targets.tengine_u8.lowering import TengineLowering

U8 = Int(8, signed=False)
BYTE = Scheme(U8, zero_point=ZeroPoint("trunc"), rounding="half_away")
WEIGHTED = Op(("conv", "conv_transpose", "linear"))
SLIDING = Op(("conv", "conv_transpose", "max_pool", "avg_pool"))
FLOAT = ("add", "mul", "concat", "avg_pool", "adaptive_avg_pool", "global_avg_pool", "sigmoid", "hardswish", "prelu", "resize")
IN_PLACE = Op(Trait.CLAMPS)
MOVES = ("max_pool", "adaptive_max_pool", "reshape", "flatten", "transpose", "squeeze", "unsqueeze", "slice", "split",
         "chunk", "expand")  # fmt: skip
BYTES = (("input", (U8,)), ("weight", (U8,)), ("output", (U8,)))
SCALES = "MQBench, deploy to Tengine: quant_tool_uint8 reads one line 'tensor scale zero_point' for each tensor"
KERNELS = "OAID Tengine, tools/convert_tool/onnx/onnx2tengine.cpp: a kernel has a height and a width"
WEIGHTS = "OAID Tengine, tools/quantize: quant_tool_uint8 finds the codes of weights itself, 255 steps from least to largest"


tengine_u8 = Target(
    name="tengine_u8",
    rules=(
        Rule(WEIGHTED, input=BYTE, weight=BYTE, bias=DerivedQParams(rounding="half_away"), output=BYTE),
        Rule(Op("softmax"), input=BYTE, output=FixedQParams(BYTE, 1 / 255, 0)),
        Rule(Op(FLOAT) | IN_PLACE, input=BYTE, output=BYTE),
        Rule(GraphOutput() & ~Op(MOVES), output=BYTE),
    ),
    fusions=(
        Fusion(WEIGHTED, (FusionStep(Op("batch_norm")), FusionStep(IN_PLACE))),
        Fusion(Op(("add", "mul")), (FusionStep(IN_PLACE),)),
    ),
    ties=(Tie(IN_PLACE, ("input", "output"), "output"),),
    kernels=(
        Kernel(Op(("conv", "linear", "softmax", *FLOAT)) | IN_PLACE, FloatKernel(rounding="half_away"), formats=BYTES),
        Kernel(Op(MOVES), Copy(), integer_if=(SameQParams(),), formats=BYTES),
    ),
    commuting=Op((*MOVES, "pad")),
    legality=(
        Require(Everything(), ("input", "weight", "output"), shared=PerTensor(), because=SCALES),
        Require(Everything(), ("input", "output"), formats=U8, because=SCALES),
        Require(Everything(), "weight", formats=U8, narrower=False, because=WEIGHTS),
        Refuse(SLIDING & ~Attr("spatial", 2), because=KERNELS, do="Slide along 2 dimensions."),
    ),
    runtime=Runtime("tengine", "1.5", "CPU reference, uint8"),
    lowering=TengineLowering(),
    source=(
        "OAID Tengine, tools/quantize/quant_save_graph.cpp and quant_tool_uint8.cpp: scales, zero points, in-place ops",
        "OAID Tengine, source/device/cpu/op: uint8 reference kernels",
    ),
    weight=Algorithm(MinMax(), FixedFunction()),
    activation=Algorithm(Ema(), FixedFunction()),
)
