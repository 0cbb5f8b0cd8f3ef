"""NVIDIA TensorRT, transformers: int8 in the linear layers and matmuls, weights only elsewhere.

The formats of `tensorrt`.  Quantized are the inputs of linear layers, matmuls and additions, but no addition
that an embedding feeds (token + position) and no product or quotient that is added to (the scaled scores
and the mask of attention); convolutions, as of patches, have int8 weights and float inputs.
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
