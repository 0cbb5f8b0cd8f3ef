"""AMD Vitis AI: the DPU, int8 with power-of-two scales.

Weights, biases and activations int8 symmetric [-128, 127] per tensor, scale 2^-position; the bias has a separate
position.  Activations round half up, weights and biases half away from zero.  A convolution or linear layer is one
exact accumulator, shifted by shift_cut = w + i - o; its bias is shifted by shift_bias = w + i - b; average pools
multiply by k / 2^n instead of dividing.  The compiler bounds the shifts.  This is the arithmetic of AMD's public CPU
runner; it has not been compared with silicon.  It differs from the runner in one point: the runner clamps ReLU6 at 96
codes for every position of the output, which is 6 only at position 4; here it clamps at 6.

No op is refused: the compiler assigns ops that a DPU does not run to the CPU, such as 3-d convolutions on every DPU but
the DPUCVDX8G.
"""

from qfunc.estimators import Mse, PotMode, PowerOfTwo
from qfunc.functions import Tqt
from qfunc.specs import (
    Algorithm, Attr, AveragePool, Copy, Everything, FloatKernel, Fusion, FusionStep, Int, Kernel, Limit, Op, PerTensor, Require,
    Rule, Runtime, SameQParams, Scale, Scheme, Shift, Target, Tie,
)  # fmt: skip
from qfunc.targets.vitis.lowering import VitisLowering

S8 = Int(8)
ACTIVATION = Scheme(S8, Scale(power_of_two=True), rounding="half_up")
WEIGHT = Scheme(S8, Scale(power_of_two=True), rounding="half_away")
WEIGHTED = Op(("conv", "conv_transpose", "linear"))
POOLS = Op(("avg_pool", "global_avg_pool"))
WHOLE = Attr("ceil_mode", False) & Attr("divisor_override", None) & (Attr("count_include_pad", True) | Attr("padding", 0))
ACTIVATIONS = Op("relu") | Op("clip") & Attr("min", 0) & Attr("max", 6)
MOVES = ("max_pool", "adaptive_max_pool", "reshape", "flatten", "transpose", "squeeze", "unsqueeze", "slice", "split",
         "chunk", "expand", "resize")  # fmt: skip
BYTES = (("input", (S8,)), ("weight", (S8,)), ("output", (S8,)))
SLOTS = ("input", "weight", "bias", "output")
RECIPROCALS = (
    ((3, 3), 7, 6), ((5, 5), 10, 8), ((6, 6), 7, 8), ((3, 6), 7, 7), ((6, 3), 7, 7), ((7, 7), 21, 10), ((14, 14), 21, 12),
)  # fmt: skip
DPU = "MQBench user guide, hardware/vitis: '8bit per-tensor symmetric linear quantization with power of two scales'"


vitis = Target(
    name="vitis",
    rules=(
        Rule(WEIGHTED, input=ACTIVATION, weight=WEIGHT, bias=WEIGHT, output=ACTIVATION),
        Rule(Op(("add", "mul", "concat", "relu", "prelu", "batch_norm")) | POOLS, input=ACTIVATION, output=ACTIVATION),
        Rule(Op("resize") & ~Attr("mode", "nearest"), input=ACTIVATION, output=ACTIVATION),
    ),
    fusions=(
        Fusion(WEIGHTED, (FusionStep(Op("batch_norm")), FusionStep(ACTIVATIONS))),
        Fusion(Op(("add", "mul")), (FusionStep(ACTIVATIONS),)),
    ),
    ties=(Tie(Op("concat"), ("input", "output"), "max_scale"),),
    limits=(
        Limit(WEIGHTED, (("weight", 1), ("input", 1), ("output", -1)), 0, 16, "weight"),  # shift_cut
        Limit(WEIGHTED, (("weight", 1), ("input", 1), ("bias", -1)), -16, 15, "bias"),  # shift_bias
        Limit(WEIGHTED, (("output", 1), ("bias", -1)), -16, 15, "bias"),  # shift_bias >= shift_cut - 16
        Limit(Op("add"), (("input.max", 1), ("input.min", -1)), 0, 7, "input"),  # shift_read
        Limit(Op("add"), (("input.min", 1), ("output", -1)), -7, 25, "output"),  # shift_write
        Limit(Op("mul"), (("input.sum", 1), ("output", -1)), 0, 32, "output"),
    ),
    kernels=(
        Kernel(Op(("conv", "linear", "add", "mul")), Shift("half_up"), formats=BYTES),
        Kernel(Op("global_avg_pool") | Op("avg_pool") & WHOLE, AveragePool("half_up", RECIPROCALS, 7), formats=BYTES),
        Kernel(ACTIVATIONS, FloatKernel(rounding="half_up"), formats=BYTES),
        Kernel(Op(("concat", *MOVES)), Copy(), integer_if=(SameQParams(),), formats=BYTES),
    ),
    commuting=Op((*MOVES, "pad")),
    legality=(
        Require(Everything(), SLOTS, zero_point=False, power_of_two=True, shared=PerTensor(), because=DPU),
        Require(Everything(), ("input", "weight", "output"), formats=S8, because=DPU),
    ),
    runtime=Runtime("vitis-ai", "3.5", "DPU", "vart cpu-runner"),
    lowering=VitisLowering(),
    source=(
        "Xilinx Vitis AI 3.5, vart/cpu-runner/src/op: conv2d_fix.cpp, eltwise_fix.cpp, pool_fix.cpp",
        "Xilinx Vitis AI quantizer, nndct_fix_kernels.cuh (rounding methods 2 and 3)",
        "AMD Quark ONNX 0.13, refine: limits of shifts",
        "AMD UG1414 3.5, Supported Operators and DPU Limitations; AMD PG389, Convolution 2D and 3D",
    ),
    weight=Algorithm(PowerOfTwo(Mse(), finest=12), Tqt()),
    activation=Algorithm(PotMode(finest=12), Tqt()),
    bias=Algorithm(PowerOfTwo(Mse(), finest=12), Tqt()),
)
