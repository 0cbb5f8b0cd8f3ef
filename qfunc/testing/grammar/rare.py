"""Networks that share, that hold zeros or that are recurrent, and layers and batches of zeros.

Recurrent layers are as model authors write them, on tokens [N, T, C].  Zeros are tensors that are zero whatever the input is,
and layers whose weights are zero.  A block takes and returns the name of a tensor.
"""

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
from qfunc.testing.grammar.sharing import SHARING_BLOCKS

_ZEROS = (
    "{} - {}", "{} * 0", "F.relu(-{}.abs())", "torch.zeros_like({})", "{}.clamp(0, 0)", "torch.minimum({}.abs(), {} * 0)",
    "{}.abs().clamp(max=0)", "0 * {} + {} * 0.0",
)  # fmt: skip
"""Formulas whose value is zero."""
_READERS = (
    "{z}", "{x} + {z}", "{z} + {x}", "{x} * {z}", "torch.cat([{x}, {z}], 1)", "torch.cat([{z}, {z}], 1)", "{x} - {z}",
    "torch.maximum({x}, {z})", "{z}.softmax(-1)", "torch.sigmoid({z}) * {x}", "torch.stack([{x}, {z}], 1).sum(1)",
    "{z}.mean(-1)", "F.normalize({z} + 1e-3, dim=1)", "F.gelu({z}) + {x}", "{x} @ {z}.transpose(-1, -2)",
    "{x}.softmax(-1) + {z}",
)  # fmt: skip
"""Formulas that read a zero z and another value x."""


def sharing(d: Draft) -> tuple[str, ...]:
    """Constants, layers and norms that two ops read."""
    return _mixed(d, SHARING_BLOCKS)


def zeros(d: Draft) -> tuple[str, ...]:
    """Values, constants and weights that are zero."""
    return _mixed(d, _ZERO_BLOCKS)


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
        x = _columns(d, apply_blocks(d, stage(d, image_input(d)), (stage, residual), 0, 1))
    elif kind == "ids":
        x = d.input(f"torch.randint(0, 20, (n, {d.pick(4, 7)}))")
        x = d.let(f"{d.layer('embed', 'nn.Embedding(20, 8)')}({x})")
    else:
        x = d.input(f"torch.randn(n, {d.pick(4, 7)}, {d.pick(5, 8)}){input_range(d)}")
    for _ in range(d.pick(1, 1, 2)):
        x = _recurrent(d, x)
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


def _recurrent(d: Draft, x: str) -> str:
    """Apply an LSTM, a GRU or an RNN; return its outputs, or a part of them."""
    c, kind, hidden = d.shape(x)[2], d.pick("LSTM", "LSTM", "GRU", "GRU", "RNN"), d.pick(4, 6, 8)
    first = d.chance(0.7)
    options = ", batch_first=True" if first else ""
    options += ", bidirectional=True" if d.chance(0.4) else ""
    options += ", num_layers=2" if d.chance(0.3) else ""
    options += ", bias=False" if d.chance(0.15) else ""
    options += ', nonlinearity="relu"' if kind == "RNN" and d.chance(0.3) else ""
    layer = d.layer(kind.lower(), f"nn.{kind}({c}, {hidden}{options})")
    inner = x if first else d.let(f"{x}.transpose(0, 1)")
    y, state = _called(d, kind, f"{layer}({inner})")
    if state and d.chance(0.4):  # the last state of the last layer
        return d.let(f"{state}[-1].unsqueeze(1)")
    y = y if first else d.let(f"{y}.transpose(0, 1)")
    return d.let(f"{y} + {x}") if d.shape(y) == d.shape(x) and d.chance(0.3) else y


def _called(d: Draft, kind: str, call: str) -> tuple[str, str]:
    # The names of the outputs and of the last hidden states, "" if the call does not name them.
    if d.chance(0.4):
        return d.let(f"{call}[0]"), ""
    d.count += 1
    y, state = f"y{d.count}", f"h{d.count}"
    rest = d.pick(f"({state}, c{d.count})", state) if kind == "LSTM" else state
    d.state(f"{y}, {rest} = {call}")
    return y, state if d.is_tensor(state) else ""


def _columns(d: Draft, x: str) -> str:
    """Read the columns of an image [N, C, H, W] as tokens (CRNN), by the mean over rows or by all of them."""
    if d.chance(0.5):
        return d.let(f"{x}.mean(2).{d.pick('transpose(1, 2)', 'permute(0, 2, 1)')}")
    return d.let(d.pick(f"{x}.flatten(1, 2).transpose(1, 2)", f"{x}.permute(0, 3, 1, 2).flatten(2)"))


_RECURRENT_BLOCKS: tuple[Block, ...] = (_recurrent,)
"""The blocks of recurrent layers."""


def _zero_value(d: Draft, x: str) -> str:
    """Compute a zero, and an op that reads it."""
    return d.let(d.pick(*_READERS).replace("{z}", d.let(d.pick(*_ZEROS).replace("{}", x))).replace("{x}", x))


def _zero_constant(d: Draft, x: str) -> str:
    """Read a parameter or a buffer of zeros."""
    size = d.pick(str(d.shape(x)[-1]), "1", ", ".join(map(str, (1, *d.shape(x)[1:]))))
    code = d.pick(f"torch.zeros({size})", f"torch.zeros({size})", f"torch.full(({size},), -0.0)", "torch.tensor(0.0)")
    zero = d.buffer(code) if d.chance(0.5) else d.layer("zero", f"nn.Parameter({code})")
    fitting = [f for f in _READERS if "{x}" in f and not any(word in f for word in ("transpose", "cat(", "stack("))]
    return d.let(d.pick(*fitting).replace("{z}", zero).replace("{x}", x))


def _zero_layer(d: Draft, x: str) -> str:
    """Apply a layer whose weights are zero (zero-initialized branches and adapters)."""
    c, last = d.shape(x)[1], d.shape(x)[-1]
    if len(d.shape(x)) == 4 and d.chance(0.5):
        y = d.let(f"F.conv2d({x}, {d.layer('zero', f'nn.Parameter(torch.zeros({c}, {c}, 1, 1))')})")
    else:
        y = d.let(f"F.linear({x}, {d.layer('zero', f'nn.Parameter(torch.zeros({last}, {last}))')})")
    return d.let(f"{x} + {y}") if d.chance(0.6) else y


_ZERO_BLOCKS: tuple[Block, ...] = (_zero_value, _zero_value, _zero_constant, _zero_layer)
"""The blocks of zeros, the common ones more than once."""
