"""Whole messages: where, what was found, what was wanted, what to do."""

import numpy as np
import pytest

from qfunc.errors import SpecError
from qfunc.estimators import Ema, MinMax
from qfunc.functions import Fixed as FixedFunction
from qfunc.specs import (
    Algorithm,
    FixedPoint,
    FixedQParams,
    Float,
    Int,
    KeepFloat,
    Name,
    OpKind,
    Override,
    PerChannel,
    Rule,
    Scale,
    Scheme,
    Tie,
    ZeroPoint,
    edit,
    from_json,
)  # fmt: skip
from tests.specs.a_target import CONV, S8, U8, target

MESSAGES = [
    (lambda: Int(1), "Int.bits: found 1, wanted an int in [2, 64]. Give such a number."),
    (lambda: Int(8.0), "Int.bits: found 8.0, wanted an int in [2, 64]. Give such a number."),
    (lambda: Int(np.int64(8)), "Int.bits: found np.int64(8), wanted an int in [2, 64]. Convert it: int(...)."),
    (
        lambda: Int(4, high=8),
        "Int.low, high: found [-8, 8], wanted low < high inside [-8, 7]. Narrow the range or widen the 4 bits.",
    ),
    (
        lambda: FixedPoint(float_ratio=True, float_product=True),
        "FixedPoint.float_product: found True, wanted float_ratio or float_product. Drop one of them.",
    ),
    (lambda: Int(8, signed=1), "Int.signed: found 1, wanted bool. Give True or False."),
    (
        lambda: Float(4, 3, max=450.0),
        "Float.max: found 450.0, wanted a multiple of 32 up to 480. Give a value that 4 exponent and 3 mantissa bits can hold.",
    ),
    (
        lambda: Float(4, 3, max=512.0),
        "Float.max: found 512.0, wanted at most 480. Give a value that 4 exponent and 3 mantissa bits can hold.",
    ),
    (lambda: PerChannel(True), 'PerChannel.axis: found True, wanted an int or "channel". Name the axis.'),
    (lambda: Scale(power_of_two=True, low=0.3), "Scale.low: found 0.3, wanted a power of two, as the scales are. Give 2.0**k."),
    (lambda: Scale(equals="first"), "Scale.equals: found 'first', wanted signed=True with it. Give both, or neither."),
    (
        lambda: Scale(rounded="after"),
        "Scale.rounded: found 'after', wanted \"before\", unless a format below 32 bits is the only limit of the scale. "
        "Drop it.",
    ),
    (lambda: Scale(low=2.0, high=1.0), "Scale.low, high: found (2.0, 1.0), wanted low <= high. Swap them."),
    (
        lambda: Scheme(Float(4, 3), zero_point=ZeroPoint()),
        "Scheme.zero_point: found ZeroPoint(), wanted None, for only Int has one. Drop it.",
    ),
    (
        lambda: Scheme(U8, Scale(divisor="-qmin")),
        "Scheme.scale.divisor: found '-qmin', wanted a divisor above 0. Drop it: Int(8, signed=False) has no negative code.",
    ),
    (
        lambda: Scheme(U8, Scale(divisor="emax_rounded")),
        "Scheme.scale.divisor: found 'emax_rounded', wanted a divisor that does not depend on bits of a mantissa. "
        'Give "emax": Int(8, signed=False) has no mantissa.',
    ),
    (
        lambda: Scheme(S8, zero_point=ZeroPoint(value=128)),
        "Scheme.zero_point.value: found 128, wanted a code in [-128, 127]. Choose a code of the format.",
    ),
    (
        lambda: Scheme(rounding="half-even"),
        "Scheme.rounding: found 'half-even', wanted one of 'half_even', 'half_away', 'half_up', "
        "'half_down', 'half_to_zero', 'floor', 'trunc', 'stochastic', 'half_even_on_index', 'half_up_on_index', "
        "'negative_ceil_else_half_even'. Choose one of them.",
    ),
    (
        lambda: FixedQParams(Scheme(S8), 0.5, 3),
        "FixedQParams.zero_point: found 3, wanted 0, because the scheme is symmetric. Give the scheme a ZeroPoint().",
    ),
    (
        lambda: Rule(CONV),
        "Rule.input, weight, bias, output: found 'None everywhere', wanted one slot value. Give a value for a slot.",
    ),
    (
        lambda: Rule(CONV, input=Int(8)),
        "Rule.input: found Int(8), wanted Scheme or DerivedQParams or FixedQParams or Cases or KeepFloat or None. "
        "Give a value such as Scheme(...).",
    ),
    (
        lambda: Rule("conv", input=KeepFloat()),
        "Rule.select: found 'conv', wanted a selector. "
        "Use edit.name, edit.op, edit.module or edit.where, or combine them with &, | and ~.",
    ),
    (
        lambda: Tie(CONV, ("output",), "input"),
        "Tie.leader: found 'input', wanted one of the tied slots ('output',). Tie that slot too.",
    ),
    (
        lambda: FixedPoint(("half_up", "srdhm")),
        "FixedPoint.steps: found ('half_up', 'srdhm'), "
        'wanted a rounding, or "srdhm" or "sqdmulh" and a rounding. Give e.g. ("srdhm", "half_away").',
    ),
    (
        lambda: Algorithm(MinMax, FixedFunction()),
        "Algorithm.estimator: found <class 'qfunc.estimators.minmax.MinMax'>, "
        "wanted a frozen value with the methods init, update, finalize. Call it: MinMax().",
    ),
    (
        lambda: Algorithm(FixedFunction(), FixedFunction()),
        "Algorithm.estimator: found Fixed(), "
        "wanted a frozen value with the methods init, update, finalize. Add update, finalize.",
    ),
    (
        lambda: Algorithm(Ema([1]), FixedFunction()),
        "Ema.inner: found [1], wanted an estimator that offers range(state, scheme) -> Range. "
        "Give one of them, such as MinMax() or StdClip().",
    ),
    (
        lambda: Override(Name("a"), "activation", bits=16),
        "Override.bits: found 16, wanted None unless role is 'weight', for the hardware clamps activations to its own codes. "
        "For these ops alone, use edit.inputs(Name('a'), Scheme(Int(16, signed=False), zero_point=ZeroPoint())) and "
        "edit.outputs(Name('a'), Scheme(Int(16, signed=False), zero_point=ZeroPoint())). "
        "For all ops, use edit.activations(bits=16).",
    ),
    (
        lambda: target(ops=(OpKind("a", "x.a"), OpKind("a", "y.a"))),
        "Target.ops: found ('a', 'a'), wanted each name once. Put all spellings of an op in one OpKind.",
    ),
    (
        lambda: CONV and Name("a"),
        "selector: found Op('conv') used as a truth value, wanted &, | or ~. Write them in place of and, or, not.",
    ),
    (
        lambda: edit.pipe(target(), edit.weights),
        "edit.pipe: found the function weights, wanted a function target -> target. Call it: edit.weights(...).",
    ),
    (
        lambda: edit.weights(bits=4)("x"),
        "edit.pipe: found 'x', wanted a Target first. Write edit.pipe(target, edit.weights(bits=4), ...).",
    ),
    (
        lambda: edit.weights(bit=4),
        "edit.weights: found bit, wanted bits, estimator, function, signed, symmetric, granularity, power_of_two, rounding, "
        "division. Use those keywords.",
    ),
    (
        lambda: edit.override(CONV, weight={"bits": 4}),
        "edit.override: found weight, wanted weights, activations. Use those keywords.",
    ),
    (lambda: edit.override(CONV), "edit.override: found nothing to change, wanted weights or activations. Give one."),
    (lambda: from_json('{"schema": 2, "spec": 1}'), "from_json, schema: found 2, wanted 1. Upgrade qfunc."),
    (
        lambda: from_json('{"schema": 1, "spec": {"is": "os.system"}}'),
        "from_json: found unknown class 'os.system', wanted a class of qfunc. "
        "Write the name that the class has now, or write the spec again with to_json.",
    ),
    (
        lambda: from_json('{"schema": 1, "spec": {"is": "mine:Half"}}'),
        "from_json: found unknown class 'mine:Half', wanted a class of qfunc. Pass it: from_json(text, classes=(Half,)).",
    ),
    (
        lambda: from_json('{"schema": 1, "spec": [{"is": "mine:Half", "f": {"is function": "mine:f"}}, {"is": "mine:B"}]}'),
        "from_json: found unknown classes 'mine:Half', 'mine:B' and function 'mine:f', wanted classes and functions of qfunc. "
        "Pass them: from_json(text, classes=(Half, B, f)).",
    ),
    (
        lambda: from_json('{"schema": 1, "spec": {"is function": "mine:f"}}'),
        "from_json: found unknown function 'mine:f', wanted a function of qfunc. Pass it: from_json(text, classes=(f,)).",
    ),
    (
        lambda: from_json('{"schema": 1, "spec": {"is": "Keep"}}'),
        "from_json: found unknown class 'Keep', wanted a class of qfunc, such as KeepFloat, Kernel. "
        "Write the name that the class has now, or write the spec again with to_json.",
    ),
    (
        lambda: from_json('{"schema": 1, "spec": {"is": "OpKind", "name": "a", "spellings": ["x.a"], "slots": ["input"]}}'),
        "from_json, OpKind: found unknown field name, wanted behaves_like, example, kind, neutral, onnx, parameters, slots, "
        "spatial, spellings, traits, weight_axis. Rename it, or remove it.",
    ),
    (
        lambda: OpKind("a", "x.a", slots=("input",)),
        "OpKind.slots: found 'input', wanted pairs of a parameter and a slot. "
        "Write slots={'input': 'input'}; the names of the op's arguments are its `parameters`.",
    ),
    (
        lambda: from_json('{"schema": 1, "spec": {"is": "Int", "width": 1}}'),
        "from_json, Int: found unknown field width, wanted bits, high, low, signed. Rename it, or remove it.",
    ),
]


@pytest.mark.parametrize(("build", "message"), MESSAGES, ids=[m.split(":")[0] for _, m in MESSAGES])
def test_the_whole_message(build, message):
    with pytest.raises(SpecError) as caught:
        build()
    assert str(caught.value) == message
    assert all((caught.value.where, caught.value.found, caught.value.wanted, caught.value.do))
