"""Witnesses of formats and schemes."""

from __future__ import annotations

from typing import Any

from attrs import evolve
from torch import nn

from qfunc.estimators import MinMax
from qfunc.functions import GgmlBlocks
from qfunc.specs import (
    FLOAT16, Algorithm, FixedQParams, Float, Int, Levels, Log, PerBlock, PerChannel, PerTensor, PerToken, Rule, Scale, Scheme,
    Target, ZeroPoint,
)  # fmt: skip
from qfunc.specs.formats import E4M3FN
from tests.specs.witnesses.witness import (
    ACTIVATION, CONV, WEIGHT, Witness, chip, codes, drawn, refusal, seeded, values, witness,
)  # fmt: skip

NET, X = seeded(nn.Conv2d(3, 4, 3)), drawn(2, 3, 5, 5)
STEPS = (drawn(2, 3, 5, 5) * 30).round() * 0.3
OPEN = Float(5, 2, max=57344.0, saturate=False)
SIGNED = Scheme(Int(4), Scale(divisor="-qmin", signed=True))
EQUAL = seeded(nn.Conv2d(3, 4, 3))
EQUAL.weight.data.flatten()[::7] = 2.0
EQUAL.weight.data.flatten()[6::7] = -2.0
IN_THREES = Scale(PerBlock(-1, 3), integers=Int(6, signed=False), within=Scale(PerBlock(-1, 3), format=FLOAT16))
IN_BLOCKS = Scheme(Int(4, signed=False), Scale(PerBlock(-1, 3)))
INTEGERS = Scheme(Int(4, signed=False), IN_THREES, minimum=True)
FLOOR, TRUNC = Scheme(rounding="floor"), Scheme(Int(8, signed=False), rounding="trunc")


def seen(scheme: Scheme) -> Any:
    """What is observed: codes, or values of formats that only the simulation has."""
    integer = isinstance(scheme.format, Int | Log) and not scheme.scale.dynamic
    return codes if integer and isinstance(scheme.scale.shared, PerTensor | PerChannel) else values


def of_weight(scheme: Scheme, **changes: Any) -> Witness:
    """A convolution whose weight has this scheme, and the scheme with changes."""
    before = chip(rules=Rule(CONV, input=ACTIVATION, weight=scheme))
    return witness(before, scheme, evolve(scheme, **changes), NET, X, see=seen(scheme))


def of_input(scheme: Scheme, **changes: Any) -> Witness:
    """A convolution whose input has this scheme, and the scheme with changes."""
    before = chip(rules=Rule(CONV, input=scheme, weight=WEIGHT))
    return witness(before, scheme, evolve(scheme, **changes), NET, -X, see=seen(scheme))


def of_format(fmt: Any, **changes: Any) -> Witness:
    """A weight in this format, and in the format with changes."""
    return of_weight(Scheme(fmt), format=evolve(fmt, **changes))


def of_scale(scale: Scale, scheme: Scheme = Scheme(), **changes: Any) -> Witness:
    """A weight with this scale, and the scale with changes."""
    return of_weight(evolve(scheme, scale=scale), scale=evolve(scale, **changes))


def of_zero(zero: ZeroPoint, scheme: Scheme = Scheme(Int(8, signed=False)), **changes: Any) -> Witness:
    """An input with this zero point, and the zero point with changes."""
    return of_input(evolve(scheme, zero_point=zero), zero_point=evolve(zero, **changes))


def of_steps(scheme: Scheme) -> Target:
    """A convolution whose input has the scale 0.3."""
    return chip(rules=Rule(CONV, input=FixedQParams(scheme, 0.3), weight=WEIGHT))


