"""Fixed: quantize with the estimated qparams; training does not change them."""

from __future__ import annotations

from attrs import frozen
from torch import Tensor

from qfunc.numerics.affine import fake_quantize, quantize
from qfunc.numerics.qparams import Affine
from qfunc.specs import Scheme


@frozen
class Fixed:
    """x_hat = (clamp(R(x/s) + z) - z) * s, with a straight-through gradient inside the range.

    Source: Jacob et al., arXiv:1712.05877, section 3.

    >>> import torch
    >>> Fixed().apply(Affine(torch.tensor(0.5), torch.tensor(0.0)), torch.tensor([0.6]), Scheme()).tolist()
    [0.5]
    """

    def init(self, qparams: Affine, x: Tensor, scheme: Scheme) -> Affine:
        """Return the qparams themselves."""
        return qparams

    def scaled(self, params: Affine, factor: Tensor) -> Affine:
        """Return the parameters for factor * x, factor > 0 in their shape: its values are factor times the values of x."""
        return params._replace(scale=params.scale * factor)

    def apply(self, params: Affine, x: Tensor, scheme: Scheme) -> Tensor:
        """Return the value that the hardware represents for x."""
        return fake_quantize(x, params, scheme)

    def export(self, params: Affine, x: Tensor, scheme: Scheme) -> tuple[Tensor, Affine]:
        """Return the codes of x and their qparams."""
        return quantize(x, params, scheme), params
