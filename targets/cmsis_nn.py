"""CMSIS-NN on Arm Cortex-M, int8, in TensorFlow Lite Micro: the file of `litert`; every product is rounded twice.

Floats are quantized half away from zero, by division.  The product of a sum and its 31-bit multiplier is rounded to its
high half, then the shift half away from zero: in convolutions, linear layers, products of tensors and sums.  Operators that
CMSIS-NN does not have are TensorFlow Lite Micro's reference kernels, with which those of CMSIS-NN are bit-exact.  Sigmoid
and tanh are computed in float.

`cmsis_nn_16x8`: CMSIS-NN on Arm Cortex-M, 16x8: int16 activations, int8 weights, biases and sums of 64 bits.
Activations are symmetric.  A product's multiplier is rounded to 31 bits, and then to 15, at most 0x7FFF; the sum times it is
shifted half up.  Means, sums and products of two tensors are rounded as in int8, the inputs of sums shifted left by 15 bits.
Weights of linear layers have one scale.  Ops without a kernel of 16 bits are computed in float.
"""

from attrs import evolve

from qfunc.estimators import MinMax
from qfunc.functions import Fixed as FixedFunction
from qfunc.specs import (
    Algorithm, AverageCodes, Bilinear, Bounds, Copy, DerivedQParams, Everything, FixedPoint, FloatKernel, Fusion, FusionStep,
    Int, Kernel, Op, PerChannel, PerTensor, Refuse, Require, Rule, Runtime, Scale, Scheme, SoftmaxFixed, SumShifted, Target,
    Tie, edit,
)  # fmt: skip
from qfunc.targets.litert.lowering import TfliteLowering
from qfunc.targets.litert.runner import TfliteMicroRunner
from qfunc.targets.litert.target import BILINEAR, BOUNDS, BY_MATRIX, BYTES, MEANS, POOLS, RULES, SAME, SUMS, UNIT, UNITS, litert

PRODUCTS = Op(("conv", "conv_transpose", "linear", "matmul", "mul", "leaky_relu", "prelu")) | BY_MATRIX
UNKNOWN = Op(("argmax", "argmin", "expand", "pow", "prod", "repeat", "tile"))
NO_OPERATOR = "TensorFlow Lite Micro, micro_mutable_op_resolver.h: no such operator"

IN_CODES = tuple(evolve(rule, beside_integers=False) for rule in RULES[:4])  # few of the processors have floats

cmsis_nn = evolve(
    edit.activations(rounding="half_away", division=True)(evolve(litert, rules=IN_CODES)),
    name="cmsis_nn",
    kernels=(
        Kernel(PRODUCTS | MEANS, FixedPoint(), formats=BYTES),
        Kernel(SUMS, SumShifted(), formats=BYTES),
        Kernel(BILINEAR, Bilinear("integer", 10), integer_if=SAME, formats=BYTES),
        Kernel(Op("softmax"), SoftmaxFixed(), integer_if=UNIT, formats=BYTES),
        *UNITS[:3],  # without those of sigmoid, tanh and GELU
        *UNITS[7:],
    ),
    legality=(
        *litert.legality,
        Refuse(Op("gelu"), because=NO_OPERATOR, do="Use hardswish or relu."),
        Refuse(UNKNOWN, because=NO_OPERATOR, do="Compute it outside the deployed model."),
    ),
    runtime=Runtime("tflite-micro", "main of 2026-10", "Arm Cortex-M", "CMSIS-NN", TfliteMicroRunner()),
    source=("CMSIS-NN 99f736a, Include/arm_nnsupportfunctions.h: arm_nn_requantize without CMSIS_NN_USE_SINGLE_ROUNDING",
            "TensorFlow Lite Micro 90b983c, micro/kernels/cmsis_nn and micro/kernels/add_common.cc",
            "tflite-micro 0.dev20261023 on x86-64, measured"),
)  # fmt: skip

S16, NARROW = Int(16), Int(8, low=-127)
ACTIVATION = Scheme(S16, rounding="half_away")
MOVES = ("max_pool", "adaptive_max_pool", "reshape", "flatten", "transpose", "squeeze", "unsqueeze")
SHORTS = (("input", (S16,)), ("weight", (NARROW,)), ("output", (S16,)))
FORM = "TensorFlow Lite 16x8 quantization: int16 activations and int8 weights, symmetric"
ONE_SCALE = "TensorFlow Lite Micro, kernels/cmsis_nn/fully_connected.cc: 'only Int8 is supported for per channel quantization'"

cmsis_nn_16x8 = Target(
    name="cmsis_nn_16x8",
    rules=(
        Rule(Op("conv"), weight=Scheme(NARROW, Scale(PerChannel()))),
        Rule(Op(("conv", "linear")), input=ACTIVATION, weight=Scheme(NARROW), bias=DerivedQParams(Int(64)), output=ACTIVATION),
        Rule(Op(("add", "mul", "concat")) | POOLS, input=ACTIVATION, output=ACTIVATION),
    ),
    fusions=(Fusion(Op(("conv", "linear", "add", "mul")) | POOLS, (FusionStep(BOUNDS),)),),
    ties=(Tie(Op("concat"), ("input", "output"), "union"), Tie(POOLS, ("input", "output"), "input")),
    kernels=(
        Kernel(Op(("conv", "linear")), FixedPoint("half_up", accumulator=64, reduced=15), formats=SHORTS,
               bounds=Bounds("half_away")),
        Kernel(Op("mul") | MEANS, FixedPoint(), formats=SHORTS),
        Kernel(Op("add"), SumShifted(15), formats=SHORTS),
        Kernel(POOLS, AverageCodes("half_away"), integer_if=SAME, formats=SHORTS),
        Kernel(Op("concat"), FloatKernel(), integer_if=SAME, formats=SHORTS),
        Kernel(Op(MOVES), Copy(), integer_if=SAME, formats=SHORTS),
    ),
    commuting=Op((*MOVES, "pad")),
    legality=(
        *litert.legality[1:-1],
        Require(Everything(), ("input", "output"), formats=S16, zero_point=False, shared=PerTensor(), because=FORM),
        Require(Op("linear"), "weight", shared=PerTensor(), because=ONE_SCALE),
        Require(Everything(), "weight", formats=NARROW, zero_point=False, shared=(PerTensor(), PerChannel()), because=FORM),
        Refuse(Op("gelu"), because=NO_OPERATOR, do="Use hardswish or relu."),
        Refuse(UNKNOWN, because=NO_OPERATOR, do="Compute it outside the deployed model."),
    ),
    runtime=Runtime("tflite-micro", "main of 2026-10", "Arm Cortex-M", "CMSIS-NN", TfliteMicroRunner()),
    lowering=TfliteLowering(bits=16),
    source=("CMSIS-NN 99f736a, arm_nn_mat_mult_kernel_s16.c, arm_fully_connected_s16.c, arm_elementwise_add_s16.c",
            "CMSIS-NN 99f736a, arm_nnsupportfunctions.h: REDUCE_MULTIPLIER and arm_nn_requantize_s64",
            "TensorFlow Lite Micro 90b983c, micro/kernels/cmsis_nn and micro/kernels/add_common.cc",
            "tflite-micro 0.dev20261023 on x86-64, measured"),
    weight=Algorithm(MinMax(), FixedFunction()),
    activation=Algorithm(MinMax(), FixedFunction()),
)  # fmt: skip
