"""Qualcomm's Hexagon HTP, int8, with ONNX Runtime's QNN execution provider: Q/DQ ONNX with every op quantized.

Activations uint8 affine per tensor, with a range of at least 0.0001; weights int8 symmetric [-127, 127] per output channel,
also of matmuls; bias int32 with scale s_x*s_w.  The output of softmax has scale 1/256.  A Relu or Clip after a product, a
sum or a pool is fused with it.  All tensors of a concat share qparams, because with different ones the HTP omits the
clamps before it.  Ops without a rule here run in float16.
"""

from qfunc.estimators import MinMax
from qfunc.functions import Fixed as FixedFunction
from qfunc.specs import (
    Algorithm, Attr, DerivedQParams, Everything, FixedQParams, Fusion, FusionStep, Int, Kernel, Op, PerChannel, PerTensor,
    Refuse, Require, Rule, Runtime, Scale, Scheme, Target, Tie, Trait, Unknown, ZeroPoint,
)  # fmt: skip
from qfunc.targets.qnn_htp.lowering import QnnHtpLowering
from qfunc.targets.qnn_htp.runner import QnnHtpRunner

U8, U16, NARROW = Int(8, signed=False), Int(16, signed=False), Int(8, low=-127)
ACTIVATION = Scheme(U8, Scale(minimum_range=1e-4), ZeroPoint())
WEIGHT = Scheme(NARROW, Scale(PerChannel()))
PRODUCTS, SUMS = Op(("conv", "conv_transpose", "linear", "matmul")), Op(("add", "sub", "mul", "div"))
POOLS = Op(("avg_pool", "adaptive_avg_pool", "global_avg_pool"))
REDUCED = Op(("mean", "sum", "amax", "amin", "maximum", "minimum", "concat", "stack", "layer_norm", "log_softmax"))
CURVES = Op(
    ("relu", "clip", "sigmoid", "tanh", "hardswish", "hardsigmoid", "gelu", "elu", "leaky_relu", "softplus", "silu", "mish",
     "prelu", "abs", "exp", "log", "sqrt", "neg", "sin", "cos")
)  # fmt: skip
BILINEAR = Op("resize") & ~Attr("mode", "nearest")
MOVES = ("max_pool", "adaptive_max_pool", "reshape", "flatten", "transpose", "squeeze", "unsqueeze", "slice", "split",
         "chunk", "expand", "resize", "tile", "repeat", "repeat_interleave", "take", "flip", "pixel_shuffle",
         "pixel_unshuffle", "channel_shuffle", "pad")  # fmt: skip
NOT_TAKEN = Op(
    ("selu", "celu", "softsign", "erf", "group_norm", "instance_norm", "prod", "var", "std", "logsumexp", "cumsum", "where")
)
MEASURED = "onnxruntime-qnn 2.7, measured: the provider assigns it to the CPU, or the HTP does not compile it"
TYPES = "QNN execution provider of ONNX Runtime: activations have 8 or 16 bits and one scale per tensor"
WEIGHTS = "AIMET, quantsim_config of the HTP: 8-bit parameters are symmetric, with one scale per tensor or per channel"

qnn_htp = Target(
    name="qnn_htp",
    rules=(
        Rule(PRODUCTS, input=ACTIVATION, weight=WEIGHT, bias=DerivedQParams(), output=ACTIVATION),
        Rule(SUMS | POOLS | REDUCED | CURVES | BILINEAR | Op("batch_norm"), input=ACTIVATION, output=ACTIVATION),
        Rule(Op("softmax"), input=ACTIVATION, output=FixedQParams(ACTIVATION, 1 / 256, 0)),
    ),
    fusions=(Fusion(PRODUCTS | SUMS | POOLS, (FusionStep(Op(Trait.CLAMPS)),)),),
    ties=(Tie(Op(("concat", "stack")), ("input", "output"), "union"),),
    kernels=(Kernel(Everything(), Unknown("the rounding of the HTP is not published", nearest="onnxruntime")),),
    commuting=Op(MOVES),
    legality=(
        Require(Everything(), ("input", "output"), formats=(U8, U16, Int(8), Int(16)), shared=PerTensor(), because=TYPES),
        Require(Everything(), "weight", formats=Int(8), zero_point=False, shared=(PerTensor(), PerChannel()), because=WEIGHTS),
        Refuse(Op("conv_transpose") & ~Attr("groups", 1), because=MEASURED, do="Use one group."),
        Refuse(NOT_TAKEN, because=MEASURED, do="Use relu, gelu or hardswish, and batch_norm or layer_norm."),
    ),
    runtime=Runtime("onnxruntime-qnn", ">=2.7", "x86-64 emulator of the Hexagon HTP", runner=QnnHtpRunner()),
    lowering=QnnHtpLowering(),
    source=(
        "onnxruntime, python/tools/quantization/execution_providers/qnn/quant_config.py: types, granularity, smallest range",
        "AIMET, quantsim_config of the HTP: placement, supergroups of Relu and Clip",
        "onnxruntime-qnn 2.7 on x86-64, htp_arch 68 and 73, measured",
    ),
    weight=Algorithm(MinMax(), FixedFunction()),
    activation=Algorithm(MinMax(), FixedFunction()),
)
