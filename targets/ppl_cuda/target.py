"""OpenPPL on NVIDIA GPUs, int8: activations symmetric per tensor, weights symmetric per output channel.

Codes [-128, 127] with scale absmax / 127.5, bias int32 with scale s_x*s_w, all as in PPL's own quantizer.  The
artifact has one number per tensor, its absmax, and cannot represent zero points.  Every op's inputs and outputs
are quantized; outputs are quantized after the activation that is fused with the op.

`ppl_cuda_affine`: OpenPPL on NVIDIA GPUs as MQBench trains for it: weights and activations uint8 affine, biases in float.
No tool of PPL's reads these schemes, because its text has one number per tensor.  The file is Q/DQ, to compare with
MQBench's numbers.
"""

from attrs import evolve

from qfunc.estimators import MinMax
from qfunc.functions import Fixed
from qfunc.lowering import ExplicitQdqLowering
from qfunc.specs import (
    Algorithm, DerivedQParams, Everything, Fusion, FusionStep, Int, Kernel, Op, PerChannel, PerTensor, Require, Rule, Runtime,
    Scale, Scheme, Target, Tie, Trait, Unknown, ZeroPoint,
)  # fmt: skip
from qfunc.targets.ppl_cuda.lowering import PplCudaLowering

ACTIVATION = Scheme(Int(8), Scale(divisor="half_range"))
WEIGHT = Scheme(Int(8), Scale(PerChannel(), divisor="half_range"))
WEIGHTED = ("conv", "conv_transpose", "linear", "matmul")
POOLS = ("max_pool", "avg_pool", "adaptive_avg_pool", "global_avg_pool")
OTHERS = ("add", "mul", *POOLS, "resize", "batch_norm", "prelu")
NUMBER = "MQBench, deploy_linear.py: the artifact has one number per tensor, max(|low|, |high|)"
CHANNELS = "PPQ, quantizer/PPLQuantizer.py, PPL_CUDA_INT8: weights have one scale per output channel"
CODES = "PPQ, quantizer/PPLQuantizer.py, PPL_CUDA_INT8: codes [-128, 127], which the runtime computes from that number"


ppl_cuda = Target(
    name="ppl_cuda",
    rules=(
        Rule(Op(WEIGHTED), input=ACTIVATION, weight=WEIGHT, bias=DerivedQParams(), output=ACTIVATION),
        Rule(Op(OTHERS), input=ACTIVATION, output=ACTIVATION),
    ),
    fusions=(
        Fusion(Op(WEIGHTED), (FusionStep(Op(("relu", "clip", "sigmoid", "leaky_relu"))),)),
        Fusion(Op(OTHERS), (FusionStep(Op(Trait.CLAMPS)),)),
    ),
    ties=(Tie(Op("max_pool"), ("input", "output"), "input"),),
    kernels=(Kernel(Everything(), Unknown("the engine's requantization is not published", nearest="onnxruntime")),),
    commuting=Op(("reshape", "flatten", "transpose", "squeeze", "unsqueeze", "slice", "split", "chunk", "expand")),
    legality=(
        Require(Everything(), ("input", "weight", "output"), zero_point=False, because=NUMBER),
        Require(Everything(), ("input", "output"), shared=PerTensor(), because=NUMBER),
        Require(Everything(), "weight", shared=(PerTensor(), PerChannel()), because=CHANNELS),
        Require(Everything(), ("input", "weight", "output"), formats=Int(8), narrower=False, because=CODES),
    ),
    runtime=Runtime("ppl.nn", cpu="NVIDIA GPU"),
    lowering=PplCudaLowering(),
    source=(
        "PPQ, quantizer/PPLQuantizer.py, PPL_CUDA_INT8: formats, scales, bias and fused activations",
        "MQBench, deploy_linear.py, backend PPLCUDA: placement and artifact",
    ),
    weight=Algorithm(MinMax(), Fixed()),
    activation=Algorithm(MinMax(), Fixed()),
)

BYTE = Scheme(Int(8, signed=False), zero_point=ZeroPoint())
BYTES = Scheme(Int(8, signed=False), Scale(PerChannel()), ZeroPoint())

ppl_cuda_affine = evolve(
    ppl_cuda,
    name="ppl_cuda_affine",
    rules=(Rule(Op(WEIGHTED), input=BYTE, weight=BYTES, output=BYTE), Rule(Op(OTHERS), input=BYTE, output=BYTE)),
    kernels=(),
    legality=(),
    runtime=Runtime("none"),
    lowering=ExplicitQdqLowering(),
    source=("MQBench, prepare_by_platform.py and deploy_linear.py, backend PPLCUDA: schemes and placement",),
)
