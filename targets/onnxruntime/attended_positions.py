"""Refuse positions that GroupQueryAttention does not take: ONNX Runtime names no input, or an index of another op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from qfunc.errors import VerifyError

_OPERATOR, _LENGTHS = "GroupQueryAttention", 5
_VIEWS = ("Cast", "ReduceMax")


def positions_check(model: bytes) -> Callable[[Sequence[Any]], None]:
    """Return a function that raises for inputs of a model whose positions GroupQueryAttention does not take.

    A row of T tokens has T positions in a run, in any order.  Several rows have one token each, or the first T positions.

    Raises:
        VerifyError: names the input of positions.
    Source: ONNX Runtime, contrib_ops/cpu/bert/group_query_attention_helper.h, `is_subsequent_prompt`.
    """
    import onnx

    graph = onnx.ModelProto.FromString(model).graph
    inputs, producers = [v.name for v in graph.input], {name: n for n in graph.node for name in n.output}
    found: dict[str, int] = {}
    for node in graph.node:
        if node.op_type == _OPERATOR and len(node.input) > _LENGTHS:
            name = node.input[_LENGTHS]
            while (view := producers.get(name)) is not None and view.op_type in _VIEWS:
                name = view.input[0]
            if name in inputs:
                found[name] = inputs.index(name)

    def check(given: Sequence[Any]) -> None:
        for name, place in found.items():
            if wrong := _wrong(np.sort(np.asarray(given[place]), 1)):
                position, wanted, do = wrong
                raise VerifyError(where=f"OnnxRuntimeRunner, input {name!r}", found=position, wanted=wanted, do=do)

    return check


def _wrong(positions: Any) -> tuple[str, str, str] | None:
    # (found, wanted, do)
    rows, tokens = positions.shape
    apart = (np.diff(positions) != 1).any(1)
    if apart.any():
        row = int(apart.argmax())
        wanted, do = "positions in a run for GroupQueryAttention", "Pass those of decoder.inputs(ids), and after them last + 1."
        return f"the positions {positions[row].tolist()} in row {row}", wanted, do
    if rows > 1 and tokens > 1 and positions.max() >= tokens:
        wanted = "one token of each row, or one row: GroupQueryAttention takes no others after the first"
        do = "Run each row by itself, or one token after the other."
        return f"{tokens} tokens of each of {rows} rows, after others", wanted, do
    return None
