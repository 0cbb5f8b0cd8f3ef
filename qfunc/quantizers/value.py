"""The value of a FakeQuantize as pure functions of tensors, so that it can be recomputed."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from qfunc.numerics.noise import uniform
from qfunc.quantizers.batch_norm import divide, multiply
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

    def plain(self, x: Tensor, *tensors: Tensor) -> Tensor:
        """Return Q(x)."""
        params = unflatten(self.template, dict(zip(self.names, tensors, strict=False)).__getitem__)
        if not self.relaxed:
            return self.function.apply(params, x, self.scheme)  # type: ignore[no-any-return]
        seed_and_step = tensors[len(self.names) :]
        noise = uniform(x.shape, *seed_and_step) if seed_and_step else None
        return self.function.relax(params, x, self.scheme, noise)  # type: ignore[no-any-return]

    def turned(self, w: Tensor, sign: Tensor, *tensors: Tensor) -> Tensor:
        """Return Q(w sign) sign."""
        return multiply(self.plain(multiply(w, sign, self.groups), *tensors), sign, self.groups)

    def folded(self, w: Tensor, f: Tensor, least: Tensor, *tensors: Tensor) -> Tensor:
        """Return Q(w f)."""
        return self.plain(multiply(w, f, self.groups), *tensors)

    def unfolded(self, w: Tensor, f: Tensor, least: Tensor, *tensors: Tensor) -> Tensor:
        """Return Q(w f) / f, but w itself in the channels where `least` is True."""
        return divide(self.folded(w, f, least, *tensors), w, f, least, self.groups)


__all__ = ["Value"]
