"""TVM from ONNX with QLinear operators, uint8.

Weights and activations uint8 affine per tensor, biases int32 with scale s_x*s_w.  Convolutions, linear layers,
additions, average pools and concats are QLinear operators; MaxPool and data movement run on codes.  The arithmetic is
that of ONNX Runtime, which runs the same file.  TVM imports the operators into its own requantize: float32 on x86 with
SSE4.1, elsewhere 31-bit fixed point rounding half up.  TVM has not been run here and can differ in single codes.
"""

from qfunc.estimators import MinMax
from qfunc.functions import Fixed
from qfunc.numerics.libraries import WindowSum
from qfunc.specs import (
    Algorithm, Attr, ClampImplied, Copy, DerivedQParams, Everything, FloatKernel, FloatMultiplier, Fusion, FusionStep, Int,
    Kernel, Op, PerChannel, PerTensor, Refuse, Require, Rule, Runtime, SameQParams, Scheme, SumFma, Target, Trait, ZeroPoint,
)  # fmt: skip
from qfunc.targets.onnx_qnn.lowering import QLinearLowering
from qfunc.targets.onnxruntime.runner import OnnxRuntimeRunner
from qfunc.targets.onnxruntime.mlas import Mlas
from qfunc.targets.onnxruntime.target import IN_FLOAT, ONCE, RATIO

U8 = Int(8, signed=False)
BYTE = Scheme(U8, zero_point=ZeroPoint())
WEIGHTED = Op(("conv", "linear"))
POOLS = Op(("avg_pool", "adaptive_avg_pool", "global_avg_pool"))
CURVES = ("softmax", "erf", "tanh", "sigmoid", "hardsigmoid")  # other curves and norms are several operators, and have a bound
CLAMPS = FusionStep(Op(Trait.CLAMPS))
MOVES = ("max_pool", "adaptive_max_pool", "reshape", "flatten", "transpose", "squeeze", "unsqueeze", "slice", "split",
         "chunk", "expand", "resize", "pixel_unshuffle", "channel_shuffle")  # fmt: skip
BYTES = (("input", (U8,)), ("weight", (U8,)), ("output", (U8,)))
SCALARS = "Apache TVM, relay/frontend/onnx.py, get_scalar: 'scale and zero_point input must be scalars'"
VECTORS = "ONNX operator specification, QLinearConv-10, w_scale: one scale, or one per output channel"
CONV2D = "Apache TVM, src/relay/qnn/op/convolution.cc: the only convolution on codes is qnn.conv2d"
LEVELS = "MQBench, deploy_onnx_qnn.py: QLinear operators with codes of 256 levels, uint8"


onnx_qnn = Target(
    name="onnx_qnn",
    rules=(
        Rule(WEIGHTED, input=BYTE, weight=BYTE, bias=DerivedQParams(), output=BYTE),
        Rule(Op(("add", "concat")) | POOLS, input=BYTE, output=BYTE),
    ),
    fusions=(Fusion(WEIGHTED | Op(("add", "concat")) | POOLS, (CLAMPS,), integer_if=(ClampImplied(),)),),
    kernels=(
        Kernel(Op(("conv", "linear", "matmul")), FloatMultiplier(), formats=BYTES),
        Kernel(Op("global_avg_pool"), FloatMultiplier(), integer_if=RATIO, formats=BYTES),
        Kernel(Op("add"), SumFma(), formats=BYTES),
        Kernel(
            Op("adaptive_avg_pool") | Op("avg_pool") & Attr("divisor_override", None),
            FloatKernel(zero_point="before", function=WindowSum()),
            integer_if=RATIO,
            formats=BYTES,
        ),
        Kernel(Op("concat"), FloatKernel(), formats=BYTES),
        Kernel(Op(MOVES), Copy(), integer_if=(SameQParams(),), formats=BYTES),
        Kernel(Op(CURVES), FloatKernel(function=Mlas()), formats=IN_FLOAT),
        Kernel(Op(ONCE), FloatKernel(), formats=IN_FLOAT),
    ),
    commuting=Op((*MOVES, "pad")),
    legality=(
        Require(Everything(), ("input", "weight", "output"), formats=U8, because=LEVELS),
        Require(Everything(), ("input", "output"), shared=PerTensor(), because=SCALARS),
        Require(Everything(), "weight", shared=(PerTensor(), PerChannel()), because=VECTORS),
        Refuse(Op("conv") & ~Attr("spatial", 2), because=CONV2D, do="Use nn.Conv2d, or leave it in float by edit.skip."),
    ),
    runtime=Runtime("tvm", "0.8 to 0.18, Relay QNN", runner=OnnxRuntimeRunner(optimise=False)),
    lowering=QLinearLowering(),
    source=(
        "Apache TVM, python/tvm/relay/frontend/onnx.py: QLinearConv, QLinearAdd, QLinearAveragePool, QLinearMatMul",
        "Apache TVM, src/relay/qnn/op/requantize.cc",
        "ONNX operator specification, QLinearConv-10; onnxruntime 1.31, com.microsoft QLinear operators",
    ),
    weight=Algorithm(MinMax(), Fixed()),
    activation=Algorithm(MinMax(), Fixed()),
)
