"""A transformer encoder of one layer (Devlin et al., BERT, 2018), its attention written out."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Layer(nn.Module):
    """Attention and a feed-forward network, each added to its input and normalised."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.dense, self.norm1 = nn.Linear(width, width), nn.LayerNorm(width)
        self.up, self.down, self.norm2 = nn.Linear(width, 3 * width), nn.Linear(3 * width, width), nn.LayerNorm(width)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        """[N, T, width], and what is added to the scores: [N, 1, 1, T] -> [N, T, width]."""
        q, k, v = (self.split(f(x)) for f in (self.query, self.key, self.value))
        scores = torch.matmul(q, k.transpose(-1, -2)) / 2.0
        mixed = torch.matmul(torch.softmax(scores + bias, -1), v).permute(0, 2, 1, 3)
        x = self.norm1(self.dense(mixed.flatten(2)) + x)
        return self.norm2(self.down(F.gelu(self.up(x))) + x)

    def split(self, x: Tensor) -> Tensor:
        """[N, T, width] -> [N, heads, T, width / heads]."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class Transformer(nn.Module):
    """Token and position embeddings, one layer, a classifier on the first token."""

    def __init__(self, width: int = 8, heads: int = 2, words: int = 11, length: int = 6, classes: int = 3) -> None:
        super().__init__()
        self.word, self.position = nn.Embedding(words, width), nn.Embedding(length, width)
        self.register_buffer("positions", torch.arange(length)[None])
        self.norm, self.layer, self.classifier = nn.LayerNorm(width), Layer(width, heads), nn.Linear(width, classes)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Token ids [N, T] and a mask of ones and zeros [N, T] -> [N, classes]."""
        bias = (1.0 - mask[:, None, None, :]) * -100.0
        x = self.norm(self.word(tokens) + self.position(self.positions))
        return self.classifier(self.layer(x, bias)[:, 0])
