"""TOSA 1.0, profile PRO-INT in int8, as computed by its reference model: the IR that Arm's compilers read.

Activations int8 affine per tensor, weights int8 symmetric [-127, 127] per output channel, bias int32 with scale s_x*s_w.
Every sum is exact in int32, and RESCALE converts it to codes: a 31-bit multiplier and one rounding, half up.  Functions of
one tensor are tables of 256 codes.  The profile has no float values: ops without an integer form are refused.
"""

from qfunc.estimators import MinMax
from qfunc.functions import Fixed as FixedFunction
from qfunc.specs import (
    FLOAT32, Algorithm, Attr, AverageCodes, Bilinear, Bounds, Copy, DerivedQParams, Everything, FixedPoint, FixedQParams,
    FloatKernel, Fusion, FusionStep, GluTable, Kernel, NormFixed, Op, PerChannel, PerTensor, Refuse, Require, Rule, Runtime,
    Scheme, SoftmaxFixed, SumShifted, Target, Tie, Trait, ZeroPoint,
)  # fmt: skip
from qfunc.targets.litert.target import (
    BILINEAR, BOUNDS, BY_CELLS, BY_MATRIX, BYTES, CLIPS, DILATED, MASKS, MEANS, MOVES, NARROW, POOLS, PRODUCTS, S8, SAME, SUMS,
    TRANSPOSED, WEIGHT, WEIGHTED,
)  # fmt: skip
from qfunc.targets.tosa.lowering import TosaLowering
from qfunc.targets.tosa.runner import TosaRunner

ACTIVATION = Scheme(S8, zero_point=ZeroPoint())
CURVES = Op(("sigmoid", "tanh", "hardswish", "leaky_relu", "gelu", "elu", "hardsigmoid", "silu", "softplus", "mish"))
NUMBERS = Op(Trait.ARITHMETIC) & Attr("number", True) | Op("scale")
STEPS = Op(("guard", "neg", "abs", "floor", "ceil", "round", "sign", "threshold"))
FUNCTIONS = Op(("exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "sqrt", "rsqrt", "reciprocal", "square", "erf", "erfc",
                "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "trunc", "frac",
                "celu", "selu", "softsign", "softshrink", "hardshrink", "tanhshrink", "log_sigmoid"))  # fmt: skip
POWERS = Op("pow") & Attr("number", True)
SHUFFLES = ("repeat", "tile", "repeat_interleave", "repeat_heads", "take", "flip", "roll", "pixel_shuffle", "pixel_unshuffle",
            "channel_shuffle", "detach")  # fmt: skip
ALL_MOVES = (*MOVES, *SHUFFLES)
EXTREMES = Op(("amax", "amin"))
NORMS = Op(("layer_norm", "group_norm", "instance_norm", "rms_norm"))
SOFTMAX = Op(("softmax", "masked_softmax"))
FILLS = Op("pad") & Attr("mode", "constant") & ~Attr("value", 0) & ~Attr("value", None)
JOINS = Op(("concat", "stack", "maximum", "minimum"))
CREATED = Op(("arange", "full")) | Op("cast") & Attr("created", True)
OF_ONE = NUMBERS | STEPS | FUNCTIONS | POWERS
ONCE = FixedPoint("half_up")
KNOWN = (
    CREATED | PRODUCTS | SUMS | MEANS | POOLS | CLIPS | CURVES | OF_ONE | EXTREMES | JOINS | NORMS
    | Op(("mul", "prelu", "glu", "softmax", "masked_softmax", "embedding", "pad", "dropout", *ALL_MOVES))
)  # fmt: skip
WITH_NUMBERS = (("input", (S8, FLOAT32)), ("output", (S8,)))
OF_INDICES = (("input", (FLOAT32,)), ("weight", (FLOAT32,)), ("output", (S8,)))
WITH_WEIGHTS = (("input", (S8,)), ("weight", (FLOAT32,)), ("output", (S8,)))
PRO_INT = "TOSA 1.0, profile PRO-INT, has no such operator on integers, or not with these attributes"
MASK = "Mask scores by a constant, just before a softmax along the last axis, and keep an entry of each row."
OUTSIDE = "Compute it outside the deployed model, or deploy Q/DQ ONNX by edit.deploy(QdqLowering())."
BECAUSE = "TOSA 1.0, CONV2D and RESCALE: int8 with one zero point per tensor, int8 weights without zero points, int32 biases"

