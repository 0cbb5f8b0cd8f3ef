"""Small transformers in the words of today's libraries: masks by index, rotary positions, grouped heads, tied tables."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def keys_and_queries(mask: Tensor, causal: bool) -> Tensor:
    """[N, 1, T, T], True where a query may see a key: built from positions, as models do that run on any length."""
    n, t = mask.shape
    row, query, key = torch.arange(n), torch.arange(t)[:, None], torch.arange(t)
    allowed = (key[None, None, None, :] <= query[None, None]) if causal else key[None, None, None, :] >= 0
    allowed = allowed & mask.to(torch.bool)[row[:, None, None, None], key[None, None, None, :]]
    return allowed.expand(n, -1, t, t)


class Encoder(nn.Module):
    """One layer of BERT: SDPA with a mask of booleans, GELU, a pooled token taken by its place."""

    def __init__(self, words: int = 13, width: int = 16, heads: int = 2, length: int = 32) -> None:
        super().__init__()
        self.heads = heads
        self.word, self.position, self.kind = nn.Embedding(words, width), nn.Embedding(length, width), nn.Embedding(2, width)
        self.query, self.key, self.value, self.dense = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down, self.pool = nn.Linear(width, 3 * width), nn.Linear(3 * width, width), nn.Linear(width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.register_buffer("places", torch.arange(length)[None], persistent=False)
        self.register_buffer("kinds", torch.zeros(1, length, dtype=torch.int64), persistent=False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        """Token ids and mask [N, T] -> all tokens and the first."""
        n, t = input_ids.size()
        places = self.places[:, :t]
        kinds = torch.gather(self.kinds.expand(n, -1), 1, places.expand(n, -1))
        x = self.norms[0](self.word(input_ids) + self.kind(kinds) + self.position(places))
        q, k, v = (f(x).view(n, t, self.heads, -1).transpose(1, 2) for f in (self.query, self.key, self.value))
        seen = keys_and_queries(attention_mask, causal=False)
        mixed = F.scaled_dot_product_attention(q, k, v, seen).transpose(1, 2).reshape(n, t, -1).contiguous()
        x = self.norms[1](self.dense(mixed) + x)
        x = self.norms[2](self.down(F.gelu(self.up(x))) + x)
        return {"last": x, "pooled": torch.tanh(self.pool(x[:, 0]))}


class Rms(nn.Module):
    """The root mean square norm, computed in float32 whatever the input's type."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        held = x.dtype
        x = x.to(torch.float32)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * x.to(held)


def halves_turned(x: Tensor) -> Tensor:
    """(a, b) -> (-b, a) along the last axis."""
    return torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), -1)


class Decoder(nn.Module):
    """One layer of Llama: rotary positions without gradient, two heads a key, SiLU gates, one table for both ends."""

    def __init__(self, words: int = 13, width: int = 16, heads: int = 4, groups: int = 2) -> None:
        super().__init__()
        self.heads, self.groups, each = heads, groups, width // heads
        self.word, self.head = nn.Embedding(words, width), nn.Linear(width, words, bias=False)
        self.head.weight = self.word.weight
        self.query, self.dense = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.key, self.value = (nn.Linear(width, groups * each, bias=False) for _ in range(2))
        self.gate, self.up, self.down = nn.Linear(width, 24), nn.Linear(width, 24), nn.Linear(24, width)
        self.norms = nn.ModuleList(Rms(width) for _ in range(3))
        self.register_buffer("rates", 100.0 ** (-torch.arange(0, each, 2) / each), persistent=False)

    @torch.no_grad()
    def rotary(self, places: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines [N, T, width of a head]."""
        turns = (self.rates[None, :, None].float() @ places[:, None, :].float()).transpose(1, 2)
        angle = torch.cat((turns, turns), -1)
        return angle.cos().to(like.dtype), angle.sin().to(like.dtype)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """Token ids and mask [N, T] -> logits [N, T, words]."""
        x = self.word(input_ids)
        n, t = input_ids.shape
        places = torch.arange(t, device=input_ids.device).unsqueeze(0)
        cos, sin = (v.unsqueeze(1) for v in self.rotary(places, x))
        y = self.norms[0](x)
        q, k, v = (f(y).view(n, t, -1, y.shape[-1] // self.heads).transpose(1, 2) for f in (self.query, self.key, self.value))
        q, k = (u * cos + halves_turned(u) * sin for u in (q, k))
        k, v = (u[:, :, None].expand(n, self.groups, 2, t, -1).reshape(n, self.heads, t, -1) for u in (k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, keys_and_queries(attention_mask, causal=True))
        x = x + self.dense(mixed.transpose(1, 2).reshape(n, t, -1))
        y = self.norms[1](x)
        x = x + self.down(F.silu(self.gate(y)) * self.up(y))
        return {"logits": self.head(self.norms[2](x)[:, -t:, :])}
