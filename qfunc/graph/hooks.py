"""Hooks of the module that is captured itself: no road's graph has them, so they are refused or handed over."""

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
    """Refuses hooks that would run around the forward that is traced; those of submodules are traced with it.

    Raises:
        CaptureError: there are some.
    """
    if any(vars(model).get(name) for name in _FORWARD):
        raise CaptureError(
            where=f"capture of {type(model).__name__}",
            found="forward hooks on the model itself",
            wanted="hooks on submodules, which are traced",
            do="Remove them, put the model into an nn.Sequential, or give example_inputs=(...,).",
        )


def without_hooks(model: nn.Module) -> nn.Module:
    """A shallow copy that has none; it shares the tensors and submodules.

    >>> linear = nn.Linear(2, 2)
    >>> _ = linear.register_forward_hook(print)
    >>> len(without_hooks(linear)._forward_hooks), len(linear._forward_hooks)
    (0, 1)
    """
    bare = copy.copy(model)
    vars(bare).update({name: type(vars(bare)[name])() for name in _HOOKS if vars(bare).get(name)})
    return bare


def transfer_hooks(old: nn.Module, new: nn.Module, memo: dict[int, Any]) -> None:
    """Gives a new module copies of what an old one has of hooks; `memo` has by id what stands for other modules.

    The hook by which a module of torch.export checks its inputs stays there: captured programs have checks of their own.
    """
    for name in _HOOKS:
        if vars(old).get(name):
            held = vars(new)[name] = copy.deepcopy(vars(old)[name], memo)
            if name in _FORWARD:
                for key in [k for k, hook in held.items() if str(getattr(hook, "__module__", "")).startswith("torch.export")]:
                    del held[key]


__all__ = ["transfer_hooks", "require_no_hooks", "without_hooks"]
