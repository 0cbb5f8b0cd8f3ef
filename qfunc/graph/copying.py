"""Copy a model so that a transform may modify the copy."""

from __future__ import annotations

import copy
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from qfunc.errors import CaptureError


def sharing_parameters(model: Any) -> Any:
    """Return a deep copy of a model that shares its parameters, for rewrites that replace parameters and change none.

    >>> net = nn.Linear(2, 3)
    >>> sharing_parameters(net).weight is net.weight
    True
    """
    return copy.deepcopy(model, {id(p): p for p in model.parameters()})


def device_of(model: nn.Module) -> torch.device:
    """Return the device of the first parameter or buffer; a model without tensors is on the CPU.

    >>> device_of(nn.ReLU())
    device(type='cpu')
    """
    first = next(chain(model.parameters(), model.buffers()), None)
    return torch.device("cpu") if first is None else first.device


def on_cpu(model: Any) -> Any:
    """Return a model as it is if its tensors are on the CPU, or on the meta device; else a deep copy on the CPU.

    >>> net = nn.Linear(2, 3)
    >>> on_cpu(net) is net
    True
    """
    if all(t.device.type in ("cpu", "meta") for t in chain(model.parameters(), model.buffers())):
        return model
    memo: dict[int, Any] = {id(b): b.detach().cpu() for b in model.buffers()}
    memo |= {id(p): nn.Parameter(p.detach().cpu(), requires_grad=p.requires_grad) for p in model.parameters()}
    return copy.deepcopy(model, memo).cpu()


def on_meta(model: Any) -> Any:
    """Return a deep copy of a model on the meta device, without a copy of its tensors on the way.

    >>> on_meta(nn.Linear(2, 3)).weight.is_meta
    True
    """
    memo: dict[int, Any] = {id(b): b.detach().to("meta") for b in model.buffers()}
    memo |= {id(p): nn.Parameter(p.detach().to("meta"), requires_grad=False) for p in model.parameters()}
    return copy.deepcopy(model, memo).to("meta")


def computed_tensors(model: nn.Module) -> dict[int, Tensor]:
    """Return detached copies, by id, of tensors that a forward computed and stored as attributes.

    Deepcopy refuses tensors with autograd history.

    >>> list(computed_tensors(nn.utils.parametrizations.weight_norm(nn.Linear(2, 3))))
    []
    """
    computed = (t for m in model.modules() for t in vars(m).values() if isinstance(t, Tensor) and not t.is_leaf)
    return {id(t): t.detach().clone() for t in computed}


def own_copy(model: nn.Module, memo: dict[int, Any] | None = None) -> nn.Module:
    """Return a deep copy of the model.

    Args:
        memo: Replacements for parts of the model by id, as in `copy.deepcopy`.

    Raises:
        CaptureError: the model cannot be copied.
    """
    for path, module in model.named_modules():
        if isinstance(module, nn.SyncBatchNorm) and module.process_group is not None:
            raise CaptureError(
                where=f"SyncBatchNorm {path!r}",
                found="a separate process group, which cannot be copied",
                wanted="the group of all processes",
                do="Write nn.SyncBatchNorm.convert_sync_batchnorm(model), without process_group.",
            )
    memo = {} if memo is None else memo
    memo.update(computed_tensors(model))
    try:
        return copy.deepcopy(model, memo)
    except Exception as e:
        raise CaptureError(
            where=f"copy.deepcopy of {type(model).__name__}",
            found=f"{type(e).__name__}: {e}",
            wanted="a model that can be copied",
            do="Keep objects that cannot be copied (locks, files, generators) outside the model.",
        ) from e