WITNESSES = {
    "Int.bits": of_format(Int(8), bits=4),
    "Int.signed": of_format(Int(8), signed=False),
    "Int.low": of_format(Int(8), low=-3),
    "Int.high": of_format(Int(8), high=5),
    "Float.exponent": of_format(Float(4, 3), exponent=2),
    "Float.mantissa": of_format(Float(4, 3), mantissa=1),
    "Float.bias": of_scale(Scale(format=Float(5, 2)), format=Float(5, 2, bias=2)),
    "Float.max": of_format(Float(4, 3), max=448.0),
    "Float.saturate": of_weight(Scheme(Float(4, 3), Scale(high=1e-5)), format=Float(4, 3, saturate=False)),
    "Float.negative_zero": of_weight(Scheme(OPEN, Scale(high=1e-8)), format=evolve(OPEN, negative_zero=False)),
    "Float.signed": of_format(Float(4, 3), signed=False),
    "Log.magnitude_bits": of_format(Log(5, 2), magnitude_bits=3),
    "Log.steps_per_octave": of_format(Log(), steps_per_octave=1),
    "Levels.values": of_format(Levels((-1.0, 0.0, 1.0)), values=(-1.0, -0.1, 1.0)),
    "PerTensor": of_scale(Scale(), shared=PerChannel()),
    "PerChannel.axis": of_scale(Scale(PerChannel()), shared=PerChannel(1)),
    "PerBlock.axis": of_scale(Scale(PerBlock(2, 3)), shared=PerBlock(3, 3)),
    "PerBlock.partial": evolve(of_scale(Scale(PerBlock(2, 2, partial=True)), shared=PerBlock(2, 2)), see=refusal),
    "PerBlock.size": of_scale(Scale(PerBlock(2, 3)), shared=PerBlock(2, 1)),
    "PerToken": of_input(Scheme(scale=Scale(dynamic=True)), scale=Scale(PerToken(), dynamic=True)),
    "Scale.shared": of_scale(Scale(), shared=PerChannel()),
    "Scale.format": of_scale(Scale(), format=E4M3FN),
    "Scale.rounded": of_scale(Scale(format=E4M3FN), rounded="after"),
    "Scale.power_of_two": of_scale(Scale(), power_of_two=True),
    "Scale.low": of_scale(Scale(), low=0.1),
    "Scale.high": of_scale(Scale(), high=0.001),
    "Scale.rounding": of_scale(Scale(power_of_two=True), rounding="floor"),
    "Scale.divisor": of_scale(Scale(), divisor="half_range"),
    "Scale.minimum_range": of_scale(Scale(), minimum_range=10.0),
    "Scale.signed": of_scale(Scale(divisor="-qmin"), Scheme(Int(4)), signed=True),
    "Scale.equals": witness(
        chip(rules=Rule(CONV, input=ACTIVATION, weight=SIGNED)),
        SIGNED,
        evolve(SIGNED, scale=evolve(SIGNED.scale, equals="first")),
        EQUAL,
        X,
        see=codes,
    ),
    "Scale.dynamic": of_input(Scheme(), scale=Scale(dynamic=True)),
    "Scale.within": of_scale(Scale(PerBlock(1, 3), format=E4M3FN), within=Scale()),
    "Scale.integers": witness(
        chip(rules=Rule(CONV, input=ACTIVATION, weight=INTEGERS), weight=Algorithm(MinMax(), GgmlBlocks())),
        INTEGERS,
        evolve(INTEGERS, scale=evolve(INTEGERS.scale, integers=Int(3, signed=False))),
        NET,
        X,
        see=values,
    ),
    "ZeroPoint.rounding": of_zero(ZeroPoint("floor"), rounding="half_even"),
    "ZeroPoint.value": of_zero(ZeroPoint(), value=3),
    "ZeroPoint.nudge": of_zero(ZeroPoint(), nudge="outward"),
    "ZeroPoint.added": of_zero(ZeroPoint(), TRUNC, added="before"),
    "Scheme.format": of_weight(Scheme(), format=Float(4, 3)),
    "Scheme.scale": of_weight(Scheme(), scale=Scale(power_of_two=True)),
    "Scheme.zero_point": of_input(Scheme(), zero_point=ZeroPoint()),
    "Scheme.rounding": of_weight(Scheme(), rounding="floor"),
    "Scheme.minimum": witness(
        chip(rules=Rule(CONV, input=ACTIVATION, weight=IN_BLOCKS), weight=Algorithm(MinMax(), GgmlBlocks())),
        IN_BLOCKS,
        evolve(IN_BLOCKS, minimum=True),
        NET,
        X,
        see=values,
    ),
    "Scheme.division": witness(of_steps(FLOOR), FLOOR, evolve(FLOOR, division=False), NET, STEPS),
}
