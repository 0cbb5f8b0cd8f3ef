"""The setting of papers on transformers: low-bit linear layers, matmuls and embeddings, simulation only.

Weights symmetric, per output channel in linear layers and convolutions, per dimension in embeddings, with
scale absmax / ((2^b - 1) / 2); inputs of linear layers and matmuls affine per tensor; there are no
exceptions for the first or last layer, biases stay float.
"""

from qfunc.estimators import Ema, MinMax
from qfunc.functions import Fixed
from qfunc.lowering import ExplicitQdqLowering
from qfunc.specs import Algorithm, Int, Op, PerChannel, Rule, Scale, Scheme, Target, ZeroPoint


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
