"""Weights that modules of torch compute anew at each call (weight and spectral norms, parametrizations), made plain."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils import parametrize, remove_spectral_norm, remove_weight_norm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

__all__ = ["remove_parametrizations"]


def remove_parametrizations(model: nn.Module) -> bool:
    """Gives the (own) model's modules the weights that they have in evaluation, as parameters; whether there were any.

    >>> model = nn.utils.parametrizations.weight_norm(nn.Linear(2, 3))
    >>> remove_parametrizations(model)
    True
    >>> sorted(name for name, _ in model.named_parameters())
    ['bias', 'weight']
    """
    changed = False
    for module in list(model.modules()):
        training = module.training
        if parametrize.is_parametrized(module):
            changed = True
            _plain(module)
        for hook in list(module._forward_pre_hooks.values()):
            if isinstance(hook, WeightNorm):
                remove_weight_norm(module, hook.name)
            elif isinstance(hook, SpectralNorm):
                with torch.no_grad():
                    remove_spectral_norm(module, hook.name)
        module.training = training
    return changed


def _plain(module: nn.Module) -> None:
    # torch's remove_parametrizations would write to the module's class, which is that of the user's module, too.
    for inner in module.modules():
        inner.training = False
    held: nn.Module = module._modules["parametrizations"]  # type: ignore[assignment]
    with torch.no_grad():
        values = {name: getattr(module, name).clone() for name, _ in held.named_children()}
    trained = any(p.requires_grad for p in held.parameters())
    module.__class__ = parametrize.type_before_parametrizations(module)
    del module._modules["parametrizations"]
    for name, value in values.items():
        module.register_parameter(name, nn.Parameter(value, requires_grad=trained))
