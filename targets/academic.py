"""The setting of research papers: low-bit inputs and weights of convolutions and linear layers, simulation only.

Weights symmetric per output channel with scale absmax / ((2^b - 1) / 2), activations affine per tensor; the
first and the last layer have 8 bits; nothing is fused, biases stay float.
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
