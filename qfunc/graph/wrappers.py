"""Remove the wrappers of torch.compile and of data-parallel training, around a model or around its submodules."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from qfunc.errors import CaptureError, a_or_an


def unwrap(model: Any) -> nn.Module:
    """Return the module inside the wrappers of torch.compile and of data-parallel training.

    Raises:
        CaptureError: `model` is not a module that can be captured, for example a scripted one.
    """
    if not isinstance(model, nn.Module):
        kind = isinstance(model, type)
        do = f"Create an instance: {model.__name__}(...)." if kind else "Pass the module itself."
        found = f"the class {model.__name__}" if kind else type(model).__name__
        raise CaptureError(where="capture", found=found, wanted="an nn.Module or an ExportedProgram", do=do)
    inner = getattr(model, "_orig_mod", None)  # torch.compile's wrapper
    if isinstance(inner, nn.Module):
        return unwrap(inner)
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        return unwrap(model.module)
    if isinstance(model, torch.jit.ScriptModule):
        do = "Pass the eager module from which it was scripted."
        raise CaptureError(where="capture", found="a TorchScript module", wanted="an eager nn.Module", do=do)
    if type(model).__name__ == "FullyShardedDataParallel":  # its import would cost seconds
        do = "Pass the module before it is wrapped, with the full state_dict loaded."
        raise CaptureError(where="capture", found="a FullyShardedDataParallel", wanted="unsharded tensors", do=do)
    if type(model).forward is nn.Module.forward and "forward" not in vars(model):
        found, do = f"{a_or_an(type(model))} without a forward", "Pass the model that runs its entries, or one of them."
        raise CaptureError(where="capture", found=found, wanted="a module with a forward", do=do)
    return model


def unwrap_inside(model: nn.Module) -> bool:
    """Replace wrapped submodules by the modules inside, in place.  Return True if there were any.

    >>> model = nn.Sequential(nn.DataParallel(nn.ReLU()))
    >>> unwrap_inside(model)
    True
    >>> model
    Sequential(
      (0): ReLU()
    )
    """
    found = False
    for module in list(model.modules()):
        for name, child in module._modules.items():
            wraps = isinstance(child, nn.DataParallel | nn.parallel.DistributedDataParallel)
            if child is not None and (wraps or isinstance(getattr(child, "_orig_mod", None), nn.Module)):
                module._modules[name], found = unwrap(child), True
    return found


__all__ = ["unwrap_inside", "unwrap"]
