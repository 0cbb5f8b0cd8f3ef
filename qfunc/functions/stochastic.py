"""Stochastic rounding: round up with the probability that keeps the mean."""

from __future__ import annotations

from typing import Any

from attrs import field, frozen
from torch import Tensor

from qfunc.errors import SpecError
from qfunc.functions._inner import learned_by, plain, qparams_of, ratio, require_of_x, scaled_by, with_gradient_of
from qfunc.functions.fixed import Fixed
from qfunc.numerics import minifloat
from qfunc.numerics.affine import dequantize, widened
from qfunc.numerics.qparams import Affine, spread
from qfunc.numerics.rounding import round_by
from qfunc.specs import Float, Int, Scheme


@frozen
class Stochastic:
    """Trains with q = clamp(floor(x/s + u) + z, qmin, qmax), u uniform in [0, 1); deployed as `inner`.

    floor(x/s + u) is x/s rounded up with probability x/s - floor(x/s), so that inside the range the mean of
    x_hat over u is x, and values on the grid do not change.  Small floats are rounded to one of their two
    neighbours in the same way.  The value for the hardware (`apply`, `export`) is deterministic: that of `inner`,
    with the scheme's rounding.  The gradients of x and of the parameters are the gradients of `inner`.

    Each forward in training draws a new u.  Gradient checkpointing recomputes with another u than the forward used,
    and silently gives other gradients, unless its `context_fn` is `qfunc.checkpoint_contexts`.

    Args:
        inner: The function that provides parameters, gradients and deployed values; it must quantize x itself and
            have no training surrogate.
    Raises:
        SpecError: at construction, an inner function with a `relax`; from `init`, a format in which values have no
            two neighbours on a grid (Log, Levels), or an inner function that does not quantize x itself.
    Source: Gupta, Agrawal, Gopalakrishnan, Narayanan, arXiv:1502.02551, section 3.1.

    >>> import torch
    >>> function, params = Stochastic(), Affine(torch.tensor(1.0), torch.tensor(0.0))
    >>> x, noise = torch.full((4,), 0.25), torch.tensor([0.0, 0.25, 0.5, 0.75])
    >>> function.relax(params, x, Scheme(), noise).tolist(), function.apply(params, x, Scheme()).tolist()
    ([0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0])
    """

    inner: Any = field(default=Fixed(), validator=plain)

    def init(self, qparams: Affine, x: Tensor, scheme: Scheme) -> Any:
        """Return the parameters of `inner`."""
        if not isinstance(scheme.format, Int | Float):
            do = "Use Fixed() for this format."
            raise SpecError(where="Stochastic", found=repr(scheme.format), wanted="an Int or a Float format", do=do)
        params = self.inner.init(qparams, x, scheme)
        require_of_x("Stochastic", self.inner, params, x, scheme)
        return params

    def learned(self, scheme: Scheme) -> tuple[str, ...]:
        """Return the names of the parameters that `inner` trains."""
        return learned_by(self.inner, scheme)

    def scaled(self, params: Any, factor: Tensor) -> Any:
        """Return the parameters for factor * x, factor > 0 in their shape: its values are factor times the values of x."""
        return scaled_by(self.inner, params, factor)

    def apply(self, params: Any, x: Tensor, scheme: Scheme) -> Tensor:
        """Return the value that the hardware represents for x: the value of `inner`, without noise."""
        value: Tensor = self.inner.apply(params, x, scheme)
        return value

    def relax(self, params: Any, x: Tensor, scheme: Scheme, noise: Tensor) -> Tensor:
        """Return x rounded stochastically; `noise` is uniform in [0, 1), in the shape of x."""
        qparams, wide = qparams_of(self.inner, params, x, scheme), widened(x.detach(), scheme)
        real, fmt = ratio(wide, qparams, scheme), scheme.format
        if isinstance(fmt, Int):
            codes = round_by(real, "stochastic", noise=noise)
            codes = codes if scheme.zero_point is None else codes + spread(qparams.zero_point, wide, scheme)
            codes = codes.clamp(fmt.qmin, fmt.qmax)
        else:
            assert isinstance(fmt, Float)  # `init` requires it
            codes = minifloat.nearest(real, fmt, "stochastic", noise)
        value = dequantize(codes, qparams, scheme).to(x.dtype)
        return with_gradient_of(self.inner.apply(params, x, scheme), value)

    def export(self, params: Any, x: Tensor, scheme: Scheme) -> tuple[Tensor, Affine]:
        """Return the codes and qparams of `inner`."""
        codes, qparams = self.inner.export(params, x, scheme)
        return codes, qparams
