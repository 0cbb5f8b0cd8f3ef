"""Sums of two tensors of codes."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import torch
from attrs import field, frozen

from qfunc.arithmetic.computation import Computation
from qfunc.arithmetic.float_kernel import FloatKernel
from qfunc.arithmetic.unit import OpItself, UnitSpec
from qfunc.errors import EmulationError
from qfunc.numerics.kernels.addition import add_codes, add_scaled, add_shifted
from qfunc.numerics.kernels.fixed_point import fixed_multiplier
from qfunc.specs._check import ROUNDINGS, as_tuple, instance_of, integer, one_of, refuse
from qfunc.specs._values import readable


@readable
@frozen
class SumFma:
    """y = R(fma(a, r_a, fma(b, r_b, f))), r = float32(s/s_y), f = float32(z_y - fma(r_a, z_a, float32(r_b*z_b))).

    a and b are codes, zero points included.  Rounds after the zero point was added.  `fma=False`: each product and each sum is
    rounded, y = R((f + a*r_a) + b*r_b); where b is constant along the last axis, y = R((f + b*r_b) + a*r_a).

    Source: ONNX Runtime mlas/lib/qladd.cpp, x86 kernels (AVX2; SSE2 without fma).

    >>> SumFma()
    SumFma()
    """

    rounding: str = field(default="half_even", validator=one_of(ROUNDINGS))
    fma: bool = field(default=True, validator=instance_of(bool))

    def refuses(self, unit: UnitSpec) -> str:
        """Return "": another kind of op is an error of the target."""
        return ""

    def kernel(self, unit: UnitSpec) -> Computation:
        """Return the codes of a sum."""
        if unit.kind != "add":
            raise unit.unfit(self, ("add",))
        a, b = unit.coded_inputs
        terms = (a, a.coding.scale, a.coding.zero_point, b, b.coding.scale, b.coding.zero_point)
        how = (unit.coding.scale, *unit.code_range, self.rounding, unit.channels_last, self.fma)
        return Computation(add_codes, (*terms, *how))


def is_steps(instance: Any, attribute: Any, value: Any) -> None:
    """Raise unless a value is a rounding, or "srdhm" or "sqdmulh" and a rounding."""
    wanted = 'a rounding, or "srdhm" or "sqdmulh" and a rounding'
    words = type(value) is tuple and all(type(step) is str for step in value)
    if not words or value[:-1] not in ((), ("srdhm",), ("sqdmulh",)) or value[-1:] not in tuple((r,) for r in ROUNDINGS):
        raise refuse(instance, "steps", value, wanted, 'Give e.g. ("srdhm", "half_away").')


@readable
@frozen
class SumShifted:
    """Both inputs are shifted left by `left_shift`, rescaled to a common scale and added in int32; then `steps`.

    Whole runs of `lanes` entries in memory, of tensors of one shape or of rows that join rows, round each input once: the
    shift of its rescaling is taken from `left_shift`.  Their codes wrap in `bits` bits before they are clamped; so do those of
    whole runs of half as many entries that one number is added to.  None: no entries do.
    Scales whose sums might need more than 32 bits are refused.

    Source: TFLite reference_ops Add (2^20), optimized_integer_ops AddElementwise (16 lanes) and
    AddScalarBroadcast (8), measured; TOSA 1.0 add between rescales.

    >>> SumShifted(left_shift=20)
    SumShifted()
    """

    left_shift: int = field(default=20, validator=integer(0, 31))
    steps: tuple[str, ...] = field(default=("srdhm", "half_away"), converter=as_tuple, validator=is_steps)
    bits: int = field(default=32, validator=integer(9, 32))
    lanes: int | None = field(default=None, validator=integer(1, optional=True))

    def refuses(self, unit: UnitSpec) -> str:
        """Return "": another kind of op is an error of the target."""
        return ""

    def kernel(self, unit: UnitSpec) -> Computation:
        """Return the codes of a sum or a difference.

        Raises:
            EmulationError: the ratio of the scales is so large that the sum may need more bits.
        """
        # TFLite: both inputs are rescaled to twice the larger scale and shifted left; the sum is rescaled to the output.
        if unit.kind not in ("add", "sub"):
            raise unit.unfit(self, ("add", "sub"))
        a, b = (x.coding for x in unit.coded_inputs)
        ratios = [c.scale / unit.coding.scale for c in (a, b)]
        span, low, bits = max(c.format.qmax - c.format.qmin for c in (a, b)), unit.code_range[1], 32
        if sum(ratios) * span >= 2.0 ** (bits - 1) + min(low, -128):
            raise scale_error(unit, ratios, f"a sum of {bits} bits")
        twice = 2 * max(a.scale, b.scale)
        scales = [a.scale / twice, b.scale / twice, twice / (2.0**self.left_shift * unit.coding.scale)]
        pairs = [tuple(int(t) for t in fixed_multiplier(torch.tensor(s, dtype=torch.float64))) for s in scales]
        sign = -1 if unit.kind == "sub" else 1
        how = (*unit.code_range, sign, self.lanes, unit.channels_last, self.bits)
        zeros = (a.zero_point, b.zero_point)
        return Computation(add_shifted, (*unit.coded_inputs, zeros, pairs, self.left_shift, list(self.steps), *how))


@readable
@frozen
class SumScaled:
    """y = R((a*m_a + b*m_b) * 2^-k) + z: integers m = half_even(s/s_y * 2^k), the larger one of `bits` bits.

    a and b are codes minus their zero points; the sum is exact and is rounded once.  s/s_y is a float32, and lies in
    [2^-10, 2^8): XNNPACK takes no others.  `least` is another exponent for the smaller s/s_y.

    `outside`: the arithmetic for other s/s_y, and for one whose m needs more than `bits` bits.  None: they are refused.

    Source: XNNPACK microparams-init.c, xnn_init_qs8_add_minmax (21 bits, half up); ONNX Runtime mlas/lib/qladd.cpp, NEON
        kernels (22 bits, half away, from 2^-14, else in float32).

    >>> SumScaled()
    SumScaled()
    """

    rounding: str = field(default="half_up", validator=one_of(ROUNDINGS))
    bits: int = field(default=21, validator=integer(7, 31))
    least: int = field(default=-10, kw_only=True, validator=integer(-31, -10))
    outside: FloatKernel | None = field(default=None, kw_only=True)

    def __attrs_post_init__(self) -> None:
        if self.outside is not None and type(self.outside) is not FloatKernel:
            raise refuse(self, "outside", self.outside, "FloatKernel or None", "Give a value such as FloatKernel(...).")

    def refuses(self, unit: UnitSpec) -> str:
        """Return "": another kind of op is an error of the target."""
        return ""

    def kernel(self, unit: UnitSpec) -> Computation | OpItself:
        """Return the codes of a sum or a difference.

        Raises:
            EmulationError: a ratio of scales that the arithmetic does not take.
        """
        if unit.kind not in ("add", "sub"):
            raise unit.unfit(self, ("add", "sub"))
        a, b = unit.coded_inputs
        ratios = [float(torch.tensor(x.coding.scale) / torch.tensor(unit.coding.scale)) for x in (a, b)]
        found = self._multipliers(ratios)
        if found is None and self.outside is not None:
            return self.outside.kernel(unit)
        if found is None:
            raise scale_error(unit, ratios, f"ratios in [2^{self.least}, 2^8)")
        m, shift = found
        m[1] = -m[1] if unit.kind == "sub" else m[1]
        zeros = (a.coding.zero_point, b.coding.zero_point)
        return Computation(add_scaled, (a, b, zeros, m, shift, self.rounding, *unit.code_range))

    def _multipliers(self, ratios: list[float]) -> tuple[list[int], int] | None:
        # Both multipliers have one shift, which gives the larger one all its bits; None for ratios outside of the ranges.
        if not all(2.0**self.least <= r < 2**8 for r in ratios) or max(ratios) < 2**-10:
            return None
        shift = self.bits - math.frexp(max(ratios))[1]
        m = [round(Fraction(r) * Fraction(2) ** shift) for r in ratios]
        return None if self.outside is not None and max(m) >= 2**self.bits else (m, shift)


def scale_error(unit: UnitSpec, ratios: list[float], wanted: str) -> EmulationError:
    """Return the error for inputs whose scales a sum does not take."""
    do = "Calibrate on inputs of similar range, or choose another arithmetic in the target's kernels."
    return unit.error(f"inputs with {ratios} times the scale of the output", wanted, do)
