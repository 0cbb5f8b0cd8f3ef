"""checkpoint_contexts: gradient checkpointing that computes again what was computed."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from qfunc.errors import SpecError

Buffers = dict[tuple[nn.Module, str], Tensor]


def checkpoint_contexts(model: nn.Module) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """The `context_fn` of `torch.utils.checkpoint`: a recomputation starts from the buffers that the forward started from.

        checkpoint(block, x, use_reentrant=False, context_fn=functools.partial(checkpoint_contexts, block))

    The noise of QDrop and of stochastic rounding is a function of buffers that each forward advances, and weights folded
    beside a BatchNorm that trains are a function of its running statistics, which each forward updates.  With these
    contexts both are as in the forward, so that gradients equal those without checkpointing; and what the forward
    advanced and updated counts once.  Buffers are copied at each checkpointed forward.

    Args:
        model: The module whose forward is checkpointed, or one that holds it; quantized, or with quantized submodules.
    Raises:
        SpecError: no module; or it is called by what `torch.compile` compiles, where PyTorch runs no such contexts: checkpoint
            the compiled block instead.

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
        found, wanted = "a checkpoint within torch.compile, which runs no contexts", "a compiled block within the checkpoint"
        raise SpecError(where="checkpoint_contexts", found=found, wanted=wanted, do=do)
    forward = _Forward(model)
    return forward, _Again(forward)


class _Forward:
    """Remembers the buffers."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.buffers: Buffers = {}

    def __enter__(self) -> None:
        self.buffers = _copies(_buffers(self.model))

    def __exit__(self, *_: object) -> None:
        pass


class _Again:
    """Puts copies of what was remembered in the place of the buffers, for a while; as often as a kept graph is gone back."""

    def __init__(self, forward: _Forward) -> None:
        self.forward = forward
        self.now: Buffers = {}

    def __enter__(self) -> None:
        self.now = _buffers(self.forward.model)
        _put(_copies(self.forward.buffers))

    def __exit__(self, *_: object) -> None:
        _put(self.now)


def _buffers(model: nn.Module) -> Buffers:
    return {(m, n): b for m in model.modules() for n, b in m.named_buffers(recurse=False, remove_duplicate=False)}


def _copies(buffers: Mapping[tuple[nn.Module, str], Tensor]) -> Buffers:
    copies = {id(b): b.detach().clone() for b in buffers.values()}  # one for what tied sites share
    return {place: copies[id(b)] for place, b in buffers.items()}


def _put(buffers: Buffers) -> None:
    for (module, name), buffer in buffers.items():
        setattr(module, name, buffer)


__all__ = ["checkpoint_contexts"]
