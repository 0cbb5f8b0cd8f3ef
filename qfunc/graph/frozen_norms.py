"""BatchNorms that stand still after a while: when they do is a function of the state_dict and of what was asked for."""

from __future__ import annotations

from typing import Any

import torch


def begin(norm: Any) -> None:
    """Lets a norm count the batches from here, and know from a state_dict whether it stands still.

    `first_batch` is the count at the start; `stands` is 1 since it was frozen; `frozen` is what a forward reads.

    >>> norm = torch.nn.BatchNorm1d(2)
    >>> begin(norm)
    >>> sorted(set(norm.state_dict()) - set(torch.nn.BatchNorm1d(2).state_dict())), norm.frozen
    (['first_batch', 'stands'], False)
    """
    norm.register_buffer("first_batch", norm.num_batches_tracked.clone())
    norm.register_buffer("stands", torch.zeros_like(norm.num_batches_tracked))
    norm.frozen, norm.freezes_after = False, None
    norm.register_load_state_dict_post_hook(_loaded)


def freeze(norm: Any, after: int) -> None:
    """Freezes a norm that has seen `after` batches; one that has not looks again when a state_dict is loaded."""
    norm.freezes_after = after
    if not norm.frozen and _reached(norm):
        norm.frozen = True
        norm.stands.fill_(1)


def _loaded(norm: Any, _: Any) -> None:
    norm.frozen = bool(norm.stands) or _reached(norm)
    norm.stands.fill_(int(norm.frozen))


def _reached(norm: Any) -> bool:
    after = norm.freezes_after
    return after is not None and (not after or int(norm.num_batches_tracked - norm.first_batch) >= after)


__all__ = ["begin", "freeze"]
