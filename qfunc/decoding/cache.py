"""The cache of keys and values that a model of `transformers` writes while it is captured: tensors in, tensors out."""

from __future__ import annotations

from typing import Any

from torch import Tensor

LENGTH_AXIS = 2
"""The axis of the positions in keys and values: [batch, heads, length, channels]."""


class StateCache:
    """A cache of fixed length that is a function of its tensors: `update` makes new tensors and leaves the given ones.

    It has the methods of `transformers.Cache` that decoders call.  Layer i has the keys `state[2 * i]` and the values
    `state[2 * i + 1]`; the mask of a query at position p, which the model makes, shows the keys up to p.  The second update
    of a layer is that of its cross-attention, whose keys and values are those of `cross`; the given ones are not used.

    Args:
        positions: The positions of the new tokens in each row, [N, T].
        state: Keys and values of each layer in turn, [N, H, L, D].
        cross: Keys and values of the cross-attention of each layer in turn, [N, H, S, D].
    """

    is_compileable = True

    def __init__(self, positions: Tensor, state: tuple[Tensor, ...], cross: tuple[Tensor, ...] = ()) -> None:
        self.positions, self.state, self.cross = positions, list(state), cross
        self.is_sliding = [False] * (len(state) // 2)  # the model masks what lies outside of a window
        self.written: set[int] = set()

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write the new keys and values of a layer at their positions, and return all of them."""
        if layer in self.written and self.cross:
            return self.cross[2 * layer], self.cross[2 * layer + 1]
        self.written.add(layer)
        for place, new in ((2 * layer, keys), (2 * layer + 1, values)):
            index = self.positions[:, None, :, None].expand(new.shape)
            self.state[place] = self.state[place].scatter(LENGTH_AXIS, index, new)
        return self.state[2 * layer], self.state[2 * layer + 1]

    def get_query_offset(self, layer: int = 0) -> RowPositions:
        """Return what added to the numbers of the new tokens is their positions."""
        return RowPositions(self.positions)

    def get_seq_length(self, layer: int = 0) -> Tensor:
        """Return the number of tokens before the first new one of the first row."""
        return self.positions[0, 0]

    def get_mask_sizes(self, queries: int, layer: int = 0) -> tuple[int, int]:
        """Return the number of keys that the queries meet, and the position of the first."""
        return self.get_max_length(), 0

    def get_max_length(self) -> int:
        """Return the length of the cache."""
        return self.state[0].shape[LENGTH_AXIS]


class RowPositions:
    """An offset of queries that is another one in each row.

    The masks of `transformers` compare `(arange(T) + offset)[None, None, :, None]` with keys [1, 1, 1, L].  Of this offset
    they get the positions [N, 1, T, 1], so that each row of the mask [N, 1, T, L] follows its own.

    Source: transformers 5.23, masking_utils.py, sdpa_mask and the mask functions.

    >>> import torch
    >>> mine = RowPositions(torch.tensor([[0, 1], [4, 5]]))
    >>> (torch.arange(2) + mine)[None, None, :, None].shape
    torch.Size([2, 1, 2, 1])
    """

    def __init__(self, positions: Tensor) -> None:
        self.positions = positions

    def __radd__(self, numbers: Tensor) -> RowPositions:
        return self

    def __getitem__(self, places: tuple[slice | None, ...]) -> Tensor:
        return self.positions[:, None, :, None]


class Recorder:
    """A cache before the first token that keeps nothing but the keys and values of each update, by the layer's number."""

    is_compileable = False

    def __init__(self) -> None:
        self.seen: dict[int, list[tuple[Tensor, Tensor]]] = {}
        self.is_sliding: list[bool] = []

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Record keys and values, and return them."""
        self.seen.setdefault(layer, []).append((keys, values))
        return keys, values

    def tensors(self, updates: int) -> list[list[Tensor]] | None:
        """Return keys and values of each layer in turn, for each update; None if layers have another number."""
        layers = [self.seen.get(layer, []) for layer in range(len(self.seen))]
        if not layers or any(len(pairs) != updates for pairs in layers):
            return None
        return [[t for pairs in layers for t in pairs[k]] for k in range(updates)]

    def get_query_offset(self, layer: int = 0) -> int:
        """Return 0, the position of the first token."""
        return 0

    def get_seq_length(self, layer: int = 0) -> int:
        """Return 0, the number of tokens before the first one."""
        return 0

    def get_mask_sizes(self, queries: int, layer: int = 0) -> tuple[int, int]:
        """Return the number of keys that the queries meet, and the position of the first."""
        return queries, 0
