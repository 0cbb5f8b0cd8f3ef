"""Recurrent layers as ops with visible weights: one op for each layer and direction, one for each step of a cell."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from qfunc.ops.definition import Op, Trait, op
from qfunc.ops.shape import time_first

Pair = tuple[Tensor, Tensor]


def _over_time(run: Callable[[Tensor], Any], input: Tensor, reverse: bool) -> Any:
    # Run on a batch in the direction of the op; `run` returns the output and the states.
    batched = input.ndim == 3
    x = input if batched else input.unsqueeze(1)
    steps = x[:1] if x.is_meta else x  # without values all steps are alike, and torch would run each
    made, *states = run(steps.flip(0) if reverse else steps)
    made = made.flip(0) if reverse else made
    made = made.new_empty(x.shape[0], *made.shape[1:]) if x.is_meta else made
    return (made, *states) if batched else (made.squeeze(1), *(s.squeeze(1) for s in states))


def _state(state: Tensor | None, x: Tensor, weight: Tensor) -> Tensor:
    if state is None:
        return x.new_zeros(1, x.shape[1], weight.shape[1])
    return state if state.ndim == 3 else state.unsqueeze(1)


def _weights(*tensors: Tensor | None) -> list[Tensor]:
    return [t for t in tensors if t is not None]


def lstm(
    input: Tensor,
    hx: Tensor | None,
    cx: Tensor | None,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None,
    bias_hh: Tensor | None,
    reverse: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run one layer of nn.LSTM in one direction, over [T, N, C] or [T, C]; return (output at each step, last h, last c).

    >>> y, h, c = lstm(torch.ones(5, 2, 3), None, None, torch.ones(16, 3), torch.ones(16, 4), None, None, False)
    >>> y.shape, h.shape, c.shape
    (torch.Size([5, 2, 4]), torch.Size([1, 2, 4]), torch.Size([1, 2, 4]))
    """
    weights = _weights(weight_ih, weight_hh, bias_ih, bias_hh)

    def run(x: Tensor) -> Any:
        states = [_state(s, x, weight_hh) for s in (hx, cx)]
        return torch.lstm(x, states, weights, len(weights) > 2, 1, 0.0, torch.is_grad_enabled(), False, False)

    return _over_time(run, input, reverse)  # type: ignore[no-any-return]


def gru(
    input: Tensor,
    hx: Tensor | None,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None,
    bias_hh: Tensor | None,
    reverse: bool,
) -> Pair:
    """Run one layer of nn.GRU in one direction; return (output at each step, last h).

    >>> gru(torch.ones(5, 2, 3), None, torch.ones(12, 3), torch.ones(12, 4), None, None, True)[0].shape
    torch.Size([5, 2, 4])
    """
    weights = _weights(weight_ih, weight_hh, bias_ih, bias_hh)

    def run(x: Tensor) -> Any:
        return torch.gru(x, _state(hx, x, weight_hh), weights, len(weights) > 2, 1, 0.0, torch.is_grad_enabled(), False, False)

    return _over_time(run, input, reverse)  # type: ignore[no-any-return]


def rnn(
    input: Tensor,
    hx: Tensor | None,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None,
    bias_hh: Tensor | None,
    reverse: bool,
    nonlinearity: str,
) -> Pair:
    """Run one layer of nn.RNN in one direction, with the nonlinearity "tanh" or "relu".

    >>> rnn(torch.ones(5, 3), None, torch.ones(4, 3), torch.ones(4, 4), None, None, False, "relu")[0].shape
    torch.Size([5, 4])
    """
    weights = _weights(weight_ih, weight_hh, bias_ih, bias_hh)
    function = torch.rnn_tanh if nonlinearity == "tanh" else torch.rnn_relu

    def run(x: Tensor) -> Any:
        return function(x, _state(hx, x, weight_hh), weights, len(weights) > 2, 1, 0.0, torch.is_grad_enabled(), False, False)

    return _over_time(run, input, reverse)  # type: ignore[no-any-return]


_STATES = {lstm: 2, gru: 1, rnn: 1}
_WEIGHTS = "weight_ih weight_hh bias_ih=None bias_hh=None reverse=False"


def _gates(count: int) -> tuple[Tensor, Tensor, None, None, bool]:
    return torch.linspace(1, -1, 24 * count).reshape(4 * count, 6), torch.zeros(4 * count, 4), None, None, False


_LAYER = Trait.RECURRENT | Trait.NEVER_BOOLEAN

