"""Helpers of functions that wrap another one: its qparams and gradient, and the checks that it can be wrapped."""

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
    """Validate a quantize function: raise SpecError if it has a training surrogate (`relax`)."""
    wrapped(instance, attribute, value)
    if isinstance(value, RelaxedFunction):
        wanted = "a function that trains with `apply`, without a `relax`"
        raise refuse(instance, attribute.name, value, wanted, "Wrap its inner function instead.")


def learned_by(inner: Any, scheme: Scheme) -> tuple[str, ...]:
    """Return the names of the parameters that the inner function trains."""
    return tuple(inner.learned(scheme)) if isinstance(inner, LearnedFunction) else ()


def scaled_by(inner: Any, params: Any, factor: Tensor) -> Any:
    """Return the inner function's parameters for factor * x; None if it does not support scaling."""
    return inner.scaled(params, factor) if isinstance(inner, ScalableFunction) else None


def qparams_of(inner: Any, params: Any, x: Tensor, scheme: Scheme) -> Affine:
    """Return the qparams that the inner function exports, without gradient."""
    qparams: Affine = params if type(inner) is Fixed else inner.export(params, x.detach(), scheme)[1]
    outer = None if qparams.outer is None else qparams.outer.detach()
    return Affine(qparams.scale.detach(), qparams.zero_point.detach(), outer)


def require_of_x(name: str, inner: Any, params: Any, x: Tensor, scheme: Scheme) -> None:
    """Raise SpecError if an inner function quantizes another tensor than x, such as tanh(x); needs a constant x."""
    codes, qparams = inner.export(params, x.detach(), scheme)
    codes_of_x = quantize(x.detach(), qparams, scheme)
    if not torch.equal(codes.nan_to_num(), codes_of_x.nan_to_num()):
        wanted, do = "a function that quantizes x itself", "Use Fixed() or Lsq() inside."
        raise SpecError(where=f"{name}.inner", found=repr(inner), wanted=wanted, do=do)


def ratio(x: Tensor, qparams: Affine, scheme: Scheme) -> Tensor:
    """Return x / s, or x * (1/s) for schemes without `division`."""
    scale = step(qparams, x, scheme)
    return x / scale if scheme.division else x * (1 / scale)


def with_gradient_of(surrogate: Tensor, value: Tensor) -> Tensor:
    """Return `value` with the gradient of `surrogate`."""
    return straight_through(surrogate, value.detach(), torch.ones((), dtype=value.dtype, device=value.device))
