"""The cases of `check_function`: schemes of every format and granularity, tensors with ties and out-of-range values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from qfunc.errors import SpecError
from qfunc.numerics.affine import dequantize, quantize, step
from qfunc.numerics.qparams import Affine, of_tensor
from qfunc.quantizers.params import flatten, template, unflatten
from qfunc.specs import Int, Levels, Log, PerBlock, PerChannel, Scale, Scheme, ZeroPoint
from qfunc.specs.formats import E4M3FN
from qfunc.specs.protocols import LearnedFunction, RelaxedFunction

SHAPE = (3, 5, 8)

WEIGHTS = (
    Scheme(Int(8, low=-127)),
    Scheme(Int(4), Scale(PerChannel(0))),
    Scheme(Int(4), Scale(PerChannel(0)), ZeroPoint()),
    Scheme(Int(8, signed=False), Scale(PerBlock(-1, 4)), ZeroPoint(), division=False),
    Scheme(Int(3), Scale(power_of_two=True)),
    Scheme(E4M3FN, Scale(PerChannel(0))),
    Scheme(Levels((-1.0, -0.5, -0.1, 0.0, 0.2, 0.6, 1.0)), Scale(PerChannel(0))),
    Scheme(Log()),
)
ACTIVATIONS = (
    Scheme(Int(8, signed=False), zero_point=ZeroPoint()),
    Scheme(Int(8)),
    Scheme(Int(4, signed=False), zero_point=ZeroPoint(value=0)),
    Scheme(Int(3), Scale(power_of_two=True), division=False),
    Scheme(E4M3FN),
    Scheme(Levels((-1.0, 0.0, 0.3, 1.0))),
    Scheme(Log()),
)


@frozen(eq=False)
class FunctionCase:
    """One scheme and one tensor: a constant, from which parameters are initialized, or the batch of an activation."""

    function: Any
    scheme: Scheme
    constant: bool
    x: Tensor
    qparams: Affine
    noise: Tensor

    def params(self, x: Tensor | None = None, qparams: Affine | None = None, scheme: Scheme | None = None) -> Any:
        """Return the function's parameters for this case, or for another x, qparams or scheme."""
        seen = (self.x if x is None else x) if self.constant else torch.zeros(())
        return self.function.init(qparams or self.qparams, seen, scheme or self.scheme)

    def apply(self, params: Any, x: Tensor) -> Tensor:
        """Return the deployed value of x."""
        value: Tensor = self.function.apply(params, x, self.scheme)
        return value

    def trained(self, params: Any, x: Tensor) -> Tensor:
        """Return the value in training."""
        if not isinstance(self.function, RelaxedFunction):
            return self.apply(params, x)
        value: Tensor = self.function.relax(params, x, self.scheme, self.noise)
        return value

    def learned(self) -> tuple[str, ...]:
        """Return the names of the parameters that train."""
        return tuple(self.function.learned(self.scheme)) if isinstance(self.function, LearnedFunction) else ()

    def kept(self, params: Any) -> tuple[Any, dict[str, Tensor]]:
        """Return params as a template for `rebuild_params`, and its tensors by name."""
        return template(params), dict(flatten(params))


def rebuild_params(kept: Any, tensors: dict[str, Tensor]) -> Any:
    """Return the parameters rebuilt from a template and tensors by name."""
    return unflatten(kept, tensors.__getitem__)


def each(f: Callable[[Tensor], Tensor], qparams: Affine) -> Affine:
    """Apply f to every tensor of the qparams."""
    return Affine(f(qparams.scale), f(qparams.zero_point), None if qparams.outer is None else f(qparams.outer))


def cases(function: Any, schemes: Iterable[Scheme], constant: bool, examples: int) -> Iterator[FunctionCase]:
    """Yield `examples` cases for every scheme that the function's `init` accepts.

    Raises:
        AssertionError: it accepts no scheme.
    """
    schemes, refused = tuple(schemes), list[str]()
    for scheme in schemes:
        for seed in range(examples):
            case = _case(function, scheme, constant, seed)
            try:
                case.params()
            except SpecError as e:
                refused.append(str(e))
                break
            yield case
    if len(refused) == len(schemes):
        last = f"the last one: {refused[-1]}" if refused else "there is none"
        raise AssertionError(f"check_function({function!r}): parameters: init accepts no scheme; {last}")


def _case(function: Any, scheme: Scheme, constant: bool, seed: int) -> FunctionCase:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(SHAPE, generator=generator) * torch.tensor([0.3, 1.0, 2.5]).reshape(3, 1, 1)
    qparams = of_tensor(x, scheme)
    # Ties of integers, half a step above the grid; zeros, values out of range, and tiny values.
    grid = dequantize(quantize(x, qparams, scheme), qparams, scheme)
    tie = grid + step(qparams, x, scheme) / 2
    place = torch.arange(x.numel()).reshape(SHAPE) % 11
    x = torch.where(place == 1, tie, torch.where(place == 4, x * 3, torch.where(place == 6, x * 1e-6, x)))
    x = torch.where(place == 8, torch.zeros_like(x), x)
    return FunctionCase(function, scheme, constant, x, qparams, torch.rand(SHAPE, generator=generator))


def slope(f: Callable[[Any, Tensor], Tensor], params: Any, x: Tensor, upstream: Tensor | None = None) -> Tensor:
    """Return the gradient of sum(f(params, x) * upstream) with respect to x; zeros if there is none."""
    x = x.detach().clone().requires_grad_()
    value = f(params, x)
    weight = torch.ones_like(value) if upstream is None else upstream
    (gradient,) = torch.autograd.grad((value * weight).sum(), x, allow_unused=True, materialize_grads=True)
    return gradient


def same(a: Tensor, b: Tensor) -> bool:
    """Return True if shapes and values are equal; NaN equals NaN."""
    return a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())


def differ(x: Tensor, found: Tensor, wanted: Tensor, words: str, nearly: bool = False) -> str | None:
    """Return a description of the first difference, or None; `nearly` tolerates differences in the last bits."""
    # nearly: the last bits of sigmoid and tanh differ between a vectorised loop and its scalar remainder, so surrogates
    # and gradients depend on the shape of a batch; 8 ulp of the largest value allow for a short sum of them.
    if found.shape != wanted.shape:
        return f"shape {tuple(found.shape)}, {words} {tuple(wanted.shape)}"
    good = (found == wanted) | (found.isnan() & wanted.isnan())
    if nearly:
        good |= (found - wanted).abs() <= 2.0**-20 * wanted.abs().amax()
    if good.all():
        return None
    index = tuple(int(i) for i in (~good).nonzero()[0])
    place = f"first x{list(index)} = {x[index]}"
    return f"{int((~good).sum())} of {good.numel()} differ, {place}: found {found[index]}, {words} {wanted[index]}"


def unlike(x: Tensor, found: Tensor, good: Tensor, wanted: str) -> str | None:
    """Return a description of the first element that is not good, or None."""
    if good.all():
        return None
    index = tuple(int(i) for i in (~good).nonzero()[0])
    return f"x{list(index)} = {x[index]}: found {found[index]}, wanted {wanted}"
