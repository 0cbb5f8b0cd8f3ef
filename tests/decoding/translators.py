"""A small encoder with a decoder, with the calling convention of `transformers`, of the parts of Whisper."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qfunc
from qfunc.decoding.encoder_decoder import EncoderDecoder
from tests.decoding.decoders import HEAD, WIDTH, WORDS
from tests.decoding.made import LENGTH

CHANNELS, FRAMES = 6, 18


class Attention(nn.Module):
    """Attention of heads to the states of the same or of another sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        for part in (self.query, self.key):
            part.weight.data *= 4

    def forward(self, x: Tensor, others: Tensor, cache: Any = None, layer: int = 0, start: Any = None) -> Tensor:
        """[N, T, K] and [N, S, K] -> [N, T, K]; with a start, a query sees the keys up to its own position."""
        q, k, v = (
            f(y).view(x.shape[0], -1, WIDTH // HEAD, HEAD).transpose(1, 2)
            for f, y in ((self.query, x), (self.key, others), (self.value, others))
        )
        if cache is not None:
            k, v = cache.update(k, v, layer)
        seen = None if start is None else torch.arange(k.shape[2]) <= torch.arange(x.shape[1])[:, None] + start
        return self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=seen).transpose(1, 2).reshape(x.shape))


class Encoder(nn.Module):
    """Features [N, C, S] -> states [N, S / 2, K]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.attention = nn.Conv1d(CHANNELS, WIDTH, 3, 2, 1), nn.LayerNorm(WIDTH), Attention()

    def forward(self, features: Tensor) -> tuple[Tensor]:
        x = F.gelu(self.conv(features)).transpose(1, 2)
        y = self.norm(x)
        return (x + self.attention(y, y),)


class Layer(nn.Module):
    """Attention to the text, attention to the encoder's states, and two linear layers."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.index, self.own, self.cross = index, Attention(), Attention()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))

    def forward(self, x: Tensor, states: Tensor, cache: Any, start: Any) -> Tensor:
        y = self.norms[0](x)
        x = x + self.own(y, y, cache, self.index, start)
        x = x + self.cross(self.norms[1](x), states, cache, self.index)
        return x + self.down(F.gelu(self.up(self.norms[2](x))))


class Translator(nn.Module):
    """An encoder, and a decoder of two layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.layers = Encoder(), nn.ModuleList(map(Layer, range(2)))
        self.word, self.place, self.head = nn.Embedding(WORDS, WIDTH), nn.Embedding(64, WIDTH), nn.Linear(WIDTH, WORDS)

    def get_encoder(self) -> Encoder:
        """The encoder, as that of `transformers`."""
        return self.encoder

    def forward(
        self, decoder_input_ids: Tensor, encoder_outputs: tuple[Tensor], past_key_values: Any, use_cache: bool
    ) -> tuple[Tensor]:
        start = past_key_values.get_seq_length()
        x = self.word(decoder_input_ids) + self.place(torch.arange(decoder_input_ids.shape[1]) + start)
        for layer in self.layers:
            x = layer(x, encoder_outputs[0], past_key_values, start)
        return (self.head(x),)


def features(rows: int, seed: int = 0, frames: int = FRAMES) -> Tensor:
    """Features of audio."""
    return torch.randn(rows, CHANNELS, frames, generator=torch.Generator().manual_seed(seed))


@cache
def translator() -> tuple[Translator, EncoderDecoder]:
    """(model, its two graphs)."""
    model = Translator().eval()
    return model, qfunc.encoder_decoder(LENGTH, features(1))(model)
