"""Qualcomm SNPE, 8 bits in the "TF" mode of its quantizer: activations and weights uint8 affine per tensor.

step = (max - min) / 255 of a range that includes 0 and is at least 0.01 wide; offset = round(-min / step);
bias int32 with scale s_x*s_w (`--bias_bitwidth 32`).  Every op's inputs and outputs are quantized; outputs are
quantized after the activation that is fused with the op.  MaxPool and data movement keep their input's encoding.
"""

from qfunc.estimators import Ema, MinMax
from qfunc.functions import Fixed
from qfunc.specs import (
    Algorithm, DerivedQParams, Everything, Fusion, FusionStep, Int, Kernel, Op, PerTensor, Require, Rule, Runtime, Scale,
    Scheme, Target, Tie, Trait, Unknown, ZeroPoint,
)  # fmt: skip
from qfunc.targets.snpe.lowering import SnpeEncodings

TF = Scheme(Int(8, signed=False), Scale(minimum_range=0.01), ZeroPoint())
WEIGHTED = ("conv", "conv_transpose", "linear", "matmul")
POOLS = ("max_pool", "avg_pool", "adaptive_avg_pool", "global_avg_pool")
OTHERS = ("add", "mul", *POOLS, "resize", "batch_norm", "prelu")
WIDTHS = (Int(8, signed=False), Int(16, signed=False), Int(8), Int(16))
LAYERS = "MQBench user guide, hardware/snpe: '8/16 bit per-layer asymmetric linear quantization'"
BITS = "QAIRT documentation, quantization: activations have 8 or 16 bits, weights 4, 8 or 16"

snpe = Target(
    name="snpe",
    rules=(
        Rule(Op(WEIGHTED), input=TF, weight=TF, bias=DerivedQParams(), output=TF),
        Rule(Op(OTHERS), input=TF, output=TF),
    ),
    fusions=(Fusion(Op((*WEIGHTED, *OTHERS)), (FusionStep(Op(Trait.CLAMPS)),)),),
    ties=(Tie(Op("max_pool"), ("input", "output"), "input"),),
    kernels=(Kernel(Everything(), Unknown("rounding and requantization are not published", nearest="onnxruntime")),),
    commuting=Op(("reshape", "flatten", "transpose", "squeeze", "unsqueeze", "slice", "split", "chunk", "expand")),
    legality=(
        Require(Everything(), ("input", "weight", "output"), shared=PerTensor(), because=LAYERS),
        Require(Everything(), ("input", "weight", "output"), formats=WIDTHS, because=BITS),
    ),
    runtime=Runtime("snpe", cpu="Hexagon DSP"),
    lowering=SnpeEncodings(),
    source=(
        "SNPE reference guide, Quantization Algorithm: range, step and offset of the TF mode",
        "MQBench, user guide deploy/snpe: --quantization_overrides, --bias_bitwidth 32; placement of its SNPE backend",
    ),
    weight=Algorithm(MinMax(), Fixed()),
    activation=Algorithm(Ema(), Fixed()),
)
