"""ggml's attention on x86-64 with AVX-512: one pass over the keys with a running maximum ("flash attention").

Keys and values are those of a cache in float16.  A batch of 64 tokens and more is computed in tiles of 64 keys in float32; a
smaller one key by key, with the query and the sums in float16.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from qfunc.errors import EmulationError
from qfunc.numerics.kernels.integer import fma
from qfunc.numerics.libm import expf
from qfunc.targets.ggml.layers import angles, exp, halves, rms_norm, rotate

TILE = 64
"""Keys of a tile, and the fewest tokens that are computed in tiles."""

_LANES, _REGISTERS = 16, 4


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    norms: tuple[Tensor, Tensor] | None,
    head_size: int,
    base: float,
    eps: float,
    adjacent: bool,
) -> Tensor:
    """Return the attention of a block, [B, T, heads * head_size], from its products [B, T, ...] before RoPE.

    Args:
        q, k, v: Queries, keys and values; a head of k and v serves several of q.
        norms: The weights of the norms of each head of q and of k, or None.
        head_size: Entries of a head.
        base: Of the angles.
        eps: Of the norms.
        adjacent: A head has the entries of a pair beside each other in the file; here they are head_size / 2 apart.
    Source: llama.cpp, src/llama-graph.cpp, build_attn.

    >>> x = torch.ones(1, 1, 2)
    >>> attend(x, x, x, None, 2, 1e4, 1e-6, False).tolist()
    [[[1.0, 1.0]]]
    """
    positions = torch.arange(q.shape[1], device=q.device)
    q, k, v = _rotated(q, k, v, norms, head_size, base, eps, positions)
    return _seen(q, k, v, head_size, adjacent)


def attend_with_cache(
    q: Tensor, k: Tensor, v: Tensor, norms: tuple[Tensor, Tensor] | None, head_size: int, base: float, eps: float,
    adjacent: bool, positions: Tensor, keys: Tensor, values: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return (the attention, keys, values) of tokens at consecutive positions, of which those before are in a cache.

    Args:
        positions: The places of the tokens in each row, [B, T].
        keys, values: The cache, [B, heads of k, L, head_size], with values of float16; the results have the rows of the
            tokens too.  Keys are those after RoPE, with the entries of a pair head_size / 2 apart.

    The other arguments are those of `attend`.

    Raises:
        EmulationError: positions that are not consecutive, as of prompts of several lengths: llama.cpp has no padding.

    >>> x, empty = torch.ones(1, 1, 2), torch.zeros(1, 1, 4, 2)
    >>> seen, _, values = attend_with_cache(x, x, x, None, 2, 1e4, 1e-6, False, torch.tensor([[0]]), empty, empty)
    >>> seen.tolist(), values[0, 0, :2].tolist()
    ([[[1.0, 1.0]]], [[1.0, 1.0], [0.0, 0.0]])
    """
    if bool((positions.diff() != 1).any()):
        do = "Pass each prompt in a call of its own."
        found = f"the positions {positions[(positions.diff() != 1).any(1)][0].tolist()}"
        raise EmulationError(where="attention with a cache", found=found, wanted="consecutive positions in each row", do=do)
    if bool((positions != positions[:1]).any()):  # rows that are not equally long
        heads, each = (norms, head_size, base, eps, adjacent), list[tuple[Tensor, Tensor, Tensor]]()
        for i in range(len(positions)):
            r = slice(i, i + 1)
            each.append(attend_with_cache(q[r], k[r], v[r], *heads, positions[r], keys[r], values[r]))
        seen, keys, values = (torch.cat(parts) for parts in zip(*each, strict=True))
        return seen, keys, values
    places = positions[0]
    q, k, v = _rotated(q, k, v, norms, head_size, base, eps, places)
    end = int(places[-1]) + 1 if len(places) else 0
    keys, values = (torch.index_copy(cache, 2, places, new.half().to(cache.dtype)) for cache, new in ((keys, k), (values, v)))
    return _seen(q, keys[:, :, :end].float(), values[:, :, :end].float(), head_size, adjacent), keys, values


