"""BatchNorms that stand still after a while: when they do is a function of the state_dict and of what was asked for."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch


def begin(norm: Any) -> None:
    """Lets a norm count the batches from here, and know from a state_dict whether it stands still.

    `first_batch` is the count at the start; `stands` is 1 since it was frozen; `frozen` is what a forward reads.
    `reset_running_stats`, by which `torch.optim.swa_utils.update_bn` begins, leaves one that stands still as it is.

    >>> norm = torch.nn.BatchNorm1d(2)
    >>> begin(norm)
    >>> sorted(set(norm.state_dict()) - set(torch.nn.BatchNorm1d(2).state_dict())), norm.frozen
    (['first_batch', 'stands'], False)
    """
    norm.register_buffer("first_batch", norm.num_batches_tracked.clone())
    norm.register_buffer("stands", torch.zeros_like(norm.num_batches_tracked))
    norm.frozen, norm.freezes_after = False, None
    norm.reset_running_stats = partial(_reset, norm)  # deepcopy makes it that of the copy
    norm.register_load_state_dict_post_hook(_loaded)


def freeze(norm: Any, after: int) -> None:
    """Freezes a norm that has seen `after` batches; one that has not looks again when a state_dict is loaded."""
    norm.freezes_after = after
    if not norm.frozen and _reached(norm):
        norm.frozen = True
        norm.stands.fill_(1)


def _reset(norm: Any) -> None:
    # The averaged copy of a model that was frozen later has its buffers only.
    norm.frozen = norm.frozen or bool(norm.stands)
    if not norm.frozen:
        # Without momentum the first batch replaces the statistics; until then quantizers see weights folded with the old.
        norm.first_batch.sub_(norm.num_batches_tracked)
        norm.num_batches_tracked.zero_()


def _loaded(norm: Any, _: Any) -> None:
    norm.frozen = bool(norm.stands) or _reached(norm)
    norm.stands.fill_(int(norm.frozen))


def _reached(norm: Any) -> bool:
    after = norm.freezes_after
    return after is not None and (not after or int(norm.num_batches_tracked - norm.first_batch) >= after)


__all__ = ["begin", "freeze"]
