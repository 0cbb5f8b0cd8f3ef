"""NnieLog: NNIE's logarithmic quantizer with the vendor's gradient."""

from __future__ import annotations

from attrs import frozen
from torch import Tensor

from qfunc.errors import SpecError
from qfunc.functions._inner import with_gradient_of
from qfunc.numerics.affine import dequantize, quantize
from qfunc.numerics.qparams import Affine
from qfunc.specs import Log, Scheme


@frozen
class NnieLog:
    """x_hat = +-2^((q + z) / k) or 0, the values of a `Log` format; the gradient is 1 everywhere.

    k is the number of steps per octave, z = R(k log2 c) - (2^bits - 1) with the largest magnitude c, and q =
    clamp(R(k log2 |x|) - z, 0, 2^bits - 1); below half the smallest magnitude x_hat is 0.  The gradient is not
    clipped where x saturates, as in the vendor's training code; `Fixed()` on a `Log` format clips it.

    Raises:
        SpecError: from `init`, a format other than Log.
    Source: HiSilicon NNIE as in MQBench, fake_quantize/nnie.py and the user guide, hardware/nnie.  This follows
        the guide's x >= 2^(z/k - 1); MQBench's code has > and does not quantize x at the bound.

    >>> import torch
    >>> params = Affine(torch.tensor(2.0**-6), torch.tensor(0.0))
    >>> NnieLog().apply(params, torch.tensor([1.01, 0.0, -300.0]), Scheme(Log()))
    tensor([ 1.0000,  0.0000, -3.8304])
    """

    def init(self, qparams: Affine, x: Tensor, scheme: Scheme) -> Affine:
        """Return the qparams themselves."""
        if not isinstance(scheme.format, Log):
            do = "Use Fixed() for this format."
            raise SpecError(where="NnieLog", found=repr(scheme.format), wanted="a Log format", do=do)
        return qparams

    def apply(self, params: Affine, x: Tensor, scheme: Scheme) -> Tensor:
        """Return the value that the hardware represents for x."""
        value = dequantize(quantize(x.detach(), params, scheme), params, scheme).to(x.dtype)
        return with_gradient_of(x, value)

    def export(self, params: Affine, x: Tensor, scheme: Scheme) -> tuple[Tensor, Affine]:
        """Return the sign-magnitude codes of x and their qparams."""
        return quantize(x, params, scheme), params
