"""The value of a FakeQuantize as pure functions of tensors, so that it can be recomputed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from qfunc.numerics.noise import uniform
from qfunc.quantizers.batch_norm import divide, multiply, sign, weight_factor
from qfunc.quantizers.params import unflatten
from qfunc.specs import Scheme


class Value(NamedTuple):  # not attrs', whose __init__ Dynamo cannot trace
    """Q(x), and the quantized weight before a BatchNorm that trains (`qfunc.quantizers.batch_norm`).

    `*tensors` are the params of the quantize function, then the seed and the step of the noise if there is noise.
    """

    function: Any
    scheme: Scheme
    template: Any
    names: tuple[str, ...]
    relaxed: bool
    groups: int

    def work(self, norm: Any, batch: bool, follows: bool, odd: bool) -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
        """Return the function to compute, and the tensors that it takes between x and the params.

        Args:
            norm: The BatchNorm that trains after the op with weight x, or None.
            batch: Whether the norm normalizes by the batch.
            follows: Whether the scales belong to the weight before folding.
            odd: Whether Q(-x) = -Q(x).
        """
        if norm is None or (follows and odd):
            return self.quantize, ()
        if follows:
            return self.quantize_signed, (sign(norm),)
        return self.quantize_unfolded if batch else self.quantize_folded, weight_factor(norm)

    def quantize(self, x: Tensor, *tensors: Tensor) -> Tensor:
        """Return Q(x)."""
        params = unflatten(self.template, dict(zip(self.names, tensors, strict=False)).__getitem__)
        if not self.relaxed:
            return self.function.apply(params, x, self.scheme)  # type: ignore[no-any-return]
        seed_and_step = tensors[len(self.names) :]
        noise = uniform(x.shape, *seed_and_step) if seed_and_step else None
        return self.function.relax(params, x, self.scheme, noise)  # type: ignore[no-any-return]

    def quantize_signed(self, w: Tensor, signs: Tensor, *tensors: Tensor) -> Tensor:
        """Return Q(w signs) signs."""
        return multiply(self.quantize(multiply(w, signs, self.groups), *tensors), signs, self.groups)

    def quantize_folded(self, w: Tensor, f: Tensor, tiny: Tensor, *tensors: Tensor) -> Tensor:
        """Return Q(w f)."""
        return self.quantize(multiply(w, f, self.groups), *tensors)

    def quantize_unfolded(self, w: Tensor, f: Tensor, tiny: Tensor, *tensors: Tensor) -> Tensor:
        """Return Q(w f) / f, but w itself in the channels where `tiny` is True."""
        return divide(self.quantize_folded(w, f, tiny, *tensors), w, f, tiny, self.groups)
