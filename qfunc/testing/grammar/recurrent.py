"""Recurrent layers as model authors write them; each block takes and returns the name of tokens [N, T, C]."""

from __future__ import annotations

from qfunc.testing.grammar.draft import Block, Draft


def recurrent(d: Draft, x: str) -> str:
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


def columns(d: Draft, x: str) -> str:
    """Read the columns of an image [N, C, H, W] as tokens (CRNN), by the mean over rows or by all of them."""
    if d.chance(0.5):
        return d.let(f"{x}.mean(2).{d.pick('transpose(1, 2)', 'permute(0, 2, 1)')}")
    return d.let(d.pick(f"{x}.flatten(1, 2).transpose(1, 2)", f"{x}.permute(0, 3, 1, 2).flatten(2)"))


RECURRENT_BLOCKS: tuple[Block, ...] = (recurrent,)
"""The blocks of recurrent layers."""

__all__ = ["RECURRENT_BLOCKS", "columns", "recurrent"]
