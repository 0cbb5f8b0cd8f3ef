"""NVIDIA TensorRT 10 and 11, explicit quantization (Q/DQ ONNX), int8.

Weights int8 symmetric per output channel, +-127; activations int8 symmetric per tensor, codes [-128, 127],
scale amax/127, no zero points; bias in float.  Placement as documented: quantize all inputs of weighted
ops but not their outputs; quantize the residual input of an add, but not its convolution branch, which is
fused; nothing between a conv and its BatchNorm or ReLU; equal scales on the inputs of a concat, so that Q
can move through it; a separate Q for average pooling.  MaxPool and data movement commute with Q.

`tensorrt_nlp`: NVIDIA TensorRT for transformers: int8 linear layers and matmuls, only weights elsewhere.
The inputs of linear layers, matmuls and additions are quantized, except additions with an embedding as input (token +
position) and additions of a product or quotient (the scaled scores and the mask of attention).  Convolutions, such as
those of patches, have int8 weights and float inputs.
"""

from attrs import evolve

from qfunc.estimators import Ema, MinMax
from qfunc.functions import Fixed
from qfunc.lowering import Combined, ExplicitQdqLowering
from qfunc.specs import (
    Algorithm, AnyInput, Everything, From, Fusion, FusionStep, Int, Kernel, Op, PerBlock, PerChannel, PerTensor, Require, Rule,
    Runtime, Scale, Scheme, Target, Tie, Trait, Unknown,
)  # fmt: skip
from qfunc.specs.formats import E2M1, E4M3FN
from qfunc.targets.tensorrt.lowering import TensorRtRanges

ACTIVATION = Scheme(Int(8))
WEIGHT = Scheme(Int(8, low=-127), Scale(PerChannel()))
TYPES = "TensorRT 11, Working with Quantized Types: INT8, FP8E4M3, FP4E2M1 and, for weights only, INT4, all signed"
SYMMETRIC = "TensorRT 11, Working with Quantized Types: 'TensorRT uses a symmetric quantization scheme'"
SCALES = "TensorRT 11, quantization schemes: activations have one scale, or one per block of 32 (MXFP8) or 16 (NVFP4)"
BLOCKS = (PerBlock(-1, 32), PerBlock(-1, 16), *(PerBlock(axis, size) for size in (64, 128) for axis in (-1, -2)))
WEIGHTS = "TensorRT 11, quantization schemes: 'The supported block sizes are {64, 128}' (INT4), 32 (MXFP8) or 16 (NVFP4)"
WEIGHTED = Op(("conv", "conv_transpose", "linear", "matmul"))
MOVES = ("adaptive_max_pool", "reshape", "flatten", "transpose", "squeeze", "unsqueeze", "slice", "split", "chunk", "expand")

tensorrt = Target(
    name="tensorrt",
    rules=(
        Rule(WEIGHTED, input=ACTIVATION, weight=WEIGHT),
        Rule(Op(("add", "avg_pool", "global_avg_pool", "concat")), input=ACTIVATION),
    ),
    fusions=(
        Fusion(WEIGHTED, (FusionStep(Op("batch_norm")), FusionStep(Op("add")), FusionStep(Op(Trait.CLAMPS)))),
        Fusion(Op("add"), (FusionStep(Op(Trait.CLAMPS)),)),
    ),
    ties=(Tie(Op("concat"), "input", "union"),),
    kernels=(Kernel(WEIGHTED, Unknown("the engine's rounding and order of fusion are not published", nearest="onnxruntime")),),
    commuting=Op(("max_pool", *MOVES)),
    legality=(
        Require(Everything(), ("input", "weight", "output"), zero_point=False, because=SYMMETRIC),
        Require(Everything(), "weight", formats=(Int(8), E4M3FN, E2M1), because=TYPES),
        Require(Everything(), ("input", "output"), formats=(Int(8), Int(8, low=-127), E4M3FN, E2M1), because=TYPES),
        Require(Everything(), ("input", "output"), shared=(PerTensor(), *BLOCKS[:2]), because=SCALES),
        Require(Everything(), "weight", shared=(PerTensor(), PerChannel(), *BLOCKS), because=WEIGHTS),
    ),
    runtime=Runtime("tensorrt", ">=10", "NVIDIA GPU"),
    lowering=Combined((ExplicitQdqLowering(), TensorRtRanges())),
    source=(
        "NVIDIA TensorRT documentation, Working with Quantized Types: quantization schemes, explicit quantization",
        "NVIDIA TensorRT Developer Guide, Q/DQ placement recommendations",
    ),
    weight=Algorithm(MinMax(), Fixed()),
    activation=Algorithm(Ema(), Fixed()),
)

tensorrt_nlp = evolve(
    tensorrt,
    name="tensorrt_nlp",
    rules=(
        Rule(Op(("linear", "matmul")), input=ACTIVATION, weight=WEIGHT),
        Rule(Op(("conv", "conv_transpose")), weight=WEIGHT),
        Rule(Op("add") & ~AnyInput(Op("embedding")), input=ACTIVATION, edges=~From(Op(("mul", "div")))),
    ),
    fusions=(),
    ties=(),
    lowering=ExplicitQdqLowering(),
    source=(
        *tensorrt.source,
        "MQBench, custom_quantizer, TensorrtNLPQuantizer: inputs of Linear, matmul and add, and which adds it leaves",
    ),
)
