"""checkpoint_contexts: gradient checkpointing with a recomputation that equals the forward."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from qfunc.errors import SpecError

Buffers = dict[tuple[nn.Module, str], Tensor]


def checkpoint_contexts(model: nn.Module) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return the contexts for `context_fn` of `torch.utils.checkpoint`: a recomputation starts from the forward's buffers.

        checkpoint(block, x, use_reentrant=False, context_fn=functools.partial(checkpoint_contexts, block))

    The noise of QDrop and of stochastic rounding is a function of buffers that each forward advances.  Weights that are
    folded with a training BatchNorm are a function of its running statistics, which each forward updates.  With these
    contexts both have the values of the forward, so gradients equal those without checkpointing, and buffers are
    updated once.  Buffers are copied at each checkpointed forward.

    Args:
        model: The checkpointed module, or one that contains it; quantized, or with quantized submodules.
    Raises:
        SpecError: `model` is not a module, or `torch.compile` compiles the call.  PyTorch runs no such contexts there:
            checkpoint the compiled block instead.

    >>> import functools
    >>> from torch.utils.checkpoint import checkpoint
    >>> model, x = nn.BatchNorm1d(3), torch.randn(4, 3, requires_grad=True)
    >>> context_fn = functools.partial(checkpoint_contexts, model)
    >>> checkpoint(model, x, use_reentrant=False, context_fn=context_fn).sum().backward()
    >>> model.num_batches_tracked.item()  # without the contexts 2
    1
    """
    if not isinstance(model, nn.Module):
        do = "Write context_fn=functools.partial(qfunc.checkpoint_contexts, block)."
        raise SpecError(where="checkpoint_contexts", found=type(model).__name__, wanted="an nn.Module", do=do)
    if torch.compiler.is_compiling():
        do = "Write checkpoint(torch.compile(block), x, use_reentrant=False, context_fn=...)."
        found, wanted = "a checkpoint inside torch.compile, which runs no contexts", "a compiled block inside the checkpoint"
        raise SpecError(where="checkpoint_contexts", found=found, wanted=wanted, do=do)
    forward = _Forward(model)
    return forward, _Recomputation(forward)


class _Forward:
    """Save copies of the buffers before the forward."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.buffers: Buffers = {}

    def __enter__(self) -> None:
        self.buffers = _copies(_buffers(self.model))

    def __exit__(self, *_: object) -> None:
        pass


class _Recomputation:
    """Replace the buffers by the saved copies during a recomputation; a retained graph may recompute several times."""

    def __init__(self, forward: _Forward) -> None:
        self.forward = forward
        self.current: Buffers = {}

    def __enter__(self) -> None:
        self.current = _buffers(self.forward.model)
        _set_buffers(_copies(self.forward.buffers))

    def __exit__(self, *_: object) -> None:
        _set_buffers(self.current)


def _buffers(model: nn.Module) -> Buffers:
    return {(m, n): b for m in model.modules() for n, b in m.named_buffers(recurse=False, remove_duplicate=False)}


def _copies(buffers: Mapping[tuple[nn.Module, str], Tensor]) -> Buffers:
    copies = {id(b): b.detach().clone() for b in buffers.values()}  # tied sites share one copy
    return {place: copies[id(b)] for place, b in buffers.items()}


def _set_buffers(buffers: Buffers) -> None:
    for (module, name), buffer in buffers.items():
        setattr(module, name, buffer)
