"""Codings: how the codes of one tensor stand for values."""

from __future__ import annotations

from attrs import frozen
from torch import Tensor

from qfunc.errors import SpecError
from qfunc.graph.sites import QuantizerNode
from qfunc.numerics.affine import quantize
from qfunc.numerics.qparams import Affine
from qfunc.specs import DerivedQParams, FloatKernel, FloatMultiplier, FloatRequantize, Int, Log, PerChannel, PerTensor


@frozen(eq=False)
class Encoding:
    """The qparams and scheme of one tensor."""

    qparams: Affine
    seat: QuantizerNode

    @property
    def format(self) -> Int:
        """Its number format."""
        fmt = self.seat.module.site.scheme.format
        assert isinstance(fmt, Int)
        return fmt

    @property
    def scale(self) -> float:
        """The scale of a per-tensor coding."""
        return float(self.qparams.scale)

    @property
    def zero_point(self) -> int:
        """The zero point of a per-tensor coding."""
        return int(self.qparams.zero_point)

    def of_outputs(self, axis: int) -> bool:
        """Whether a weight with output channels along `axis` has one scale, or one for each: sums of products have one then."""
        scale = self.qparams.scale
        return scale.numel() == 1 or scale.shape[axis] == scale.numel()

    def codes(self, constant: Tensor) -> Tensor:
        """The integers that the hardware stores for a weight or bias."""
        site, value = self.seat.module.site, constant.detach()
        return (
            quantize(value, self.qparams, site.scheme)
            if isinstance(site.value, DerivedQParams)
            else self.seat.module.export(value)[0]
        )

    def same(self, other: Encoding) -> bool:
        """Whether both map codes to the same values."""
        ours, theirs = (c.seat.module.site.scheme.format for c in (self, other))
        return ours == theirs and _equal(self.qparams, other.qparams)


def _equal(a: Affine, b: Affine) -> bool:
    return all(x.shape == y.shape and bool((x == y).all()) for x, y in ((a.scale, b.scale), (a.zero_point, b.zero_point)))


def takes_float_bias(arithmetic: object) -> bool:
    """Whether an arithmetic adds the bias as a real number."""
    return isinstance(arithmetic, FloatRequantize | FloatKernel) or (
        isinstance(arithmetic, FloatMultiplier) and arithmetic.float_bias
    )


def is_integer_encoding(seat: QuantizerNode) -> bool:
    """Whether a site holds integers with one static scale a tensor or channel, which units compute with."""
    scheme = seat.module.site.scheme
    shared = isinstance(scheme.scale.shared, PerTensor | PerChannel)
    return isinstance(scheme.format, Int) and shared and not seat.module.dynamic


def require_static(seat: QuantizerNode) -> None:
    """Refuses a site whose scales are found at run time.

    Raises:
        SpecError: names the site.
    """
    if seat.module.dynamic:
        require_integers(seat)


def require_codes(seat: QuantizerNode) -> None:
    """Refuses a site that is neither integers nor logarithms with one static scale a tensor.

    Raises:
        SpecError: names the site.
    """
    scheme = seat.module.site.scheme
    logarithms = isinstance(scheme.format, Log) and isinstance(scheme.scale.shared, PerTensor) and not seat.module.dynamic
    if not logarithms:
        require_integers(seat)


def require_integers(seat: QuantizerNode) -> None:
    """Refuses a site that is simulated only.

    Raises:
        SpecError: names the site.
    """
    if not is_integer_encoding(seat):
        site = seat.module.site
        scale = f"{'a dynamic scale' if seat.module.dynamic else 'a scale'} {site.scheme.scale.shared!r}"
        raise SpecError(
            where=f"site {site.name!r}",
            found=f"{site.scheme.format!r} with {scale}",
            wanted="integers with one static scale per tensor or channel",
            do="Use the quantized model itself, since other formats are only simulated, or an integer target.",
        )
