"""Copy a model so that a transform may change the copy."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn

from qfunc.errors import CaptureError

__all__ = ["computed_tensors"]


def computed_tensors(model: nn.Module) -> dict[int, Tensor]:
    """What a forward computed and left behind as attributes, by id, without its history, which cannot be copied.

    >>> list(computed_tensors(nn.utils.parametrizations.weight_norm(nn.Linear(2, 3))))
    []
    """
    held = (t for m in model.modules() for t in vars(m).values() if isinstance(t, Tensor) and not t.is_leaf)
    return {id(t): t.detach().clone() for t in held}


def own_copy(model: nn.Module, memo: dict[int, Any] | None = None) -> nn.Module:
    """A deep copy, as a forward may write attributes; `memo` has by id what stands for parts of the model.

    Raises:
        CaptureError: the model cannot be copied.
    """
    for path, module in model.named_modules():
        if isinstance(module, nn.SyncBatchNorm) and module.process_group is not None:
            raise CaptureError(
                where=f"SyncBatchNorm {path!r}",
                found="a process group of its own, which cannot be copied",
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
            do="Keep what cannot be copied (locks, files, generators) outside of the model.",
        ) from e
