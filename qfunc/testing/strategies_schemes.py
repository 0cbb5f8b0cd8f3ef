"""Hypothesis strategies of schemes: every format with every option of scales and zero points that it supports."""

from __future__ import annotations

from typing import Any

from attrs import evolve
from hypothesis import strategies as st

from qfunc import specs
from qfunc.specs import Float, Int, Levels, Log, Scale, Scheme, ZeroPoint, formats
from qfunc.specs.formats import E8M0
from qfunc.testing.oracle import MODES
from qfunc.testing.strategies import granularities, int_formats, zero_points

FLOATS = (
    formats.E4M3FN,
    formats.E5M2,
    formats.E4M3FNUZ,
    formats.E5M2FNUZ,
    formats.E3M2,
    formats.E2M3,
    formats.E2M1,
    specs.FLOAT16,
    specs.BFLOAT16,
    specs.FLOAT32,
    formats.E8M0,
)
LOGS = (Log(), Log(3, 1), Log(5, 4))
LEVELS = (Levels((-1.0, -0.25, 0.0, 0.5, 1.0)), Levels((0.0, 1.0, 3.0)))
KINDS = ("symmetric", "affine", "fixed zero point", "float", "log", "levels", "mx", "two levels")


@st.composite
def all_schemes(draw: st.DrawFn, *, shape: tuple[int, ...], max_bits: int = 16) -> Scheme:
    """Draw schemes of every format and granularity for a tensor of this shape, with every option that they support.

    Integers, symmetric (every divisor, signed extremes) and affine (every nudge and rounding, fixed zero
    points); small floats, logarithms, codebooks; OCP MX scales; two-level scales.  Scales that are free,
    powers of two (every rounding) or bounded; minimum ranges.  Shrinks to a symmetric `Int` per tensor.

    >>> all_schemes(shape=(2, 6))
    all_schemes(shape=(2, 6))
    """
    kind, shared = draw(st.sampled_from(KINDS)), draw(granularities(shape=shape))
    zero_anywhere = kind in ("affine", "fixed zero point")
    fmt: Any = draw(_formats(kind, max_bits).filter(lambda f: zero_anywhere or not isinstance(f, Int) or f.qmin <= 0 <= f.qmax))
    if kind == "two levels":
        return Scheme(fmt, Scale(shared, format=formats.E4M3FN, within=Scale()))
    if kind == "mx":
        rounding = draw(st.sampled_from(("ceil", "floor", "half_even")))
        divisors = ("qmax", "emax", "emax_rounded") if isinstance(fmt, Float) else ("qmax", "emax")
        return Scheme(fmt, Scale(shared, format=E8M0, rounding=rounding, divisor=draw(st.sampled_from(divisors))))
    if kind == "log":
        return Scheme(fmt, Scale(shared))
    if kind == "levels":  # codebooks have one rounding
        return Scheme(fmt, draw(_symmetric(draw(_scales(shared)), fmt)), division=draw(st.booleans()))
    modes = MODES[:-2] if kind == "float" else MODES  # neither floats nor zero points have an index
    scale, rounding, division = draw(_scales(shared)), draw(st.sampled_from(modes)), draw(st.booleans())
    if not zero_anywhere:
        return Scheme(fmt, draw(_symmetric(scale, fmt)), rounding=rounding, division=division)
    zero = ZeroPoint(
        draw(st.sampled_from(MODES[:-2])),
        nudge=draw(st.sampled_from(("low", "nearest", "outward"))),
        added=draw(st.sampled_from(("after", "before"))),
    )
    if kind == "fixed zero point":
        zero = ZeroPoint(value=draw(zero_points(low=fmt.qmin, high=fmt.qmax)))
    return Scheme(fmt, scale, zero, rounding=rounding, division=division)


def _formats(kind: str, max_bits: int) -> st.SearchStrategy[Any]:
    match kind:
        case "float" | "two levels":
            return st.sampled_from(FLOATS)
        case "mx":
            return st.sampled_from((*FLOATS[:7], Int(8)))
        case "log":
            return st.sampled_from(LOGS)
        case "levels":
            return st.sampled_from(LEVELS)
    return int_formats(max_bits=max_bits)


@st.composite
def _scales(draw: st.DrawFn, shared: Any) -> Scale:
    bounds = draw(st.sampled_from(((None, None), (None, None), (2.0**-10, None), (2.0**-6, 4.0))))
    widths = draw(st.sampled_from((0.0, 0.0, 2.0**-10, 3.0)))
    scale = Scale(shared, low=bounds[0], high=bounds[1], minimum_range=widths)
    if draw(st.integers(0, 4)) == 4:
        return evolve(scale, format=specs.FLOAT16, rounded="after")
    if draw(st.booleans()):
        return evolve(scale, power_of_two=True, rounding=draw(st.sampled_from(("ceil", "floor", "half_even"))))
    return scale


@st.composite
def _symmetric(draw: st.DrawFn, scale: Scale, fmt: Int | Float | Levels) -> Scale:
    divisors = ["qmax", "emax"]
    if isinstance(fmt, Int):
        divisors += ["half_range"] + ["-qmin"] * (fmt.qmin < 0)
    elif isinstance(fmt, Float):
        divisors += ["emax_rounded"]
    divisor = draw(st.sampled_from(divisors))
    signed = divisor == "-qmin" and draw(st.booleans())
    return evolve(scale, divisor=divisor, signed=signed, equals=draw(st.sampled_from(("negative", "first")[: 1 + signed])))
