"""ggml's attention with a cache: tokens after others see the same keys as in one batch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qfunc.errors import EmulationError
from qfunc.targets.ggml.attention import TILE, attend, attend_with_cache


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.booleans(), st.integers(0, 99), st.booleans())
def test_tokens_after_a_cache_see_what_they_see_in_one_batch(parts: list[int], adjacent: bool, seed: int, norms: bool) -> None:
    """Fewer than a tile: key by key, in any parts; the cache has the keys and values of all, in float16."""
    torch.manual_seed(seed)
    total = sum(parts)
    q, k, v = (torch.randn(2, total, heads * 8) for heads in (4, 2, 2))
    weights = (1 + torch.randn(8) / 4, 1 + torch.randn(8) / 4) if norms else None
    keys = values = torch.zeros(2, 2, total + 3, 8)

    whole, found, at = attend(q, k, v, weights, 8, 1e4, 1e-6, adjacent), [], 0
    for part in parts:
        rows = slice(at, at + part)
        positions = torch.arange(at, at + part).expand(2, -1)
        seen, keys, values = attend_with_cache(
            q[:, rows], k[:, rows], v[:, rows], weights, 8, 1e4, 1e-6, adjacent, positions, keys, values
        )
        found.append(seen)
        at += part

    assert torch.equal(torch.cat(found, 1), whole)
    assert torch.equal(keys, keys.half().float())
    assert torch.equal(values[:, :, :total], v.reshape(2, total, 2, 8).transpose(1, 2).half().float())
    assert not values[:, :, total:].any()


@settings(max_examples=5, deadline=None)
@given(st.integers(1, 2 * TILE), st.integers(TILE, TILE + 20), st.integers(0, 99))
def test_a_tile_of_tokens_after_a_cache(before: int, after: int, seed: int) -> None:
    """A batch of a tile and more is computed in tiles of keys, whose bounds do not depend on the batch."""
    torch.manual_seed(seed)
    q, k, v = (torch.randn(1, before + after, 8) for _ in range(3))
    state = torch.zeros(1, 1, before + after, 8)
    heads = (None, 8, 1e4, 1e-6, False)

    whole = attend(q, k, v, *heads)
    first, last = slice(0, before), slice(before, None)
    _, keys, values = attend_with_cache(q[:, first], k[:, first], v[:, first], *heads, torch.arange(before)[None], state, state)
    positions = torch.arange(before, before + after)[None]
    seen, _, _ = attend_with_cache(q[:, last], k[:, last], v[:, last], *heads, positions, keys, values)

    assert torch.equal(seen, whole[:, last])


def test_rows_at_other_positions_are_those_of_each_alone() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(3, 2, heads * 8) for heads in (4, 2, 2))
    keys, values = (torch.randn(3, 2, 12, 8).half().float() for _ in "kv")
    positions, heads = torch.tensor([[4, 5], [0, 1], [9, 10]]), (None, 8, 1e4, 1e-6, True)

    together = attend_with_cache(q, k, v, *heads, positions, keys, values)
    rows = [slice(i, i + 1) for i in range(3)]
    alone = [attend_with_cache(q[r], k[r], v[r], *heads, positions[r], keys[r], values[r]) for r in rows]

    assert all(torch.equal(a, torch.cat(parts)) for a, parts in zip(together, zip(*alone, strict=True), strict=True))


def test_padded_prompts_are_refused() -> None:
    x, state = torch.randn(2, 3, 8), torch.zeros(2, 1, 4, 8)
    with pytest.raises(EmulationError) as e:
        attend_with_cache(x, x, x, None, 8, 1e4, 1e-6, False, torch.tensor([[0, 1, 2], [2, 0, 1]]), state, state)
    assert str(e.value) == (
        "attention with a cache: found the positions [2, 0, 1], wanted consecutive positions in each row. Pass each prompt in "
        "a call of its own."
    )