def _rotated(
    q: Tensor, k: Tensor, v: Tensor, norms: tuple[Tensor, Tensor] | None, head_size: int, base: float, eps: float,
    positions: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    q, k, v = (t.reshape(*t.shape[:-1], -1, head_size).transpose(1, 2) for t in (q, k, v))
    if norms is not None:
        q, k = (rms_norm(t, weight, eps) for t, weight in zip((q, k), norms, strict=True))
    cos, sin = angles(positions, head_size, base)
    q, k = (rotate(t, cos, sin) for t in (q, k))
    return q, k, v


def _seen(q: Tensor, k: Tensor, v: Tensor, head_size: int, adjacent: bool) -> Tensor:
    if adjacent:
        q, k = (t.reshape(*t.shape[:-1], 2, -1).transpose(-1, -2).flatten(-2) for t in (q, k))
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    return attention(q, k, v, scale_of(head_size)).transpose(1, 2).flatten(2)


def scale_of(head_size: int) -> float:
    """Return 1 / sqrt(head_size) with a rounding to float32 of both, which for 96 is not that of head_size^(-1/2).

    Source: llama.cpp, src/models/llama.cpp, kq_scale.

    >>> scale_of(64)
    0.125
    """
    root = torch.tensor(math.sqrt(head_size))
    return float(1 / root)


def attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Return softmax(q k^T scale) v of the last T of S tokens, which see those up to themselves.

    Args:
        q: Queries [..., T, K] in float32.
        k, v: Keys [..., S, K] and values [..., S, V] in float32, whose values are rounded to float16.
        scale: A factor of the products.
    Source: ggml, src/ggml-cpu/ops.cpp, ggml_compute_forward_flash_attn_ext_f16; measured.

    >>> attention(torch.ones(1, 1), torch.ones(1, 1), torch.full((1, 1), 3.0), 1.0).tolist()
    [[3.0]]
    """
    k, v, factor = k.half().float(), v.half().float(), torch.tensor(scale)
    return (_tiled if q.shape[-2] >= TILE else _by_keys)(q, k, v, factor)


def _by_keys(q: Tensor, k: Tensor, v: Tensor, scale: Tensor) -> Tensor:
    before = k.shape[-2] - q.shape[-2]
    scores = dot_float16(q.half().float(), k) * scale
    highest, total = (torch.full_like(q[..., 0], start) for start in (-torch.inf, 0.0))
    sums = q.new_zeros(*q.shape[:-1], v.shape[-1])
    for at in range(k.shape[-2]):
        row = slice(max(at - before, 0), None)  # the rows before see no such key
        s, old = scores[..., row, at], highest[..., row]
        higher = s > old
        new = torch.where(higher, s, old)
        decay, share = (torch.where(c, expf(e), 1.0) for c, e in ((higher, old - new), (~higher, s - new)))
        rescaled = torch.where(higher[..., None], (sums[..., row, :] * decay[..., None]).half().float(), sums[..., row, :])
        values = v[..., at : at + 1, :].expand_as(rescaled)
        sums[..., row, :] = fma(values, share[..., None].expand_as(rescaled), rescaled).half().float()
        total[..., row] = fma(total[..., row], decay, share)
        highest[..., row] = new
    return sums * (1 / total)[..., None]


def dot_float16(a: Tensor, b: Tensor) -> Tensor:
    """Return a b^T of rows [..., M, K] and [..., N, K]: four registers of 16 lanes along K, then what is left in float64.

    Source: ggml, src/ggml-cpu/vec.cpp, ggml_vec_dot_f16.

    >>> dot_float16(torch.ones(1, 65), torch.ones(1, 65)).tolist()
    [[65.0]]
    """
    step, size = _LANES * _REGISTERS, a.shape[-1]
    shape = (*a.shape[:-2], a.shape[-2], b.shape[-2])
    left, right = (t.expand(*shape, size) for t in (a[..., :, None, :], b[..., None, :, :]))
    end = size // step * step
    lanes = a.new_zeros(*shape, step)
    for start in range(0, end, step):
        lanes = fma(left[..., start : start + step], right[..., start : start + step], lanes)
    found = halves(lanes).double()
    for at in range(end, size):
        found = found + (left[..., at] * right[..., at]).double()
    return found.float()


def _tiled(q: Tensor, k: Tensor, v: Tensor, scale: Tensor) -> Tensor:
    tokens = k.shape[-2]
    before = tokens - q.shape[-2]
    highest, total = (torch.full_like(q[..., 0], start) for start in (-torch.inf, 0.0))
    sums = q.new_zeros(*q.shape[:-1], v.shape[-1])
    for start in range(0, tokens, TILE):
        rows, keys = slice(max(start - before, 0), None), k[..., start : start + TILE, :]
        known = keys.shape[-2]
        scores = _chain(q[..., rows, :], keys.transpose(-1, -2)) * scale
        places = torch.arange(tokens, device=q.device)
        hidden = places[start : start + known] > places[max(start, before) :, None]
        scores = torch.where(hidden, -torch.inf, scores)
        old = highest[..., rows]
        new = torch.maximum(old, scores.amax(-1))
        decay = torch.where(new > old, expf(old - new), 1.0)
        shares = exp(scores - new[..., None])
        padded = torch.nn.functional.pad(shares, (0, -known % TILE))
        parts = halves(padded.reshape(*padded.shape[:-1], -1, _LANES)).double()
        total[..., rows] = ((total[..., rows] * decay).double() + _in_order(parts)).float()
        sums[..., rows, :] = _chain(shares, v[..., start : start + TILE, :], sums[..., rows, :] * decay[..., None])
        highest[..., rows] = new
    return sums * (1 / total)[..., None]


def _in_order(parts: Tensor) -> Tensor:
    total = torch.zeros_like(parts[..., 0])
    for at in range(parts.shape[-1]):
        total = total + parts[..., at]
    return total


def _chain(a: Tensor, b: Tensor, start: Tensor | None = None) -> Tensor:
    # a [..., M, K] times b [..., K, N], added one k after the other by fused multiply-adds.
    shape = (*a.shape[:-1], b.shape[-1])
    total = a.new_zeros(shape) if start is None else start
    for at in range(a.shape[-1]):
        total = fma(a[..., :, at : at + 1].expand(shape), b[..., at : at + 1, :].expand(shape), total)
    return total
