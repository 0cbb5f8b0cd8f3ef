"""OpenPPL for DSPs, W8A16: weights uint8, activations uint16, both affine per tensor; bias in float.

Every op's inputs and outputs are quantized; outputs are quantized after the activation that is fused with the op.
"""

from qfunc.estimators import Ema, MinMax
from qfunc.functions import Fixed
from qfunc.specs import (
    Algorithm, Everything, Fusion, FusionStep, Int, Kernel, Op, PerChannel, PerTensor, Require, Rule, Runtime, Scheme, Target,
    Tie, Trait, Unknown, ZeroPoint,
)  # fmt: skip
from qfunc.targets.ppl_w8a16.lowering import PplDspLowering

ACTIVATION = Scheme(Int(16, signed=False), zero_point=ZeroPoint())
WEIGHT = Scheme(Int(8, signed=False), zero_point=ZeroPoint())
WEIGHTED = ("conv", "conv_transpose", "linear", "matmul")
POOLS = ("max_pool", "avg_pool", "adaptive_avg_pool", "global_avg_pool")
OTHERS = ("add", "mul", *POOLS, "resize", "batch_norm", "prelu")
TENSORS = "MQBench, prepare_by_platform.py, backend PPLW8A16, and PPQ, PPL_DSP_INT8: activations have one scale per tensor"
LISTS = "MQBench, deploy_linear.py: one number per tensor, or for weights one per output channel"
WIDTHS = "MQBench, prepare_by_platform.py, backend PPLW8A16: weights have 8 bits, activations 16"

ppl_w8a16 = Target(
    name="ppl_w8a16",
    rules=(
        Rule(Op(WEIGHTED), input=ACTIVATION, weight=WEIGHT, output=ACTIVATION),
        Rule(Op(OTHERS), input=ACTIVATION, output=ACTIVATION),
    ),
    fusions=(Fusion(Op((*WEIGHTED, *OTHERS)), (FusionStep(Op(Trait.CLAMPS)),)),),
    ties=(Tie(Op("max_pool"), ("input", "output"), "input"),),
    kernels=(Kernel(Everything(), Unknown("the DSP's arithmetic is not published", nearest="onnxruntime")),),
    commuting=Op(("reshape", "flatten", "transpose", "squeeze", "unsqueeze", "slice", "split", "chunk", "expand")),
    legality=(
        Require(Everything(), "weight", formats=(WEIGHT.format, Int(8)), narrower=False, because=WIDTHS),
        Require(Everything(), ("input", "output"), formats=(ACTIVATION.format, Int(16)), because=WIDTHS),
        Require(Everything(), ("input", "output"), shared=PerTensor(), because=TENSORS),
        Require(Everything(), "weight", shared=(PerTensor(), PerChannel()), because=LISTS),
    ),
    runtime=Runtime("ppl", cpu="DSP"),
    lowering=PplDspLowering(),
    source=("MQBench, prepare_by_platform.py and deploy_linear.py, backend PPLW8A16: schemes, placement, JSON",),
    weight=Algorithm(MinMax(), Fixed()),
    activation=Algorithm(Ema(), Fixed()),
)
