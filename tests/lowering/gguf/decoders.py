"""Decoders with the modules and parameter names of transformers, and random weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.specs import DecoderConfig
from qfunc.targets.ggml.engine import TYPES
from qfunc.targets.ggml.file import GgufTensor, gguf_file
from qfunc.targets.ggml.llama_cpp.lowering import described

SIZES = {"blocks": 2, "width": 64, "inner": 96, "heads": 4, "kv_heads": 2, "head_size": 16, "vocabulary": 96, "context": 512}


def decoder(architecture: str, **sizes: Any) -> DecoderConfig:
    """A small decoder."""
    return DecoderConfig(architecture=architecture, **SIZES | sizes)


def linear(inputs: int, outputs: int, bias: bool) -> nn.Linear:
    """A layer whose results are about as large as its inputs."""
    layer = nn.Linear(inputs, outputs, bias)
    layer.weight.data = torch.randn(outputs, inputs) / inputs**0.5
    return layer


class Norm(nn.Module):
    """RMSNorm."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight, self.epsilon = nn.Parameter(1 + torch.randn(size) / 4), epsilon

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.epsilon)


class Attention(nn.Module):
    """Grouped queries, and angles of pairs that are half a head apart."""

    def __init__(self, d: DecoderConfig) -> None:
        super().__init__()
        self.d, bias = d, d.architecture == "qwen2"
        size, kv_size = d.heads * d.head_size, d.kv_heads * d.head_size
        self.q_proj, self.o_proj = linear(d.width, size, bias), linear(size, d.width, False)
        self.k_proj, self.v_proj = (linear(d.width, kv_size, bias) for _ in range(2))
        if d.norms_heads:
            self.q_norm, self.k_norm = Norm(d.head_size, d.epsilon), Norm(d.head_size, d.epsilon)

    def heads(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], x.shape[1], -1, self.d.head_size).transpose(1, 2)

    def rotated(self, x: Tensor, positions: Tensor) -> Tensor:
        half = self.d.head_size // 2
        frequencies = self.d.rope_base ** (-torch.arange(half) / half)
        angles = positions[..., None] * torch.cat([frequencies, frequencies])
        return x * angles.cos() + torch.cat([-x[..., half:], x[..., :half]], -1) * angles.sin()

    def forward(self, x: Tensor, positions: Tensor | None = None, cache: Any = None, layer: int = 0) -> Tensor:
        q, k, v = self.heads(self.q_proj(x)), self.heads(self.k_proj(x)), self.heads(self.v_proj(x))
        if self.d.norms_heads:
            q, k = self.q_norm(q), self.k_norm(k)
        at = (torch.arange(x.shape[1])[None] if positions is None else positions)[:, None]
        q, k, seen = self.rotated(q, at), self.rotated(k, at), None
        if cache is not None:
            k, v = cache.update(k, v, layer)
            seen = torch.arange(k.shape[2]) <= at[..., None]
        k, v = (t.repeat_interleave(self.d.heads // self.d.kv_heads, 1) for t in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, is_causal=seen is None)
        return self.o_proj(y.transpose(1, 2).reshape(x.shape[0], x.shape[1], -1))


class Mlp(nn.Module):
    """A gated layer."""

    def __init__(self, d: DecoderConfig) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = linear(d.width, d.inner, False), linear(d.width, d.inner, False)
        self.down_proj = linear(d.inner, d.width, False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    """Attention and a gated layer, each after a norm."""

    def __init__(self, d: DecoderConfig) -> None:
        super().__init__()
        self.input_layernorm, self.self_attn = Norm(d.width, d.epsilon), Attention(d)
        self.post_attention_layernorm, self.mlp = Norm(d.width, d.epsilon), Mlp(d)

    def forward(self, x: Tensor, positions: Tensor | None = None, cache: Any = None, layer: int = 0) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), positions, cache, layer)
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    """The blocks between the embedding and the last norm."""

    def __init__(self, d: DecoderConfig) -> None:
        super().__init__()
        self.embed_tokens, self.norm = nn.Embedding(d.vocabulary, d.width), Norm(d.width, d.epsilon)
        self.layers = nn.Sequential(*(Block(d) for _ in range(d.blocks)))

    def forward(self, ids: Tensor) -> Tensor:
        return self.norm(self.layers(self.embed_tokens(ids)))


class Network(nn.Module):
    """Logits of token ids [B, T]; `tied`: the head has the weights of the embedding."""

    def __init__(self, d: DecoderConfig, tied: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model, self.lm_head = Body(d), linear(d.width, d.vocabulary, False)
        if tied:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.lm_head(self.model(ids))


class CachedNetwork(Network):
    """The same network, called as those of `transformers` with a cache."""

    def forward(self, input_ids: Tensor, position_ids: Tensor, past_key_values: Any, use_cache: bool) -> Tensor:  # type: ignore[override]
        x = self.model.embed_tokens(input_ids)
        for layer, block in enumerate(self.model.layers):
            x = block(x, position_ids, past_key_values, layer)
        logits: Tensor = self.lm_head(self.model.norm(x))
        return logits


def tokens(count: int, length: int, d: DecoderConfig) -> Tensor:
    """Random token ids."""
    return torch.randint(0, d.vocabulary, (count, length), generator=torch.Generator().manual_seed(length))


def calibrated(d: DecoderConfig, kind: str, tied: bool = False) -> Any:
    """A network for targets.gguf, and this target."""
    target = targets.gguf(kind, d)
    network = Network(d, tied).eval()
    return qfunc.calibrate([tokens(2, 7, d), tokens(2, 9, d)], progress=False)(qfunc.quantize(target)(network)), target, network


def float_file(network: Network, d: DecoderConfig) -> bytes:
    """A GGUF file of a network in float32; in Llama, entries i and i + head_size / 2 of a head become neighbours."""
    tensors = []
    for parameter, value in network.named_parameters():
        name, rows = d.tensor(parameter), value.detach().numpy()
        assert name is not None
        if d.architecture == "llama" and name.split(".")[-2] in ("attn_q", "attn_k"):
            order = np.arange(d.head_size).reshape(2, -1).T.flatten()
            rows = rows.reshape(-1, d.head_size, *rows.shape[1:])[:, order].reshape(rows.shape)
        tensors.append(GgufTensor(name, TYPES["F32"], rows.shape, rows))
    return gguf_file(described(d), tensors)
