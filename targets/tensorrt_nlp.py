"""NVIDIA TensorRT for transformers: int8 linear layers and matmuls, only weights elsewhere.

The formats are those of `tensorrt`.  The inputs of linear layers, matmuls and additions are quantized, except
additions with an embedding as input (token + position) and additions of a product or quotient (the scaled
scores and the mask of attention).  Convolutions, such as those of patches, have int8 weights and float inputs.
"""

from attrs import evolve

from qfunc.lowering import ExplicitQdqLowering
from qfunc.specs import AnyInput, From, Op, Rule
from qfunc.targets.tensorrt import ACTIVATION, WEIGHT, tensorrt

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
