"""BatchNorms frozen after N batches; whether one is frozen depends only on the state_dict and N."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch


def begin(norm: Any) -> None:
    """Make a norm count batches from here, and restore its frozen state from a state_dict.

    `first_batch` is the count at the start; `is_frozen` is 1 once the norm is frozen; a forward reads `frozen`.
    `reset_running_stats`, which `torch.optim.swa_utils.update_bn` calls first, does not change a frozen norm.

    >>> norm = torch.nn.BatchNorm1d(2)
    >>> begin(norm)
    >>> sorted(set(norm.state_dict()) - set(torch.nn.BatchNorm1d(2).state_dict())), norm.frozen
    (['first_batch', 'is_frozen'], False)
    """
    norm.register_buffer("first_batch", norm.num_batches_tracked.clone())
    norm.register_buffer("is_frozen", torch.zeros_like(norm.num_batches_tracked))
    norm.frozen, norm.freezes_after = False, None
    norm.reset_running_stats = partial(_reset, norm)  # deepcopy binds it to the copy
    norm.register_load_state_dict_post_hook(_loaded)


def freeze(norm: Any, after: int) -> None:
    """Freeze a norm after `after` batches; if there were fewer, check again when a state_dict is loaded."""
    norm.freezes_after = after
    if not norm.frozen and _reached(norm):
        norm.frozen = True
        norm.is_frozen.fill_(1)


def _reset(norm: Any) -> None:
    # An averaged copy gets only the buffers of a model that was frozen after copying, not its attributes.
    norm.frozen = norm.frozen or bool(norm.is_frozen)
    if not norm.frozen:
        # With momentum None the first batch replaces the statistics; until then weights are folded with the old ones.
        norm.first_batch.sub_(norm.num_batches_tracked)
        norm.num_batches_tracked.zero_()


def _loaded(norm: Any, _: Any) -> None:
    norm.frozen = bool(norm.is_frozen) or _reached(norm)
    norm.is_frozen.fill_(int(norm.frozen))


def _reached(norm: Any) -> bool:
    after = norm.freezes_after
    return after is not None and (not after or int(norm.num_batches_tracked - norm.first_batch) >= after)
