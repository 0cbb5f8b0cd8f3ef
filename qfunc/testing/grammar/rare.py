"""Networks that share, that hold zeros or that are recurrent, and layers and batches of zeros."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

from attrs import evolve

from qfunc.testing.grammar.attention import TOKEN_BLOCKS, perceptron, token_norm
from qfunc.testing.grammar.convolutions import IMAGE_BLOCKS, conv, residual, stage
from qfunc.testing.grammar.draft import Block, Draft
from qfunc.testing.grammar.ends import apply_blocks, head, image_input, input_range
from qfunc.testing.grammar.program import Input, Program
from qfunc.testing.grammar.rearrangements import SINGLE_OPS, curve
from qfunc.testing.grammar.recurrent import columns, recurrent
from qfunc.testing.grammar.sharing import SHARING_BLOCKS
from qfunc.testing.grammar.zeros import ZERO_BLOCKS


def sharing(d: Draft) -> tuple[str, ...]:
    """Constants, layers and norms that two ops read."""
    return _mixed(d, SHARING_BLOCKS)


def zeros(d: Draft) -> tuple[str, ...]:
    """Values, constants and weights that are zero."""
    return _mixed(d, ZERO_BLOCKS)


def _mixed(d: Draft, blocks: Sequence[Block]) -> tuple[str, ...]:
    # These blocks among common ones, on an image or on tokens.
    if d.chance(0.5):
        x = d.attempt(conv, image_input(d))
    else:
        x = d.input(f"torch.randn(n, {d.pick(4, 9)}, {d.pick(8, 12)}){input_range(d)}")
    for _ in range(d.pick(1, 1, 2)):
        x = d.attempt(d.pick(*_common(d, x)), x) if d.chance(0.5) else x
        x = d.attempt(d.pick(*blocks), x)
    x = d.attempt(d.pick(*_common(d, x)), x) if d.chance(0.4) else x
    return head(d, x) if len(d.shape(x)) == 4 and d.chance(0.4) else d.outcome(x)


def _common(d: Draft, x: str) -> Sequence[Block]:
    return {3: TOKEN_BLOCKS, 4: IMAGE_BLOCKS}.get(len(d.shape(x)), SINGLE_OPS)


def recurrence(d: Draft) -> tuple[str, ...]:
    """A recurrent layer on tokens, on ids, or on the columns of an image (CRNN)."""
    kind = d.pick("tokens", "tokens", "ids", "image")
    if kind == "image":
        x = columns(d, apply_blocks(d, stage(d, image_input(d)), (stage, residual), 0, 1))
    elif kind == "ids":
        x = d.input(f"torch.randint(0, 20, (n, {d.pick(4, 7)}))")
        x = d.let(f"{d.layer('embed', 'nn.Embedding(20, 8)')}({x})")
    else:
        x = d.input(f"torch.randn(n, {d.pick(4, 7)}, {d.pick(5, 8)}){input_range(d)}")
    for _ in range(d.pick(1, 1, 2)):
        x = recurrent(d, x)
        x = d.attempt(d.pick(perceptron, token_norm, curve), x) if d.chance(0.3) else x
    if d.chance(0.6):
        return (d.let(f"{d.layer('head', f'nn.Linear({d.shape(x)[-1]}, 5)')}({d.pick(x, x, f'{x}[:, -1]')})"),)
    return d.outcome(x)


RARE: tuple[Callable[[Draft], tuple[str, ...]], ...] = (sharing, sharing, sharing, zeros, recurrence)
"""The families of networks that share, that hold zeros, or that are recurrent."""


def with_zeros(drawn: Program, source: random.Random) -> Program:
    """Return the program with a layer, a norm or a batch of zeros."""
    made = re.compile(r"self\.(\w+) = nn\.(Conv|Linear|BatchNorm|GroupNorm|LayerNorm)(?!.*affine=False)")
    layers = [s for s in drawn.layers if made.match(s)]
    if layers and source.random() < 0.7:
        layer = source.choice(layers)
        name = layer.split(" = ")[0].replace("self.", "model.")
        parts = source.choice((("weight",), ("weight", "bias"), ("bias",)))
        more = (f"{name}.{part}.zero_()" for part in parts if part == "weight" or "bias=False" not in layer)
        return evolve(drawn, changes=(*drawn.changes, *more))
    place = source.randrange(len(drawn.inputs))
    one = drawn.inputs[place]
    zero = Input(one.name, re.sub(r"^(torch\.randn\([^)]*\)).*", r"\1 * 0", one.code))
    return evolve(drawn, inputs=(*drawn.inputs[:place], zero, *drawn.inputs[place + 1 :]))


__all__ = ["RARE", "with_zeros"]
