"""The vocabulary can say every kernel that was measured: hardware notes section 6, runtime notes part B."""

import pytest

from qfunc.estimators import MinMax
from qfunc.functions import Fixed as FixedFunction
from qfunc.numerics.libraries import WindowSum
from qfunc.specs import (
    FLOAT32,
    Algorithm,
    AveragePool,
    ClampImplied,
    Copy,
    DerivedQParams,
    FixedPoint,
    FloatKernel,
    FloatMultiplier,
    FloatRequantize,
    Fusion,
    FusionStep,
    Int,
    Kernel,
    Limit,
    Op,
    PerBlock,
    PerChannel,
    Rule,
    Runtime,
    SameQParams,
    Scale,
    Scheme,
    Shift,
    SoftmaxTable,
    SumFma,
    SumScaled,
    SumShifted,
    Target,
    Tie,
    Unknown,
    ZeroPoint,
    diff,
    from_json,
    to_json,
)  # fmt: skip

U8, S8, SYMMETRIC = Int(8, signed=False), Int(8), Int(8, low=-127)
CHANNELS = Scale(PerChannel())
CONV, FC, ADD, MUL, POOL = (Op(k) for k in ("conv", "linear", "add", "mul", "avg_pool"))
REQUANTIZE = Op("quantize")  # int8 -> int8
DOUBLE_AWAY, DOUBLE_UP = ("srdhm", "half_away"), ("srdhm", "half_up")
LIMITS = (
    Limit(CONV, (("weight", 1), ("input", 1), ("output", -1)), 0, 16, "weight"),  # shift_cut
    Limit(CONV, (("weight", 1), ("input", 1), ("bias", -1)), -24, 15, "bias"),  # shift_bias
    Limit(CONV, (("output", 1), ("bias", -1)), -16, 1 << 20, "bias"),  # shift_bias >= shift_cut - 16
    Limit(ADD, (("input.max", 1), ("input.min", -1)), 0, 7, "input"),
    Limit(MUL, (("input.sum", 1), ("output", -1)), 0, 32, "output"),
)


def made(name, activation, weight, arithmetics, *, bias=None, kernels=(), **more):
    """A target whose products have these schemes and whose units have these arithmetics."""
    bound = tuple(Kernel(unit, arithmetic) for unit, arithmetic in arithmetics)
    algorithm = Algorithm(MinMax(), FixedFunction())
    rule = Rule(CONV | FC, input=activation, weight=weight, bias=bias, output=activation)
    return Target(
        name=name,
        rules=rule,
        kernels=bound + tuple(kernels),
        runtime=Runtime(name),
        source="measured",
        weight=algorithm,
        activation=algorithm,
        **more,
    )


def affine(fmt=S8, rounding="half_even", **more):
    return Scheme(fmt, zero_point=ZeroPoint(), rounding=rounding, **more)


