"""Hooks of the captured module itself: no captured graph has them, so they are refused or transferred."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

from qfunc.errors import CaptureError

_FORWARD = ("_forward_hooks", "_forward_pre_hooks")
_HOOKS = (
    *_FORWARD, "_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs",
    "_backward_hooks", "_backward_pre_hooks", "_is_full_backward_hook",
)  # fmt: skip


def require_no_hooks(model: nn.Module) -> None:
    """Refuse hooks on the model itself, which run outside its traced forward; hooks on submodules are traced.

    Raises:
        CaptureError: the model has such hooks.
    """
    if any(vars(model).get(name) for name in _FORWARD):
        raise CaptureError(
            where=f"capture of {type(model).__name__}",
            found="forward hooks on the model itself",
            wanted="hooks on submodules, which are traced",
            do="Remove them, put the model into an nn.Sequential, or give example_inputs=(...,).",
        )


def without_hooks(model: nn.Module) -> nn.Module:
    """Return a shallow copy without hooks, which shares the tensors and submodules.

    >>> linear = nn.Linear(2, 2)
    >>> _ = linear.register_forward_hook(print)
    >>> len(without_hooks(linear)._forward_hooks), len(linear._forward_hooks)
    (0, 1)
    """
    copied = copy.copy(model)
    vars(copied).update({name: type(vars(copied)[name])() for name in _HOOKS if vars(copied).get(name)})
    return copied


def transfer_hooks(old: nn.Module, new: nn.Module, memo: dict[int, Any]) -> None:
    """Copy the hooks of an old module to a new one; `memo` maps ids of modules to their replacements.

    The hook with which a module of torch.export checks its inputs is not copied: captured programs have separate checks.
    """
    for name in _HOOKS:
        if vars(old).get(name):
            hooks = vars(new)[name] = copy.deepcopy(vars(old)[name], memo)
            if name in _FORWARD:
                for key in [k for k, hook in hooks.items() if str(getattr(hook, "__module__", "")).startswith("torch.export")]:
                    del hooks[key]
