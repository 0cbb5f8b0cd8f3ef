"""AdaRound: learn for each weight whether it is rounded down or up."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from attrs import field, frozen
from torch import Tensor

from qfunc.errors import SpecError
from qfunc.functions._inner import learned_by, plain, qparams_of, ratio, require_of_x, scaled_by, with_gradient_of
from qfunc.functions.compensation import Compensation
from qfunc.functions.dorefa import DoReFa
from qfunc.functions.fixed import Fixed
from qfunc.numerics.affine import dequantize, widened
from qfunc.numerics.qparams import Affine, spread
from qfunc.specs import Int, Scheme
from qfunc.specs._check import number, refuse

_DECIDED = 100.0  # sigmoid(100) is 1 and sigmoid(-100) below 1e-43 in float32: h is 1 or 0 for every zeta and gamma


def _of_x(instance: Any, attribute: Any, value: Any) -> None:
    plain(instance, attribute, value)
    if type(value) in (DoReFa, Compensation):  # `init` detects others
        raise refuse(instance, "inner", value, "a function that quantizes x itself", "Use Fixed() or Lsq() inside.")


class Rounding(NamedTuple):
    """The parameters of the inner function, and the rounding variable v of every weight."""

    inner: Any
    v: Tensor


@frozen
class AdaRound:
    """Trains with x_hat = s (clamp(floor(x/s) + h(v) + z, qmin, qmax) - z); deployed with h = 1 if v >= 0, else 0.

    h(v) = clip(sigmoid(v) (zeta - gamma) + gamma, 0, 1), with one v per weight.  Initially the soft value is x
    itself inside the range: v = -ln((zeta - gamma) / (r - gamma) - 1) with r = x/s - floor(x/s).  So before
    training the hard value is x rounded to nearest; a tie, v = 0, rounds up whatever the scheme's rounding.
    The gradient of v is that of this equation; x and the parameters of `inner` get the gradients of `inner`.  With
    Fixed() the scale does not change, as in the paper; with Lsq() it trains, too.

    Args:
        inner: The function with the scale; it must quantize x itself and have no training surrogate.
        zeta, gamma: The stretched sigmoid's limits above 1 and below 0; zeta + gamma = 1, so that h(0) = 1/2.
    Raises:
        SpecError: at construction, a stretch that does not reach 0 and 1 or is not symmetric, an inner function
            with a `relax`, or DoReFa, which does not quantize x itself; from `init`, a format other than Int, an
            empty or scalar x (it stands for an activation, but only constants have a rounding to learn), or
            another inner function that does not quantize x itself.
    Source: Nagel, Amjad, van Baalen, Louizos, Blankevoort, arXiv:2004.10568, equations 22 to 24.

    >>> function, x, scheme = AdaRound(), torch.tensor([0.3, 0.7]), Scheme()
    >>> params = function.init(Affine(torch.tensor(1.0), torch.tensor(0.0)), x, scheme)
    >>> function.relax(params, x, scheme), function.apply(params, x, scheme)
    (tensor([0.3000, 0.7000]), tensor([0., 1.]))
    >>> function.apply(params._replace(v=-params.v), x, scheme)
    tensor([1., 0.])
    """

    inner: Any = field(default=Fixed(), validator=_of_x)
    zeta: float = field(default=1.1, validator=number())
    gamma: float = field(default=-0.1, validator=number())

    noisy = False  # the surrogate needs no noise

    def __attrs_post_init__(self) -> None:
        if self.gamma >= 0 or abs(self.zeta + self.gamma - 1) > 1e-9:
            wanted, do = "gamma < 0 and zeta = 1 - gamma", "Use the paper's 1.1 and -0.1."
            raise refuse(self, "zeta, gamma", (self.zeta, self.gamma), wanted, do)

    def init(self, qparams: Affine, x: Tensor, scheme: Scheme) -> Rounding:
        """Return the parameters of `inner`, and v in float32 and in the shape of x."""
        if not isinstance(scheme.format, Int):
            do = "Use Fixed() for this format."
            raise SpecError(where="AdaRound", found=repr(scheme.format), wanted="an Int format", do=do)
        if x.ndim == 0 or x.numel() == 0:
            wanted = "a weight, whose rounding can be learned"
            do = "Use AdaRound for weights, another function for activations."
            raise SpecError(where="AdaRound", found=f"a tensor of shape {tuple(x.shape)}", wanted=wanted, do=do)
        params = self.inner.init(qparams, x, scheme)
        require_of_x("AdaRound", self.inner, params, x, scheme)
        real = ratio(widened(x.detach(), scheme), qparams_of(self.inner, params, x, scheme), scheme)
        rest = (real - torch.floor(real)).nan_to_num()
        # The docstring's v as an odd function of r - 1/2: exactly 0 at a tie, and with the right sign next to it.
        return Rounding(params, (2 * torch.atanh((rest - 0.5) / (self.zeta - 0.5))).float())

    def learned(self, scheme: Scheme) -> tuple[str, ...]:
        """Return v and the names that `inner` trains."""
        return ("v", *(f"inner_{name}" for name in learned_by(self.inner, scheme)))

    def scaled(self, params: Rounding, factor: Tensor) -> Rounding | None:
        """Return the parameters for factor * x, factor > 0 in their shape: its values are factor times the values of x."""
        inner = scaled_by(self.inner, params.inner, factor)
        return None if inner is None else params._replace(inner=inner)

    def apply(self, params: Rounding, x: Tensor, scheme: Scheme) -> Tensor:
        """Return the value that the hardware represents: x rounded down where v < 0, else up."""
        codes, qparams = self.export(params, x.detach(), scheme)
        value = dequantize(codes, qparams, scheme).to(x.dtype)
        return with_gradient_of(self.inner.apply(params.inner, x, scheme), value)

    def relax(self, params: Rounding, x: Tensor, scheme: Scheme, noise: Tensor | None = None) -> Tensor:
        """Return the soft value, x interpolated between its two neighbours by h(v); it needs no noise."""
        qparams = qparams_of(self.inner, params.inner, x, scheme)
        value = dequantize(_codes(x, self.soft(params), qparams, scheme), qparams, scheme).to(x.dtype)
        if not torch.is_grad_enabled():
            return value
        surrogate: Tensor = self.inner.apply(params.inner, x, scheme)
        return value + with_gradient_of(surrogate, torch.zeros_like(surrogate))

    def export(self, params: Rounding, x: Tensor, scheme: Scheme) -> tuple[Tensor, Affine]:
        """Return the hard codes and the qparams of `inner`."""
        qparams = qparams_of(self.inner, params.inner, x, scheme)
        return _codes(x, params.v >= 0, qparams, scheme), qparams

    def soft(self, params: Rounding) -> Tensor:
        """Return h(v), in [0, 1]: how far each weight is rounded up."""
        return (torch.sigmoid(params.v) * (self.zeta - self.gamma) + self.gamma).clamp(0, 1)

    def harden(self, params: Rounding) -> Rounding:
        """Return parameters with the hard value as soft value: every h is 0 or 1, and no v trains any more."""
        return params._replace(v=torch.where(params.v >= 0, _DECIDED, -_DECIDED).to(params.v))

    def regulariser(self, params: Rounding, beta: float) -> Tensor:
        """Return the sum over the weights of 1 - |2 h(v) - 1|^beta, a scalar: 0 once every h is 0 or 1."""
        return (1 - (2 * self.soft(params) - 1).abs() ** beta).sum()


def _codes(x: Tensor, up: Tensor, qparams: Affine, scheme: Scheme) -> Tensor:
    # clamp(floor(x/s) + h + z, qmin, qmax); only h gets a gradient.
    wide, fmt = widened(x.detach(), scheme), scheme.format
    assert isinstance(fmt, Int)  # `init` requires it
    codes = torch.floor(ratio(wide, qparams, scheme)) + up
    if scheme.zero_point is not None:
        codes = codes + spread(qparams.zero_point, wide, scheme)
    return codes.clamp(fmt.qmin, fmt.qmax)
