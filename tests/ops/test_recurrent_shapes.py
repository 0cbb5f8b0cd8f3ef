"""Recurrent layers without values: shapes as with values, from one step, whatever the number of steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from qfunc.ops.recurrent import gru, lstm, rnn

Layer = Callable[..., Any]
LAYERS: list[tuple[Layer, str, int, int, tuple[Any, ...]]] = [
    (lstm, "lstm", 4, 2, ()),
    (gru, "gru", 3, 1, ()),
    (rnn, "rnn_tanh", 1, 1, ("tanh",)),
]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("shape", [(1, 2, 3), (7, 2, 3), (7, 3), (300, 2, 3)])
@pytest.mark.parametrize(("layer", "called", "gates", "states", "rest"), LAYERS)
def test_shapes_are_those_of_values(
    layer: Layer,
    called: str,
    gates: int,
    states: int,
    rest: tuple[Any, ...],
    shape: tuple[int, ...],
    reverse: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps, made, run = [], [], getattr(torch, called)
    monkeypatch.setattr(torch, called, lambda x, *args: (steps.append(len(x)), run(x, *args))[1])
    for device in ("cpu", "meta"):
        weights = torch.ones(gates * 4, 3, device=device), torch.ones(gates * 4, 4, device=device)
        with torch.no_grad():
            found = layer(torch.ones(shape, device=device), *(None,) * states, *weights, None, None, reverse, *rest)
        made.append([(v.shape, v.dtype) for v in found])
    assert made[0] == made[1]
    assert steps == [shape[0], 1]
