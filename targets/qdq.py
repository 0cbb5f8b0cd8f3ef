"""Standard ONNX Q/DQ, opset 13 or later, for any runtime that reads it: int8, evaluated as the operators are defined.

Weights int8 symmetric per output channel, [-127, 127]; activations int8 symmetric per tensor, saturated as by
QuantizeLinear at [-128, 127]; bias in float.  The inputs of convolutions, linear layers, matmuls, additions,
products, pools and resizes are quantized; a product that feeds an addition is not, for a fused multiply-add.
No op runs on codes: each computes in float between DequantizeLinear and QuantizeLinear.
"""

from qfunc.estimators import Ema, MinMax
from qfunc.functions import Fixed
from qfunc.lowering import ExplicitQdqLowering
from qfunc.specs import Algorithm, From, Int, Op, PerChannel, Rule, Runtime, Scale, Scheme, Target, Trait
from qfunc.targets.onnxruntime.runner import OnnxRuntimeRunner

ACTIVATION = Scheme(Int(8))
WEIGHT = Scheme(Int(8, low=-127), Scale(PerChannel()))
POOLS = ("max_pool", "avg_pool", "adaptive_avg_pool", "global_avg_pool")

qdq = Target(
    name="qdq",
    rules=(
        Rule(Op(("conv", "conv_transpose", "linear", "matmul")), input=ACTIVATION, weight=WEIGHT),
        Rule(Op(Trait.RECURRENT), input=ACTIVATION, weight=WEIGHT),
        Rule(Op("add"), input=ACTIVATION, edges=~From(Op("mul"))),
        Rule(Op(("mul", *POOLS, "resize", "batch_norm", "prelu")), input=ACTIVATION),
    ),
    runtime=Runtime("onnx", "opset >=13", runner=OnnxRuntimeRunner(optimise=False)),
    lowering=ExplicitQdqLowering(),
    source=(
        "ONNX operator specification, QuantizeLinear-13 and DequantizeLinear-13: saturation to [-128, 127]",
        "MQBench, prepare_by_platform.py, backend QDQ: schemes and placement",
    ),
    weight=Algorithm(MinMax(), Fixed()),
    activation=Algorithm(Ema(), Fixed()),
)
