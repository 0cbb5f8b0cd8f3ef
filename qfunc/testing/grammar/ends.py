"""How networks begin and end: their inputs, the ranges of these, and the head of a classifier."""

from __future__ import annotations

from collections.abc import Sequence

from qfunc.testing.grammar.draft import Block, Draft

RANGES = (" * 1e-4", " * 1e3", " + 5", " * 0.1 - 3", ".abs()", " * 0", ".clamp(max=0)", " * 1e-8")
"""What a batch is multiplied with or moved by, as code."""


def apply_blocks(d: Draft, x: str, blocks: Sequence[Block], least: int, most: int) -> str:
    """Apply a drawn number of blocks."""
    for _ in range(d.random.randint(least, most)):
        x = d.attempt(d.pick(*blocks), x)
    return x


def input_range(d: Draft) -> str:
    """Return what a batch is multiplied with or moved by; mostly nothing."""
    return d.pick(*RANGES) if d.chance(0.3) else ""


def image_input(d: Draft) -> str:
    """Add an image as an input."""
    channels, height, width = d.pick(1, 3, 3, 4, 8), d.pick(7, 8, 12, 16, 16), d.pick(8, 9, 16, 16)
    return d.input(f"torch.randn(n, {channels}, {height}, {width}){input_range(d)}")


def head(d: Draft, x: str) -> tuple[str, ...]:
    """End a classifier: pool and flatten in one of the usual ways, and apply a linear layer."""
    c, h, w = d.shape(x)[1:]
    if d.chance(0.75):
        x = d.let(d.pick(f"F.adaptive_avg_pool2d({x}, 1).flatten(1)", f"{x}.mean((2, 3))", f"{x}.mean([-2, -1])",
                         f"torch.flatten(F.adaptive_avg_pool2d({x}, (1, 1)), 1)",
                         f"F.adaptive_max_pool2d({x}, 1).view(-1, {c})",
                         f"F.avg_pool2d({x}, ({h}, {w})).view({x}.size(0), -1)"))  # fmt: skip
    else:
        x = d.let(d.pick(f"{x}.view({x}.size(0), -1)", f"torch.flatten({x}, 1)", f"{x}.reshape({x}.shape[0], -1)",
                         f"{d.layer('flat', 'nn.Flatten()')}({x})"))  # fmt: skip
    x = d.let(f"F.dropout({x}, 0.1, self.training)") if d.chance(0.1) else x
    return (d.let(f"{d.layer('head', f'nn.Linear({d.shape(x)[1]}, {d.pick(5, 10)})')}({x})"),)
