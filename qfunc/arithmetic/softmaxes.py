"""Softmaxes of codes."""

from __future__ import annotations

import torch
from attrs import field, frozen

from qfunc.arithmetic.computation import Computation, Constant
from qfunc.arithmetic.unit import UnitSpec
from qfunc.numerics.kernels.fixed_point import fixed_multiplier
from qfunc.numerics.kernels.fixed_rows import masked_softmax_fixed, softmax_fixed
from qfunc.numerics.kernels.integer import softmax_codes, softmax_float, softmax_table16
from qfunc.numerics.kernels.requantize import requantize_fixed
from qfunc.specs._check import ROUNDINGS, instance_of, one_of
from qfunc.specs._values import readable

_SHARE = 1 / 256


@readable
@frozen
class SoftmaxTable:
    """softmax over codes by a table of float32 exponentials, summed in order: y = R(e_i * floor(1/s_y) / sum(e)) + z.

    e_i * floor(1/s_y) may be infinite: over one entry, where s_y = 1/256, and over more where s_y is less. There R is 0.
    `saturates`: R is the largest integer of 32 bits, 2^32 - 1, to which z is added modulo 2^32.

    Source: ONNX Runtime contrib_ops/cpu/quantization/qlinear_softmax.cc; of ARM64 and WebAssembly, measured.

    >>> SoftmaxTable()
    SoftmaxTable()
    """

    rounding: str = field(default="half_even", validator=one_of(ROUNDINGS))
    saturates: bool = field(default=False, validator=instance_of(bool))

    def refuses(self, unit: UnitSpec) -> str:
        """Return "": another kind of op is an error of the target."""
        return ""

    def kernel(self, unit: UnitSpec) -> Computation:
        """Return the codes of a softmax."""
        if unit.kind != "softmax":
            raise unit.unfit(self, ("softmax",))
        (x, *_), (zero, _, high) = unit.coded_inputs, unit.code_range
        scales = (x.coding.scale, unit.coding.scale)
        return Computation(softmax_codes, (x, unit.arguments["dim"], *scales, zero, high, self.rounding, self.saturates))


@readable
@frozen
class SoftmaxFloat:
    """e_i = exp(-s_x (max(q) - q_i)) in float32, summed in order; y_i = floor(e_i * float32(1 / (sum(e) s_y)) + 1/2) + z.

    Source: TFLite optimized_ops Softmax for 8 bits.

    >>> SoftmaxFloat()
    SoftmaxFloat()
    """

    def refuses(self, unit: UnitSpec) -> str:
        """Return "": another kind of op is an error of the target."""
        return ""

    def kernel(self, unit: UnitSpec) -> Computation:
        """Return the codes of a softmax."""
        if unit.kind != "softmax":
            raise unit.unfit(self, ("softmax",))
        x, *_ = unit.coded_inputs
        scales = (x.coding.scale, unit.coding.scale)
        return Computation(softmax_float, (x, unit.arguments["dim"], *scales, *unit.code_range))


@readable
@frozen
class SoftmaxTable16:
    """e_i = floor(65535 float32(exp(-s_x (max(q) - q_i))) + 1/2), summed exactly; y_i = R(e_i m 2^-e) + z, rounded twice.

    m 2^-e = float32(1 / float32(sum(e) s_y)) as of `FixedPoint`.

    Source: TFLite optimized_ops PopulateSoftmaxUInt8LookupTable and SoftmaxInt8LUT, of ARM64.

    >>> SoftmaxTable16()
    SoftmaxTable16()
    """

    def refuses(self, unit: UnitSpec) -> str:
        """Return "": another kind of op is an error of the target."""
        return ""

    def kernel(self, unit: UnitSpec) -> Computation:
        """Return the codes of a softmax."""
        if unit.kind != "softmax":
            raise unit.unfit(self, ("softmax",))
        x, *_ = unit.coded_inputs
        scales = (x.coding.scale, unit.coding.scale)
        return Computation(softmax_table16, (x, unit.arguments["dim"], *scales, *unit.code_range))


@readable
@frozen
class SoftmaxFixed:
    """e_i = exp(s_x (q_i - max(q))) in 31 bits, p_i = R(e_i / sum(e) * 2^8), y_i = p_i + z, all in 32-bit fixed point.

    exp: a Taylor series within a quarter, times exp(-2^k) for each bit k above; 0 from s_x (max(q) - q_i) = 31 on.  The
    sum has 19 fractional bits, its reciprocal takes three steps of Newton's method, and R is half away.  Of a masked softmax
    the maximum is that of the entries which the mask keeps; e_i of the others is 0.  This is for s_y = 1/256 and the lowest
    code as z; with others, y_i = R'(p_i M) + z with M = 1 / (256 s_y), as of `FixedPoint("half_up")`.

    Source: TFLite reference_ops Softmax; gemmlowp fixedpoint.h, exp_on_negative_values, one_over_one_plus_x_for_x_in_0_1.

    >>> SoftmaxFixed()
    SoftmaxFixed()
    """

    def refuses(self, unit: UnitSpec) -> str:
        """Return "": another kind of op is an error of the target."""
        return ""

    def kernel(self, unit: UnitSpec) -> Computation:
        """Return the codes of a softmax, with or without a mask."""
        x, *_ = unit.coded_inputs
        zero, low, high = unit.code_range
        plain = unit.coding.scale == _SHARE and zero == low
        ends = (low, high) if plain else (0, 2**8)
        if unit.kind == "masked_softmax":
            shares = Computation(masked_softmax_fixed, (x, unit.arguments["drop"], x.coding.scale, *ends))
        elif unit.kind == "softmax":
            shares = Computation(softmax_fixed, (x, unit.arguments["dim"], x.coding.scale, *ends))
        else:
            raise unit.unfit(self, ("softmax", "masked_softmax"))
        if plain:
            return shares
        m, e = fixed_multiplier(torch.tensor(_SHARE / unit.coding.scale, dtype=torch.float64))
        pair = Constant(m, "multiplier"), Constant(e, "shift")
        return Computation(requantize_fixed, (shares, *pair, ["half_up"], zero, low, high))