tosa = Target(
    name="tosa",
    rules=(
        Rule(PRODUCTS, input=ACTIVATION, weight=WEIGHT, bias=DerivedQParams(), output=ACTIVATION),
        Rule(
            SUMS | MEANS | POOLS | CLIPS | BILINEAR | CURVES | OF_ONE | EXTREMES | JOINS | FILLS | NORMS | Op(("mul", "glu")),
            input=ACTIVATION,
            output=ACTIVATION,
        ),
        Rule(Op("prelu"), input=ACTIVATION, weight=Scheme(NARROW), output=ACTIVATION),
        Rule(Op("embedding"), output=ACTIVATION),
        Rule(SOFTMAX, input=ACTIVATION, output=FixedQParams(ACTIVATION, 1 / 256, -128)),
    ),
    fusions=(Fusion(WEIGHTED | TRANSPOSED | SUMS | Op("mul") | POOLS, (FusionStep(BOUNDS),)),),
    ties=(
        Tie(JOINS | FILLS, ("input", "output"), "union"),
        Tie(POOLS | CLIPS | BILINEAR | EXTREMES, ("input", "output"), "input"),
    ),
    kernels=(
        Kernel(NUMBERS, FloatKernel(), formats=WITH_NUMBERS, bounds=Bounds()),
        Kernel(STEPS, FloatKernel(), formats=BYTES, bounds=Bounds()),
        Kernel(FUNCTIONS | POWERS, FloatKernel("float64"), formats=BYTES),
        Kernel(WEIGHTED | TRANSPOSED | BY_MATRIX | MEANS | Op(("matmul", "mul")), ONCE, formats=BYTES, bounds=Bounds()),
        Kernel(Op("prelu"), FixedPoint("half_up", float_ratio=True), formats=BYTES, bounds=Bounds()),
        Kernel(SUMS, SumShifted(steps="half_up"), formats=BYTES, bounds=Bounds()),
        Kernel(POOLS, AverageCodes("half_away", centred=True), integer_if=SAME, formats=BYTES, bounds=Bounds()),
        Kernel(BILINEAR, Bilinear("rational", 11), integer_if=SAME, formats=BYTES),
        Kernel(SOFTMAX, SoftmaxFixed(), formats=BYTES),
        Kernel(Op("embedding"), FloatKernel(), formats=OF_INDICES),
        Kernel(NORMS, NormFixed(), formats=WITH_WEIGHTS),
        Kernel(Op("glu"), GluTable(), formats=BYTES),
        Kernel(Op("leaky_relu"), FloatKernel(), formats=BYTES),
        Kernel(CURVES, FloatKernel("float64"), formats=BYTES),
        Kernel(CLIPS | JOINS | Op("pad"), FloatKernel(), integer_if=SAME, formats=BYTES),
        Kernel(EXTREMES | Op(ALL_MOVES) & ~BILINEAR, Copy(), integer_if=SAME, formats=BYTES),
    ),
    commuting=Op((*ALL_MOVES, "pad")),  # a pad writes the zero point
    legality=(
        Require(Everything(), ("input", "output"), formats=S8, shared=PerTensor(), because=BECAUSE),
        Require(Everything(), "weight", formats=NARROW, zero_point=False, shared=(PerTensor(), PerChannel()), because=BECAUSE),
        Refuse(Attr("spatial", 3), because=PRO_INT, do="Slide along one or two axes."),
        Refuse(TRANSPOSED & DILATED, because=PRO_INT, do="Resize the image and convolve it."),
        Refuse(Op("max_pool") & DILATED, because=PRO_INT, do="Use dilation=1."),
        Refuse(Op("softplus") & (~Attr("beta", 1) | ~Attr("threshold", 20)), because=PRO_INT, do="Use nn.Softplus()."),
        Refuse(
            Op("log_softmax"),
            because=PRO_INT,
            do="Remove it from the end of the model: the largest logit is the same.",
        ),
        Refuse(MASKS, because=PRO_INT, do=MASK),
        Refuse(Op(Trait.RECURRENT), because=PRO_INT, do=BY_CELLS),
        Refuse(~KNOWN & ~Op(Trait.RECURRENT), because=PRO_INT, do=OUTSIDE),
    ),
    runtime=Runtime("tosa", ">=2026.8", "", "reference model", TosaRunner()),
    lowering=TosaLowering(),
    source=(
        "TOSA specification 1.0.1: RESCALE, CONV2D, AVG_POOL2D, RESIZE, TABLE",
        "tosa-tools 2026.8, tosa_reference_model, measured",
    ),
    weight=Algorithm(MinMax(), FixedFunction()),
    activation=Algorithm(MinMax(), FixedFunction()),
)
