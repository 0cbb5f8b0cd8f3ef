"""Small decoders with the calling convention of `transformers`, of the parts of Llama, Qwen3, Gemma 3, Phi, GPT-2, Mixtral."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from attrs import frozen
from torch import Tensor, nn

WORDS, WIDTH, HEAD = 31, 32, 8


@frozen
class Shape:
    """What tells decoders apart: heads of keys, norm, positions, a window, the form of a layer, experts, channels of a head."""

    groups: int = 2
    rms: bool = True
    rotary: bool = True
    window: int = 0
    head_norms: bool = False
    parallel: bool = False
    layers: int = 1
    experts: int = 0
    head: int = HEAD


SHAPES = {
    "llama": Shape(),
    "qwen3": Shape(head_norms=True),
    "gemma3": Shape(groups=1, window=4, head_norms=True, layers=2),
    "phi": Shape(groups=4, rms=False, parallel=True),
    "gpt2": Shape(groups=4, rms=False, rotary=False),
    "mixtral": Shape(experts=3),
}
WIDE = {
    "wide": Shape(head=16, layers=2),
    "wide qwen3": Shape(head=16, head_norms=True),
    "wide phi": Shape(groups=4, rms=False, parallel=True, head=32),
    "wide gpt2": Shape(groups=4, rms=False, rotary=False, head=48),
    "wide gemma3": Shape(groups=1, window=4, head_norms=True, head=16),
}
"""Heads that GroupQueryAttention with a cache in codes is described for: 16 divides their channels."""


class Rms(nn.Module):
    """The root mean square norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def turned(x: Tensor, angles: Tensor) -> Tensor:
    """Rotate pairs of channels, [N, H, T, D] by [N, T, D / 2]."""
    angles = torch.cat((angles, angles), -1)[:, None]
    half = x.shape[-1] // 2
    return x * angles.cos() + torch.cat((-x[..., half:], x[..., :half]), -1) * angles.sin()


