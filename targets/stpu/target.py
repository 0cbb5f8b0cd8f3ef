"""STPU, as MQBench deploys to it: int8 symmetric per tensor, +-127, for weights and activations.

Bias int32 with scale s_x*s_w; a product with a constant after a convolution is folded into it; the inputs
of a concat have its output's range; the output range of sigmoid is [-1, 1].  Every op's inputs and outputs
are quantized; outputs are quantized after the activation that is fused with the op.
"""

from qfunc.estimators import Ema, MinMax
from qfunc.functions import Fixed as FixedFunction
from qfunc.specs import (
    Algorithm, AnyInput, Constant, DerivedQParams, Everything, FixedQParams, Fusion, FusionStep, Int, Kernel, Op, PerTensor,
    Require, Rule, Runtime, Scheme, Target, Tie, Trait, Unknown,
)  # fmt: skip
from qfunc.targets.stpu.lowering import StpuLowering

BYTE = Scheme(Int(8, low=-127))
WEIGHTED = ("conv", "conv_transpose", "linear", "matmul")
POOLS = ("max_pool", "avg_pool", "adaptive_avg_pool", "global_avg_pool")
OTHERS = ("add", "mul", *POOLS, "resize", "batch_norm", "prelu")
RANGES = "MQBench, deploy/deploy_stpu.py: one range per tensor, [-127 s, 127 s]"
ACTIVATION = FusionStep(Op(Trait.CLAMPS))

stpu = Target(
    name="stpu",
    rules=(
        Rule(Op(WEIGHTED), input=BYTE, weight=BYTE, bias=DerivedQParams(), output=BYTE, edges=~Constant()),
        Rule(Op(OTHERS), input=BYTE, output=BYTE),
        Rule(Op("sigmoid"), input=BYTE, output=FixedQParams(BYTE, 1 / 127)),
        Rule(Op("concat"), output=BYTE),
    ),
    fusions=(
        Fusion(Op(("conv", "conv_transpose")), (FusionStep(Op("mul") & AnyInput(Constant())), ACTIVATION)),
        Fusion(Op((*WEIGHTED, *OTHERS)), (ACTIVATION,)),
    ),
    ties=(Tie(Op("concat"), ("input", "output"), "output"), Tie(Op("max_pool"), ("input", "output"), "input")),
    kernels=(Kernel(Everything(), Unknown("an internal accelerator without public documents", nearest="onnxruntime")),),
    commuting=Op(("reshape", "flatten", "transpose", "squeeze", "unsqueeze", "slice", "split", "chunk", "expand")),
    legality=(
        Require(
            Everything(),
            ("input", "weight", "output"),
            formats=BYTE.format,
            narrower=False,
            zero_point=False,
            shared=PerTensor(),
            because=RANGES,
        ),
    ),
    runtime=Runtime("stpu"),
    lowering=StpuLowering(),
    source=("MQBench, prepare_by_platform.py and deploy/deploy_stpu.py: schemes, placement, merges and ranges",),
    weight=Algorithm(MinMax(), FixedFunction()),
    activation=Algorithm(Ema(), FixedFunction()),
)
