"""Encodings: the qparams and the scheme that map the codes of one tensor to values."""

from __future__ import annotations

from functools import cached_property

from attrs import frozen
from torch import Tensor

from qfunc.errors import SpecError
from qfunc.graph.sites import QuantizerNode
from qfunc.numerics.affine import quantize
from qfunc.numerics.qparams import Affine
from qfunc.numerics.scales import stored_scale
from qfunc.specs import (
    DerivedQParams,
    Float,
    Int,
    Log,
    PerBlock,
    PerChannel,
    PerTensor,
    Scheme,
    Target,
)
from qfunc.specs.protocols import BiasArithmetic, RunTimeArithmetic


@frozen(eq=False)
class Encoding:
    """The qparams and scheme of one tensor."""

    qparams: Affine
    quantizer: QuantizerNode

    @cached_property
    def format(self) -> Int:
        """The number format."""
        fmt = self.quantizer.module.site.scheme.format
        assert isinstance(fmt, Int)
        return fmt

    @cached_property
    def scale(self) -> float:
        """The scale, if there is one for the tensor."""
        return float(self.qparams.scale)

    @cached_property
    def zero_point(self) -> int:
        """The zero point, if there is one for the tensor."""
        return int(self.qparams.zero_point)

    def of_outputs(self, axis: int) -> bool:
        """Return True if a weight with output channels along `axis` has one scale, or one for each output channel."""
        scale = self.qparams.scale
        return scale.numel() == 1 or scale.shape[axis] == scale.numel()

    def codes(self, constant: Tensor) -> Tensor:
        """Return the integers that the hardware stores for a weight or bias."""
        site, value = self.quantizer.module.site, constant.detach()
        return (
            quantize(value, self.qparams, site.scheme)
            if isinstance(site.value, DerivedQParams)
            else self.quantizer.module.export(value)[0]
        )

    def same(self, other: Encoding) -> bool:
        """Return True if both map codes to the same values."""
        same_format = self.quantizer.module.site.scheme.format == other.quantizer.module.site.scheme.format
        return same_format and _equal(self.qparams, other.qparams)


def encoding_of(quantizer: QuantizerNode, qparams: Affine) -> Encoding:
    """Return the encoding of a tensor; its scales are those that the hardware stores."""
    scheme = quantizer.module.site.scheme
    minimum = qparams.minimum if qparams.minimum is None else stored_scale(qparams.minimum, scheme)
    return Encoding(qparams._replace(scale=stored_scale(qparams.scale, scheme), minimum=minimum), quantizer)


def _equal(a: Affine, b: Affine) -> bool:
    return all(x.shape == y.shape and bool((x == y).all()) for x, y in ((a.scale, b.scale), (a.zero_point, b.zero_point)))


def takes_float_bias(arithmetic: object) -> bool:
    """Return True if an arithmetic adds the bias as a real number."""
    return isinstance(arithmetic, BiasArithmetic) and arithmetic.float_bias


def is_integer_encoding(quantizer: QuantizerNode) -> bool:
    """Return True if a site has integer codes with one static scale, for the tensor or for each channel."""
    scheme = quantizer.module.site.scheme
    shared = isinstance(scheme.scale.shared, PerTensor | PerChannel)
    stored = scheme.scale.rounded == "before" or quantizer.module.site.constant
    return isinstance(scheme.format, Int) and shared and stored and not quantizer.module.dynamic


def run_time_inputs(target: Target) -> list[Scheme]:
    """Return the schemes of inputs that kernels of a target quantize at run time."""
    return [k.arithmetic.run_time_input for k in target.kernels if isinstance(k.arithmetic, RunTimeArithmetic)]


def has_kernel_codes(quantizer: QuantizerNode, target: Target) -> bool:
    """Return True if a site has integer codes by which a partition finds kernels.

    They are those of `is_integer_encoding`, and those of products of the target whose input is quantized at run time.
    """
    if is_integer_encoding(quantizer):
        return True
    inputs, site = run_time_inputs(target), quantizer.module.site
    blocks = site.constant and isinstance(site.scheme.scale.shared, PerBlock) and isinstance(site.scheme.format, Int | Float)
    return (bool(inputs) and blocks) or (quantizer.module.dynamic and site.scheme in inputs)


def require_codes(quantizer: QuantizerNode) -> None:
    """Raise unless the codes of a site are integers, or logarithms with one static scale.

    Raises:
        SpecError: they are not; the message names the site.
    """
    scheme = quantizer.module.site.scheme
    logarithms = isinstance(scheme.format, Log) and isinstance(scheme.scale.shared, PerTensor) and not quantizer.module.dynamic
    if not logarithms:
        require_integers(quantizer)


def require_integers(quantizer: QuantizerNode) -> None:
    """Raise unless the codes of a site are integers, because other codes can only be simulated.

    Raises:
        SpecError: they are not; the message names the site.
    """
    if not is_integer_encoding(quantizer):
        site = quantizer.module.site
        scale = f"{'a dynamic scale' if quantizer.module.dynamic else 'a scale'} {site.scheme.scale.shared!r}"
        raise SpecError(
            where=f"site {site.name!r}",
            found=f"{site.scheme.format!r} with {scale}",
            wanted="integers with one static scale per tensor or channel",
            do="Use the quantized model itself, since other formats are only simulated, or an integer target.",
        )
