"""CMSIS-NN on Arm Cortex-M, int8, in TensorFlow Lite Micro: the file of `litert`; every product is rounded twice.

Floats are quantized half away from zero, by division.  The product of a sum and its 31-bit multiplier is rounded to its
high half, then the shift half away from zero: in convolutions, linear layers, products of tensors and sums.  Operators that
CMSIS-NN does not have are TensorFlow Lite Micro's reference kernels, with which those of CMSIS-NN are bit-exact.  Sigmoid
and tanh are computed in float.
"""

from attrs import evolve

from qfunc.lowering import TfliteMicroRunner
from qfunc.specs import Bilinear, FixedPoint, Kernel, Op, Refuse, Runtime, SoftmaxFixed, SumShifted, edit
from qfunc.targets.litert import BILINEAR, BY_MATRIX, BYTES, MEANS, SAME, SUMS, UNIT, UNITS, litert

PRODUCTS = Op(("conv", "conv_transpose", "linear", "matmul", "mul", "leaky_relu")) | BY_MATRIX
UNKNOWN = Op(("argmax", "argmin", "expand", "pow", "prod", "repeat", "tile"))
NO_OPERATOR = "TensorFlow Lite Micro, micro_mutable_op_resolver.h: no such operator"

cmsis_nn = evolve(
    edit.activations(rounding="half_away", division=True)(evolve(litert, rules=litert.rules[:4])),
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
