"""Replace parametrized weights (weight norm, spectral norm, parametrizations) by plain parameters."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils import parametrize, remove_spectral_norm, remove_weight_norm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm


def remove_parametrizations(model: nn.Module) -> bool:
    """Replace parametrized weights by plain parameters with their values in evaluation, in place.

    Return True if there were any.

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
            _materialize(module)
        for hook in list(module._forward_pre_hooks.values()):
            if isinstance(hook, WeightNorm):
                remove_weight_norm(module, hook.name)
            elif isinstance(hook, SpectralNorm):
                with torch.no_grad():
                    remove_spectral_norm(module, hook.name)
        module.training = training
    return changed


def _materialize(module: nn.Module) -> None:
    # torch's remove_parametrizations would modify the module's class, which the user's module shares.
    for inner in module.modules():
        inner.training = False
    parametrizations: nn.Module = module._modules["parametrizations"]  # type: ignore[assignment]
    with torch.no_grad():
        values = {name: getattr(module, name).clone() for name, _ in parametrizations.named_children()}
    trained = any(p.requires_grad for p in parametrizations.parameters())
    module.__class__ = parametrize.type_before_parametrizations(module)
    del module._modules["parametrizations"]
    for name, value in values.items():
        module.register_parameter(name, nn.Parameter(value, requires_grad=trained))
