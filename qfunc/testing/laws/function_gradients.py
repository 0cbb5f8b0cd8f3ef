"""Laws of a quantize function's gradients and tracing: each returns a description of the violation, or None."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from qfunc.specs.protocols import RelaxedFunction
from qfunc.testing.laws.function_cases import SHAPE, FunctionCase, differ, rebuild_params, slope, unlike


def _gradient(case: FunctionCase) -> str | None:
    gradient = slope(case.apply, case.params(), case.x)
    if not gradient.isfinite().all():
        return unlike(case.x, gradient, gradient.isfinite(), "a finite gradient")
    return None if gradient.any() else "the gradient to x is 0 everywhere"


def _saturation(case: FunctionCase) -> str | None:
    params, far = case.params(), 1e6 * case.x.abs().amax().clamp(min=1.0)
    for sign in (1, -1):
        x = torch.full(SHAPE, float(sign * far))
        gradient = slope(case.apply, params, x)
        if gradient.any():
            return unlike(x, gradient, gradient == 0, "the gradient 0")
    return None


def _learned(case: FunctionCase) -> str | None:
    names, seen = case.learned(), set[str]()
    kept, tensors = case.kept(case.params())
    for factor in (1.0, 1.7, 0.4) if names else ():
        leaves = {n: t.detach().clone().requires_grad_(n in names) for n, t in tensors.items()}
        loss = (case.trained(rebuild_params(kept, leaves), case.x * factor) * (case.noise + 0.5)).sum()
        wanted = [leaves[n] for n in names] if loss.requires_grad else []
        gradients = torch.autograd.grad(loss, wanted, allow_unused=True) if wanted else (None,) * len(names)
        for name, gradient in zip(names, gradients, strict=True):
            if gradient is not None and not gradient.isfinite().all():
                return f"the gradient to {name!r} is not finite: {gradient}"
            seen |= {name} if gradient is not None and gradient.any() else set()
    untrained = [n for n in names if n not in seen]
    return f"{', '.join(map(repr, untrained))} never gets a gradient: it would not train" if untrained else None


def _relax(case: FunctionCase) -> str | None:
    if not isinstance(case.function, RelaxedFunction):
        return None
    params = case.params()
    value, gradient = case.trained(params, case.x), slope(case.trained, params, case.x)
    for name, t in (("value", value), ("gradient to x", gradient)):
        if not t.isfinite().all():
            return f"its {name}: {unlike(case.x, t, t.isfinite(), 'a finite one')}"
    return None


def _func(case: FunctionCase) -> str | None:
    params = [case.params(qparams=case.qparams._replace(scale=case.qparams.scale * k)) for k in (1.0, 2.0, 0.5)]
    kept, _ = case.kept(params[0])
    tensors = [case.kept(p)[1] for p in params]
    stacked = {n: torch.stack([t[n] for t in tensors]) for n in tensors[0]}
    xs, upstream = case.x.expand(3, *SHAPE), case.noise + 0.5
    for name, f in _forms(case):
        mapped = torch.func.vmap(lambda t, x, f=f: f(rebuild_params(kept, t), x))
        loop = torch.stack([f(p, case.x) for p in params])
        if bad := differ(xs, mapped(stacked, xs), loop, "the loop gives", name == "relax"):
            return f"vmap of {name} over parameters, {bad}"
        # Inside vmap under grad x.requires_grad is False.
        gradient = torch.func.grad(lambda x, mapped=mapped: (mapped(stacked, x) * upstream).sum())(xs)
        loop = torch.stack([slope(f, p, case.x, upstream) for p in params])
        if bad := differ(xs, gradient, loop, "autograd in a loop gives", True):
            return f"grad of vmap of {name}, {bad}"
    return None


def _compile(case: FunctionCase) -> str | None:
    params = case.params()
    for name, f in _forms(case):
        torch.compiler.reset()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, about autograd.Function
            compiled = torch.compile(lambda p, x, f=f: f(p, x), fullgraph=True, backend="aot_eager")
            x = case.x.clone().requires_grad_()
            value = compiled(params, x)
            (gradient,) = torch.autograd.grad(value.sum(), x, allow_unused=True, materialize_grads=True)
        if bad := differ(case.x, value.detach(), f(params, case.x), "eager gives", name != "apply"):
            return f"{name}, {bad}"
        if bad := differ(case.x, gradient, slope(f, params, case.x), "eager gives", True):
            return f"gradient of {name}, {bad}"
    return None


def _forms(case: FunctionCase) -> tuple[tuple[str, Callable[[Any, Tensor], Tensor]], ...]:
    return (("apply", case.apply), *((("relax", case.trained),) if isinstance(case.function, RelaxedFunction) else ()))


GRADIENTS: dict[str, Callable[[FunctionCase], str | None]] = {
    "gradient": _gradient,
    "saturation": _saturation,
    "learned": _learned,
    "relax": _relax,
    "func": _func,
    "compile": _compile,
}
