"""Sums of two tensors of codes."""

from __future__ import annotations

import torch
from attrs import field, frozen

from qfunc.arithmetic.computation import Computation
from qfunc.arithmetic.steps import is_steps
from qfunc.arithmetic.unit import UnitSpec
from qfunc.errors import EmulationError
from qfunc.numerics.kernels.addition import add_codes, add_shifted
from qfunc.numerics.kernels.fixed_point import fixed_multiplier
from qfunc.specs._check import ROUNDINGS, as_tuple, instance_of, integer, one_of
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


def scale_error(unit: UnitSpec, ratios: list[float], wanted: str) -> EmulationError:
    """Return the error for inputs whose scales a sum does not take."""
    do = "Calibrate on inputs of similar range, or choose another arithmetic in the target's kernels."
    return unit.error(f"inputs with {ratios} times the scale of the output", wanted, do)