ROWS: tuple[Op, ...] = (
    op("lstm", lstm, f"input hx cx {_WEIGHTS}", results=3, traits=_LAYER,
       example=lambda x: lstm(x[0], None, None, *_gates(4))),
    op("gru", gru, f"input hx {_WEIGHTS}", results=2, traits=_LAYER, example=lambda x: gru(x[0], None, *_gates(3))),
    op("rnn", rnn, f"input hx {_WEIGHTS} nonlinearity='tanh'", results=2, traits=_LAYER,
       example=lambda x: rnn(x[0], None, *_gates(1), "tanh")),
)  # fmt: skip

Emit = Callable[..., Any]
"""emit(function, *arguments) -> the value of a new call."""


def unrolled(
    emit: Emit,
    entry: Callable[[Any, int], Any],
    op: Callable[..., Any],
    source: Any,
    states: Sequence[Any] | None,
    weights: Sequence[Sequence[Any]],
    bidirectional: bool,
    batch_first: bool,
    nonlinearity: tuple[str, ...] = (),
    between: Callable[[Any], Any] | None = None,
) -> tuple[Any, ...]:
    """Write a recurrent layer as one op per level and direction; return (output, last h, and for lstm last c).

    Args:
        emit: Writes a call.
        entry: (call, i) -> the i-th result of a call.
        op: `lstm`, `gru` or `rnn`.
        source: The input.
        states: The initial states, each for all levels and directions; None for zeros.
        weights: For each level and direction (weight_ih, weight_hh, bias_ih, bias_hh), biases perhaps None.
        bidirectional: Every second op runs backwards.
        batch_first: The batch is the first axis of the input.
        nonlinearity: The nonlinearity of an rnn.
        between: A function of a level's output before the next level reads it, such as dropout.
    """
    ways = 2 if bidirectional else 1
    ends: list[list[Any]] = [[] for _ in range(_STATES[op])]
    source = emit(time_first, source) if batch_first else source
    for level in range(len(weights) // ways):
        if level and between is not None:
            source = between(source)
        outputs = []
        for way in range(ways):
            k = level * ways + way
            given = [None] * len(ends) if states is None else [_rows(emit, s, k) for s in states]
            made = emit(op, source, *given, *weights[k], way == 1, *nonlinearity)
            outputs.append(entry(made, 0))
            for place, end in enumerate(ends):
                end.append(entry(made, 1 + place))
        source = outputs[0] if ways == 1 else emit(torch.cat, outputs, -1)
    source = emit(time_first, source) if batch_first else source
    return source, *(e[0] if len(e) == 1 else emit(torch.cat, e, 0) for e in ends)


def gated(emit: Emit, kind: str, ours: Any, theirs: Any, h: Any, c: Any) -> tuple[Any, ...]:
    """Write one step of a cell, from the products of its input and its state; return (h,), and for "lstm" (h, c).

    Args:
        emit: Writes a call.
        kind: "lstm", "gru", "tanh" or "relu".
        ours: weight_ih x + bias_ih, the gates side by side.
        theirs: weight_hh h + bias_hh.
        h: The previous state.
        c: The previous cell state, for an lstm.
    """

    def parts(value: Any, count: int) -> list[Any]:
        split = emit(torch.chunk, value, count, -1)
        return [emit(operator.getitem, split, k) for k in range(count)]

    def both(function: Any, a: Any, b: Any) -> Any:
        return emit(function, emit(torch.add, a, b))

    if kind == "lstm":
        i, f, g, o = parts(emit(torch.add, ours, theirs), 4)
        kept = emit(torch.mul, emit(torch.sigmoid, f), c)
        c = emit(torch.add, kept, emit(torch.mul, emit(torch.sigmoid, i), emit(torch.tanh, g)))
        return emit(torch.mul, emit(torch.sigmoid, o), emit(torch.tanh, c)), c
    if kind == "gru":
        (r, z, n), (hr, hz, hn) = parts(ours, 3), parts(theirs, 3)
        r, z = both(torch.sigmoid, r, hr), both(torch.sigmoid, z, hz)
        n = both(torch.tanh, n, emit(torch.mul, r, hn))
        return (emit(torch.add, n, emit(torch.mul, z, emit(torch.sub, h, n))),)
    return (both(torch.tanh if kind == "tanh" else torch.relu, ours, theirs),)


def _rows(emit: Emit, state: Any, k: int) -> Any:
    return emit(torch.narrow, state, 0, k, 1)
