"""QDrop: in training, quantize each element with a given probability and leave it float otherwise."""

from __future__ import annotations

from typing import Any

import torch
from attrs import field, frozen
from torch import Tensor

from qfunc.functions._inner import learned_by, scaled_by, wrapped
from qfunc.functions.fixed import Fixed
from qfunc.numerics.qparams import Affine
from qfunc.specs import Scheme
from qfunc.specs._check import refuse
from qfunc.specs.protocols import RelaxedFunction


def _probability(instance: Any, attribute: Any, value: Any) -> None:
    if type(value) not in (int, float) or not 0 < value <= 1:
        raise refuse(instance, attribute.name, value, "a number in (0, 1]", "Give such a number.")


@frozen
class QDrop:
    """Trains with x_hat_i = inner(x)_i where u_i < p, else x_i, u uniform in [0, 1); deployed as `inner`.

    Where an element is quantized, the gradient is that of `inner`; elsewhere only x gets a gradient, 1.  An inner
    function with its own `relax` gets u/p, which is uniform in [0, 1) where u < p.

    Each forward in training draws a new u.  Gradient checkpointing recomputes with another u than the forward used,
    and silently gives other gradients, unless its `context_fn` is `qfunc.checkpoint_contexts`.

    Args:
        inner: The quantize function.
        p: The probability in (0, 1] that an element is quantized; 1 is `inner` itself.
    Raises:
        SpecError: a probability outside (0, 1].
    Source: Wei, Gong, Li, Liu, Yu, arXiv:2203.05740 (p = 1/2; the dropped elements are those left float).

    >>> function, params = QDrop(p=0.5), Affine(torch.tensor(1.0), torch.tensor(0.0))
    >>> x, noise = torch.tensor([0.75, 0.75]), torch.tensor([0.2, 0.7])
    >>> function.relax(params, x, Scheme(), noise).tolist()
    [1.0, 0.75]
    """

    inner: Any = field(default=Fixed(), validator=wrapped)
    p: float = field(default=0.5, validator=_probability)

    def init(self, qparams: Affine, x: Tensor, scheme: Scheme) -> Any:
        """Return the parameters of `inner`."""
        return self.inner.init(qparams, x, scheme)

    def learned(self, scheme: Scheme) -> tuple[str, ...]:
        """Return the names of the parameters that `inner` trains."""
        return learned_by(self.inner, scheme)

    def scaled(self, params: Any, factor: Tensor) -> Any:
        """Return the parameters for factor * x, factor > 0 in their shape: its values are factor times the values of x."""
        return scaled_by(self.inner, params, factor)

    def apply(self, params: Any, x: Tensor, scheme: Scheme) -> Tensor:
        """Return the value that the hardware represents for x: every element is quantized."""
        value: Tensor = self.inner.apply(params, x, scheme)
        return value

    def relax(self, params: Any, x: Tensor, scheme: Scheme, noise: Tensor) -> Tensor:
        """Return x quantized where the noise is below p; the noise is uniform in [0, 1), in the shape of x."""
        if isinstance(self.inner, RelaxedFunction):
            inner_noise = (noise / self.p).clamp(max=1 - 2.0**-24)
            value: Tensor = self.inner.relax(params, x, scheme, inner_noise)
        else:
            value = self.inner.apply(params, x, scheme)
        return torch.where(noise < self.p, value, x)

    def export(self, params: Any, x: Tensor, scheme: Scheme) -> tuple[Tensor, Affine]:
        """Return the codes and qparams of `inner`."""
        codes, qparams = self.inner.export(params, x, scheme)
        return codes, qparams
