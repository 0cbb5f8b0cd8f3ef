"""A row of the table of numerics: one algorithm or format, where its equation stands, and what it was held against."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from attrs import frozen
from torch import Tensor

from qfunc.specs import Int, Scheme, ZeroPoint

S8, S4 = Scheme(Int(8, low=-127)), Scheme(Int(4))
U8, U4 = (Scheme(Int(bits, signed=False), zero_point=ZeroPoint()) for bits in (8, 4))


@frozen
class Row:
    """`check` compares ours with the oracle and returns how many numbers were compared."""

    name: str
    source: str
    oracle: str
    check: Callable[[], int]


def draws(count: int, size: int = 24, batches: int = 3) -> Iterator[list[Tensor]]:
    """`count` times some batches of `size` numbers: normal, skewed, never negative, with an outlier in turn."""
    for seed in range(count):
        g = torch.Generator().manual_seed(seed)
        made = [torch.randn(size, generator=g) * 2.0 ** (seed % 7 - 3) + seed % 3 for _ in range(batches)]
        if seed % 4 == 1:
            made = [x.relu() for x in made]
        if seed % 4 == 2:
            made[0][0] = 40.0
        yield made