WEIGHT = Scheme(SYMMETRIC, CHANNELS)
TARGETS = [
    made(
        "ort",
        affine(U8),
        WEIGHT,
        bias=DerivedQParams(),
        arithmetics=(
            (CONV | FC, FloatMultiplier()),
            (ADD, SumFma()),
            (MUL, FloatMultiplier(zero_point="before")),
            (POOL, FloatKernel(zero_point="before", function=WindowSum())),
            (Op("softmax"), SoftmaxTable()),
        ),
        fusions=Fusion(CONV, FusionStep(Op("relu")), integer_if=ClampImplied()),
    ),
    made(
        "ort int4 blocks",
        affine(U8),
        Scheme(Int(4), Scale(PerBlock(-1, 32), divisor="-qmin", signed=True), rounding="half_up"),
        arithmetics=((FC, FloatKernel()),),
    ),
    made(
        "litert reference",
        affine(rounding="half_away"),
        WEIGHT,
        bias=DerivedQParams(),
        arithmetics=(
            (REQUANTIZE, FixedPoint("half_up")),
            (CONV, FixedPoint(DOUBLE_AWAY)),
            (ADD, SumShifted(20, DOUBLE_AWAY)),
            (MUL, FixedPoint("half_up")),
            (POOL, AveragePool("half_away")),
            (FC, FixedPoint("half_away")),
        ),
    ),
    made(
        "litert optimised",
        affine(),
        WEIGHT,
        bias=DerivedQParams(),
        arithmetics=(
            (REQUANTIZE, FixedPoint("half_up")),
            (CONV, FixedPoint(DOUBLE_UP)),
            (ADD, SumShifted(20, DOUBLE_AWAY)),
            (MUL, FixedPoint(DOUBLE_UP)),
            (POOL, AveragePool("half_away")),
            (FC, FixedPoint(DOUBLE_UP)),
        ),
    ),
    made(
        "litert xnnpack",
        affine(),
        WEIGHT,
        bias=DerivedQParams(),
        arithmetics=(
            (REQUANTIZE, FixedPoint("half_up", bits=8)),
            (CONV | FC | MUL, FloatMultiplier()),
            (ADD, SumScaled("half_up")),
            (POOL, AveragePool("half_away")),
        ),
    ),
    made(
        "openvino",
        Scheme(U8, zero_point=ZeroPoint(), rounding="half_even_on_index"),
        WEIGHT,
        arithmetics=((CONV | FC, FloatRequantize()), (ADD | MUL | POOL, FloatKernel())),
    ),
    made(
        "ncnn",
        Scheme(SYMMETRIC, rounding="half_away", division=False),
        WEIGHT,
        arithmetics=(
            (CONV, FloatRequantize("half_away", fma=True, division=False)),
            (FC, FloatRequantize("half_away", division=False)),
        ),
        kernels=(Kernel(CONV, FloatRequantize("half_away", fma=True, division=False), formats=(("output", (FLOAT32,)),)),),
    ),
    made(
        "tflm",
        affine(rounding="half_away"),
        WEIGHT,
        bias=DerivedQParams(),
        arithmetics=((CONV | FC, FixedPoint(DOUBLE_AWAY)), (ADD, SumShifted(20, DOUBLE_AWAY))),
    ),
    made(
        "executorch xnnpack",
        affine(division=False),
        WEIGHT,
        arithmetics=(
            (CONV | FC | MUL | Op("mean"), FloatMultiplier()),
            (ADD, SumScaled()),
            (POOL | Op("sigmoid"), FloatKernel()),
        ),
    ),
    made(
        "mnn", affine(rounding="half_away"), WEIGHT, arithmetics=((CONV | FC, FloatMultiplier("half_away", float_bias=True)),)
    ),
    made(
        "tosa",
        affine(),
        WEIGHT,
        bias=DerivedQParams(),
        arithmetics=((CONV | FC, FixedPoint("half_up")), (ADD, SumShifted(20, ("half_up",))), (POOL, AveragePool("half_up"))),
    ),
    made("rknn", affine(), WEIGHT, arithmetics=((CONV | FC, Unknown("the simulator refits weights", nearest="onnxruntime")),)),
    made(
        "xint8",
        Scheme(U8, Scale(power_of_two=True), ZeroPoint(value=128)),
        Scheme(S8, Scale(power_of_two=True)),
        bias=Scheme(S8, Scale(power_of_two=True)),
        limits=LIMITS,
        ties=Tie(Op("concat"), ("input", "output"), "max_scale"),
        arithmetics=((CONV | FC, Shift("half_up")), (POOL, AveragePool("half_up", (((3, 3), 7, 6), ((5, 5), 10, 8))))),
    ),
    made("moves", affine(), WEIGHT, arithmetics=(), kernels=(Kernel(Op("max_pool"), Copy(), integer_if=SameQParams()),)),
]


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_the_runtime_can_be_said(target):
    back = from_json(to_json(target))
    assert back == target
    assert diff(target, back) == ""


def test_all_differ_and_say_where():
    for a in TARGETS:
        for b in TARGETS:
            assert (diff(a, b) == "") == (a is b)


@pytest.mark.parametrize("name", ["litert reference", "litert optimised", "litert xnnpack", "tflm"])
def test_one_artifact_has_one_answer_for_each_kernel_set(name):
    chosen = next(t for t in TARGETS if t.name == name)
    same = [t.name for t in TARGETS if t.kernels == chosen.kernels]
    assert same == [name]


def test_diff_of_two_kernel_sets_reads_like_a_datasheet():
    reference, optimised = (next(t for t in TARGETS if t.name == n) for n in ("litert reference", "litert optimised"))
    assert diff(reference, optimised).splitlines() == [
        "name: 'litert reference' -> 'litert optimised'",
        "rules[conv, linear].input.rounding: 'half_away' -> 'half_even'",
        "rules[conv, linear].output.rounding: 'half_away' -> 'half_even'",
        "kernels[conv].arithmetic.steps: ('srdhm', 'half_away') -> ('srdhm', 'half_up')",
        "kernels[mul].arithmetic.steps: ('half_up',) -> ('srdhm', 'half_up')",
        "kernels[linear].arithmetic.steps: ('half_away',) -> ('srdhm', 'half_up')",
        "runtime.name: 'litert reference' -> 'litert optimised'",
    ]