class Experts(nn.Module):
    """Experts with the attributes and stacked weights of `transformers`, and its forward "eager": a loop over those chosen."""

    def __init__(self, count: int, sizes: tuple[int, int], **layout: bool) -> None:
        super().__init__()
        (width, inner), self.num_experts = sizes, count
        self.has_gate, self.has_bias = layout.get("gate", True), layout.get("bias", False)
        self.is_transposed, self.has_post_expert_norm = layout.get("transposed", False), layout.get("norm", False)
        self.act_fn, self.post_expert_norm = nn.SiLU(), nn.Hardtanh(-50, 50)
        first = "gate_up_proj" if self.has_gate else "up_proj"
        for name, rows, columns in (first, inner * (1 + self.has_gate), width), ("down_proj", width, inner):
            shape = (columns, rows) if self.is_transposed else (rows, columns)
            self.register_parameter(name, nn.Parameter(torch.randn(count, *shape) / columns**0.5))
            if self.has_bias:
                self.register_parameter(f"{name}_bias", nn.Parameter(torch.randn(count, rows)))

    def _apply_gate(self, x: Tensor) -> Tensor:
        gate, up = x.chunk(2, dim=-1)
        return self.act_fn(gate) * up

    def linear(self, x: Tensor, name: str, expert: int) -> Tensor:
        weight = getattr(self, name)[expert]
        bias = getattr(self, f"{name}_bias")[expert] if self.has_bias else None
        return F.linear(x, weight.T if self.is_transposed else weight, bias)

    def forward(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        total = torch.zeros_like(x)
        for expert in range(self.num_experts):
            rows, places = torch.where(chosen == expert)
            y = self.linear(x[rows], "gate_up_proj" if self.has_gate else "up_proj", expert)
            y = self.linear(self._apply_gate(y) if self.has_gate else self.act_fn(y), "down_proj", expert)
            y = self.post_expert_norm(y) if self.has_post_expert_norm else y
            total = total.index_add(0, rows, y * weights[rows, places, None])
        return total


class Mixture(nn.Module):
    """A router, whose weights it divides in place, and experts."""

    def __init__(self, experts: Experts, width: int, chosen: int = 2) -> None:
        super().__init__()
        self.router, self.experts, self.chosen = nn.Linear(width, experts.num_experts, bias=False), experts, chosen

    def forward(self, x: Tensor) -> Tensor:
        """[..., K] -> [..., K]."""
        rows = x.reshape(-1, x.shape[-1])
        weights, chosen = self.router(rows).softmax(-1).topk(self.chosen, dim=-1)
        weights /= weights.sum(-1, keepdim=True)
        return self.experts(rows, chosen, weights).reshape(x.shape)


class Layer(nn.Module):
    """Attention and two linear layers, after norms."""

    def __init__(self, shape: Shape, index: int) -> None:
        super().__init__()
        norm, heads = Rms if shape.rms else nn.LayerNorm, WIDTH // HEAD
        self.shape, self.index, self.window = shape, index, shape.window * (index == 0)
        self.query, self.out = nn.Linear(WIDTH, heads * shape.head, bias=not shape.rms), nn.Linear(heads * shape.head, WIDTH)
        self.key, self.value = (nn.Linear(WIDTH, shape.groups * shape.head, bias=False) for _ in range(2))
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.gate = nn.Linear(WIDTH, 2 * WIDTH) if shape.rms else None
        self.mixture = Mixture(Experts(shape.experts, (WIDTH, WIDTH)), WIDTH) if shape.experts else None
        self.norms = nn.ModuleList(norm(n) for n in (WIDTH, WIDTH, *(shape.head, shape.head) * shape.head_norms))

    def attention(self, x: Tensor, angles: Tensor, places: Tensor, cache: Any) -> Tensor:
        n, t, _ = x.shape
        q, k, v = (f(x).view(n, t, -1, self.shape.head) for f in (self.query, self.key, self.value))
        if self.shape.head_norms:
            q, k = self.norms[2](q), self.norms[3](k)
        q, k, v = (y.transpose(1, 2) for y in (q, k, v))
        if self.shape.rotary:
            q, k = turned(q, angles), turned(k, angles)
        k, v = cache.update(k, v, self.index)
        length, repeats = k.shape[2], q.shape[1] // k.shape[1]
        k, v = (y[:, :, None].expand(n, -1, repeats, length, y.shape[3]).reshape(n, -1, length, y.shape[3]) for y in (k, v))
        keys, queries = torch.arange(length), places[:, None, :, None]
        seen = (keys <= queries) & (keys > queries - self.window) if self.window else keys <= queries
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.out(mixed.transpose(1, 2).reshape(n, t, -1))

    def feed_forward(self, x: Tensor) -> Tensor:
        if self.mixture is not None:
            return self.mixture(x)
        return self.down(F.gelu(self.up(x)) if self.gate is None else F.silu(self.gate(x)) * self.up(x))

    def forward(self, x: Tensor, angles: Tensor, places: Tensor, cache: Any) -> Tensor:
        if self.shape.parallel:
            y = self.norms[0](x)
            return x + self.attention(y, angles, places, cache) + self.feed_forward(y)
        x = x + self.attention(self.norms[0](x), angles, places, cache)
        return x + self.feed_forward(self.norms[1](x))


class Small(nn.Module):
    """A causal language model of 31 words with random weights, large enough for answers that vary."""

    def __init__(self, shape: Shape, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.word, self.place = nn.Embedding(WORDS, WIDTH), nn.Embedding(64, WIDTH)
        self.layers, self.shape = nn.ModuleList(Layer(shape, i) for i in range(shape.layers)), shape
        self.norm = Rms(WIDTH) if shape.rms else nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.register_buffer("rates", 100.0 ** (-torch.arange(0, shape.head, 2) / shape.head), persistent=False)
        for layer in self.layers:
            for part in (layer.query, layer.key):
                part.weight.data *= 4

    def forward(self, input_ids: Tensor, position_ids: Tensor, past_key_values: Any, use_cache: bool) -> tuple[Tensor]:
        """Token ids and positions [N, T] -> logits [N, T, 31]."""
        x = self.word(input_ids) + (0 if self.shape.rotary else self.place(position_ids))
        angles = position_ids[..., None].to(torch.float32) * self.rates
        for layer in self.layers:
            x = layer(x, angles, position_ids, past_key_values)
        return (self.head(self.norm(x)),)


def tokens(rows: int, length: int, seed: int = 0) -> Tensor:
    """Token ids."""
    return torch.randint(0, WORDS, (rows, length), generator=torch.Generator().manual_seed(seed))
