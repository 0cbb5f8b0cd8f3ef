"""What the functions that wrap another one share: its qparams, its gradient, and what they ask of it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from qfunc.errors import SpecError
from qfunc.functions.fixed import Fixed
from qfunc.numerics._grads import straight_through
from qfunc.numerics.affine import quantize, step
from qfunc.numerics.qparams import Affine
from qfunc.specs import Scheme
from qfunc.specs._check import implements, refuse
from qfunc.specs.protocols import Function, LearnedFunction, RelaxedFunction, ScalableFunction

wrapped = implements(Function)


def plain(instance: Any, attribute: Any, value: Any) -> None:
    """Validator: a quantize function without a training surrogate of its own."""
    wrapped(instance, attribute, value)
    if isinstance(value, RelaxedFunction):
        wanted = "a function whose training value is its `apply`, not another `relax`"
        raise refuse(instance, attribute.name, value, wanted, "Wrap the innermost function.")


def learned_by(inner: Any, scheme: Scheme) -> tuple[str, ...]:
    """The names of the parameters that the inner function trains."""
    return tuple(inner.learned(scheme)) if isinstance(inner, LearnedFunction) else ()


def scaled_by(inner: Any, params: Any, factor: Tensor) -> Any:
    """The inner function's parameters for factor * x; None if it knows none."""
    return inner.scaled(params, factor) if isinstance(inner, ScalableFunction) else None


def qparams_of(inner: Any, params: Any, x: Tensor, scheme: Scheme) -> Affine:
    """The qparams that the inner function exports, without gradient."""
    qparams: Affine = params if type(inner) is Fixed else inner.export(params, x.detach(), scheme)[1]
    outer = None if qparams.outer is None else qparams.outer.detach()
    return Affine(qparams.scale.detach(), qparams.zero_point.detach(), outer)


def require_of_x(name: str, inner: Any, params: Any, x: Tensor, scheme: Scheme) -> None:
    """Refuses an inner function that quantizes another tensor than x, such as tanh(x); seen on constants only."""
    codes, qparams = inner.export(params, x.detach(), scheme)
    direct = quantize(x.detach(), qparams, scheme)
    if not torch.equal(codes.nan_to_num(), direct.nan_to_num()):
        wanted, do = "a function that quantizes x itself", "Use Fixed() or Lsq() inside."
        raise SpecError(where=f"{name}.inner", found=repr(inner), wanted=wanted, do=do)


def ratio(x: Tensor, qparams: Affine, scheme: Scheme) -> Tensor:
    """x / s, or x * (1/s) where the scheme says so."""
    scale = step(qparams, x, scheme)
    return x / scale if scheme.division else x * (1 / scale)


def with_gradient_of(surrogate: Tensor, value: Tensor) -> Tensor:
    """`value`, whose gradient is that of `surrogate`."""
    return straight_through(surrogate, value.detach(), torch.ones((), dtype=value.dtype, device=value.device))
