"""Bilinear resizing of codes."""

from __future__ import annotations

from attrs import field, frozen

from qfunc.arithmetic.computation import Computation
from qfunc.arithmetic.unit import UnitSpec
from qfunc.numerics.kernels.resize import resize_codes
from qfunc.specs._check import integer, one_of
from qfunc.specs._values import readable


@readable
@frozen
class Bilinear:
    """Bilinear resizing with weights of `bits` bits: "integer" positions, or "float" ones whose weights are rounded half even.

    "integer": scale = floor((2^bits n_x + n_y / 2) / n_y), the sum is rounded half away from zero.  "float": positions
    in float32, clamped to the image, and the sum is rounded half up.  "rational": whole weights of a sum n_y n_x, where an
    entry is 1 / n apart; the sum times 1 / (n_y n_x), a FixedPoint, is rounded half up.  Emulation refuses n > 2^bits.

    Source: TFLite reference_ops ResizeBilinearInteger (integer, 10 bits); XNNPACK indirection.c and s8-ibilinear (float, 11);
        TOSA 1.0 RESIZE and RESCALE (rational, 11).

    >>> Bilinear("integer", 10)
    Bilinear('integer', bits=10)
    """

    positions: str = field(validator=one_of(("integer", "float", "rational")))
    bits: int = field(validator=integer(1, 14))

    def refuses(self, unit: UnitSpec) -> str:
        """Return "": another kind of op is an error of the target."""
        return ""

    def kernel(self, unit: UnitSpec) -> Computation:
        """Return the codes of a resized image."""
        if unit.kind != "resize":
            raise unit.unfit(self, ("resize",))
        x, *_ = unit.coded_inputs
        size_or_factor = [unit.arguments[n] for n in ("size", "scale_factor")]
        corners = bool(unit.arguments["align_corners"])
        return Computation(resize_codes, (x, *size_or_factor, corners, self.positions, self.bits, unit.path))
