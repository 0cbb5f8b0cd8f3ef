"""The settings of research papers, simulation only: low-bit inputs and weights of layers, and those of transformers.

`academic`: weights symmetric per output channel with scale absmax / ((2^b - 1) / 2), activations affine per tensor; the
first and the last layer have 8 bits; nothing is fused, biases stay float.

`academic_nlp`, of papers on transformers: linear layers, matmuls and embeddings.  Weights symmetric with the same scale, per
output channel in linear layers and convolutions, per dimension in embeddings; inputs of linear layers and matmuls affine per
tensor; there are no exceptions for the first or last layer, biases stay float.
"""

from qfunc.estimators import Ema, MinMax
from qfunc.functions import Fixed
from qfunc.lowering import ExplicitQdqLowering
from qfunc.specs import Algorithm, First, Int, Last, Op, PerChannel, Rule, Scale, Scheme, Target, ZeroPoint

LAYERS = Op(("conv", "conv_transpose", "linear"))
CHANNELS = Scale(PerChannel(), divisor="half_range")


def academic(weight_bits: int, activation_bits: int) -> Target:
    """Return the target for these bit widths, with 8 bits in the first and last layer.

    >>> academic(4, 4).rules[1].weight.format
    Int(4)
    """
    return Target(
        name=f"academic_w{weight_bits}a{activation_bits}",
        rules=(
            Rule(
                LAYERS & (First() | Last()),
                input=Scheme(Int(8, signed=False), zero_point=ZeroPoint()),
                weight=Scheme(Int(8), CHANNELS),
            ),
            Rule(
                LAYERS,
                input=Scheme(Int(activation_bits, signed=False), zero_point=ZeroPoint()),
                weight=Scheme(Int(weight_bits), CHANNELS),
            ),
        ),
        lowering=ExplicitQdqLowering(),
        source=(
            "Esser et al., LSQ, 2020; Li et al., BRECQ, 2021: first and last layer at 8 bits",
            "MQBench, backend Academic: placement",
        ),
        weight=Algorithm(MinMax(), Fixed()),
        activation=Algorithm(Ema(), Fixed()),
    )


def academic_nlp(weight_bits: int, activation_bits: int) -> Target:
    """Return the target for these bit widths.

    >>> academic_nlp(4, 8).rules[2].weight.scale.shared
    PerChannel(1)
    """
    return Target(
        name=f"academic_nlp_w{weight_bits}a{activation_bits}",
        rules=(
            Rule(
                Op(("linear", "matmul")),
                input=Scheme(Int(activation_bits, signed=False), zero_point=ZeroPoint()),
                weight=Scheme(Int(weight_bits), Scale(PerChannel(), divisor="half_range")),
            ),
            Rule(
                Op(("conv", "conv_transpose")),
                weight=Scheme(Int(weight_bits), Scale(PerChannel(), divisor="half_range")),
            ),
            Rule(Op("embedding"), weight=Scheme(Int(weight_bits), Scale(PerChannel(1), divisor="half_range"))),
        ),
        lowering=ExplicitQdqLowering(),
        source=("MQBench, backend Academic_NLP: placement, and embeddings with one scale a dimension",),
        weight=Algorithm(MinMax(), Fixed()),
        activation=Algorithm(Ema(), Fixed()),
    )
