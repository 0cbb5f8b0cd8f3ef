"""A small Llama over the bytes of Python's manual: the model, its training, the texts, and its perplexity.

Its parameters have the names of `transformers.LlamaForCausalLM`, so that other tools can quantize the same network.
"""

from __future__ import annotations

import math
import pydoc_data.topics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WORDS, WIDTH, INNER, LAYERS, HEADS, GROUPS, LENGTH = 256, 256, 512, 3, 8, 4, 128
BASE, EPSILON = 10000.0, 1e-5


class Rms(nn.Module):
    """w x / sqrt(mean x^2 + eps)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize the last axis."""
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPSILON))


class Attention(nn.Module):
    """Causal attention with rotary positions and two heads for each key."""

    def __init__(self) -> None:
        super().__init__()
        each = WIDTH // HEADS
        self.q_proj, self.o_proj = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.k_proj, self.v_proj = (nn.Linear(WIDTH, GROUPS * each, bias=False) for _ in range(2))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """[N, T, width] -> [N, T, width]."""
        n, t, _ = x.shape
        q, k, v = (f(x).view(n, t, -1, WIDTH // HEADS).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
        q, k = (u * cos + _halves_turned(u) * sin for u in (q, k))
        k, v = (u.repeat_interleave(HEADS // GROUPS, 1) for u in (k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).reshape(n, t, WIDTH))


class Gated(nn.Module):
    """down(silu(gate x) * up x)."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(WIDTH, INNER, bias=False), nn.Linear(WIDTH, INNER, bias=False)
        self.down_proj = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[N, T, width] -> [N, T, width]."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Attention and the gated layers, each after a norm and added to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.self_attn, self.mlp = Attention(), Gated()
        self.input_layernorm, self.post_attention_layernorm = Rms(WIDTH), Rms(WIDTH)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """[N, T, width] -> [N, T, width]."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    """The embedding, the layers and the last norm."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens, self.norm = nn.Embedding(WORDS, WIDTH), Rms(WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        each = WIDTH // HEADS
        rates = BASE ** (-torch.arange(0, each, 2) / each)
        angle = torch.outer(torch.arange(LENGTH).float(), rates).repeat(1, 2)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Ids [N, T] -> [N, T, width]."""
        x, t = self.embed_tokens(input_ids), input_ids.shape[1]
        for layer in self.layers:
            x = layer(x, self.cos[:t], self.sin[:t])
        return self.norm(x)


class Llama(nn.Module):
    """Ids [N, T] -> logits [N, T, 256]."""

    def __init__(self) -> None:
        super().__init__()
        self.model, self.lm_head = Body(), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Return the logits of the next byte."""
        return self.lm_head(self.model(input_ids))


def _halves_turned(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), -1)


def texts() -> tuple[Tensor, Tensor]:
    """Return the bytes of Python's manual: nine topics of ten for training and calibration, and the others."""
    topics = [text.encode() for _, text in sorted(pydoc_data.topics.topics.items())]
    seen, unseen = (b"\n".join(t for i, t in enumerate(topics) if (i % 10 == 5) is held) for held in (False, True))
    return tuple(torch.frombuffer(bytearray(text), dtype=torch.uint8).long() for text in (seen, unseen))  # type: ignore[return-value]


def sequences(text: Tensor, count: int, seed: int, length: int = LENGTH) -> Tensor:
    """Return random parts of a text [count, length]."""
    starts = torch.randint(0, len(text) - length, (count,), generator=torch.Generator().manual_seed(seed))
    return torch.stack([text[s : s + length] for s in starts.tolist()])


def trained(file: Path, steps: int = 1200, batch: int = 8) -> Llama:
    """Return the trained model, from the file if it exists; training writes it."""
    torch.manual_seed(0)
    model = Llama()
    if file.exists():
        model.load_state_dict(torch.load(file))
        return model.eval()
    text, start = texts()[0], time.monotonic()
    for p in model.parameters():
        if p.ndim == 2:
            nn.init.normal_(p, std=0.04)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps, pct_start=0.1)
    for step in range(steps):
        ids = sequences(text, batch, step, LENGTH + 1)
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 49:
            print(f"step {step + 1}: loss {float(loss):.4f}, {time.monotonic() - start:.0f} s", flush=True)
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), file)
    return model.eval()


def windows(text: Tensor, batch: int = 32) -> Iterator[Tensor]:
    """Return consecutive parts of a text, [batch, LENGTH + 1] each."""
    rows = text[: len(text) // (LENGTH + 1) * (LENGTH + 1)].view(-1, LENGTH + 1)
    return iter(rows.split(batch))


@torch.no_grad()
def perplexity(model: Callable[[Tensor], Tensor], text: Tensor) -> float:
    """Return exp of the mean cross entropy of the next byte."""
    total, count = 0.0, 0
    for ids in windows(text):
        logits = model(ids[:, :-1])
        total += float(F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="sum"))
        count += ids[:, 1:].numel()
    return math.exp(total / count)
