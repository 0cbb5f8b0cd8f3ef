"""Requantization in two stages, each with its own rounding: a product with an addend, then a table of line segments."""

from __future__ import annotations

from attrs import field, frozen

from qfunc.specs._check import ROUNDINGS, integer, one_of, refuse
from qfunc.specs._values import readable


@readable
@frozen
class ScaleStage:
    """v = R(acc * m * 2^-e) + b, for each output channel: M = s_x s_w / s_v = m * 2^-e and b = half_even(bias / s_v).

    m = half_even(M * 2^e) has `bits` bits with its sign, and e is the largest exponent up to `shift` for which it has.

    Args:
        rounding: R.
        bits: The width of m.
        shift: The largest e.
        addend: The width of b.
        value: The width of v.
    Raises:
        SpecError: a v that is narrower than b.

    Source: nncase, modules/k210: kpu_batchnorm_segment, and get_fixed_mul of its quantizer.

    >>> ScaleStage("floor", 22, shift=15)
    ScaleStage('floor', bits=22, shift=15)
    """

    rounding: str = field(validator=one_of(ROUNDINGS))
    bits: int = field(validator=integer(2, 32))
    shift: int = field(validator=integer(0, 47), kw_only=True)
    addend: int = field(default=32, validator=integer(2, 48), kw_only=True)
    value: int = field(default=36, validator=integer(2, 48), kw_only=True)

    def __attrs_post_init__(self) -> None:
        if self.value < self.addend:
            raise refuse(self, "value", self.value, f"at least the {self.addend} bits of the addend", "Give a wider value.")


@readable
@frozen
class SegmentStage:
    """y = R((v - x) * n * 2^-f) + c, of the last segment (x, n, f, c) with x < v; then y is clamped to the codes.

    For a clamp to codes from low to high, the segments are: (-inf, 0, 0, low); ((low - z) s_y / s_v, n, f, low) with
    s_v / s_y = n * 2^-f; ((high - z) s_y / s_v, 0, 0, high) if the codes do not end at high.  s_v / s_y is a power of two of
    at least 2^-shift.

    Source: nncase, modules/k210: kpu_activation_segment; Kendryte standalone SDK, kpu.h: kpu_activate_table_t.

    >>> SegmentStage("half_even", shift=43)
    SegmentStage('half_even', shift=43)
    """

    rounding: str = field(validator=one_of(ROUNDINGS))
    shift: int = field(validator=integer(0, 43), kw_only=True)
