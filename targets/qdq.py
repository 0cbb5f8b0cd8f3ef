"""Standard ONNX Q/DQ, opset 13 or later, for any runtime that reads it: int8, evaluated as its operators are defined.

Weights int8 symmetric per output channel, [-127, 127]; activations int8 symmetric per tensor, saturated where
QuantizeLinear does, at [-128, 127]; bias in float.  Quantized are the inputs of convolutions, linear layers
and matmuls, of additions and products, pools and resizes; an addition leaves a product that feeds it to the
multiply-add.  No op runs on codes: each computes in float between DequantizeLinear and QuantizeLinear.
"""

from qfunc.estimators import Ema, MinMax
from qfunc.functions import Fixed
from qfunc.lowering import ExplicitQdqLowering, OnnxRuntimeRunner
from qfunc.specs import Algorithm, From, Int, Op, PerChannel, Rule, Runtime, Scale, Scheme, Target

ACTIVATION = Scheme(Int(8))
WEIGHT = Scheme(Int(8, low=-127), Scale(PerChannel()))
POOLS = ("max_pool", "avg_pool", "adaptive_avg_pool", "global_avg_pool")

qdq = Target(
    name="qdq",
    rules=(
        Rule(Op(("conv", "conv_transpose", "linear", "matmul")), input=ACTIVATION, weight=WEIGHT),
        Rule(Op(("lstm", "gru", "rnn")), input=ACTIVATION, weight=WEIGHT),
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
