"""Convert the parameters of quantize functions, nested NamedTuples of tensors, to named tensors and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor


def flatten(params: Any, path: tuple[str, ...] = ()) -> list[tuple[str, Tensor]]:
    """Return the tensors of params with their names; nested field names are joined, as in `inner_scale`.

    >>> import torch
    >>> from qfunc.numerics.qparams import Affine
    >>> [name for name, _ in flatten(Affine(torch.ones(()), torch.zeros(())))]
    ['scale', 'zero_point']
    """
    if isinstance(params, Tensor):
        return [("_".join(path) or "value", params)]
    fields = zip(getattr(params, "_fields", ()), params, strict=True) if isinstance(params, tuple) else ()
    return [pair for name, value in fields for pair in flatten(value, (*path, name))]


def template(params: Any, path: tuple[str, ...] = ()) -> Any:
    """Return params with each tensor replaced by its name, the template of `unflatten`."""
    if isinstance(params, Tensor):
        return "_".join(path) or "value"
    if not isinstance(params, tuple):
        return params
    return type(params)(*(template(value, (*path, name)) for name, value in zip(params._fields, params, strict=True)))  # type: ignore[attr-defined]


def unflatten(template: Any, tensor: Callable[[str], Tensor]) -> Any:
    """Return params rebuilt from a template and a function from a name to its tensor."""
    if isinstance(template, str):
        return tensor(template)
    return type(template)(*(unflatten(value, tensor) for value in template)) if isinstance(template, tuple) else template
