"""Refuse positions outside of a state: ONNX Runtime counts negative ones from the end, and keeps one of equal ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from qfunc.errors import VerifyError
from qfunc.graph.input_limits.positions import PASS_POSITIONS, WrittenPositions, axis_before
from qfunc.targets.onnxruntime.attended_positions import positions_check

Run = Callable[[Sequence[Any]], list[Any]]

_CASTS = ("Cast", "Identity", "QuantizeLinear", "DequantizeLinear")
_END = 2**31  # of slices without an end


def with_checked_positions(run: Run, model: bytes) -> Run:
    """Return `run` of a model that first raises for positions that are not in the state that it writes into, each once.

    The positions are inputs that ScatterElements reads after casts and expansions, or GroupQueryAttention by their maxima.

    Raises:
        VerifyError: names the input, the position, and the state with its length; or as `positions_check`.
    """
    written, attended = _written(model), positions_check(model)
    if not written:
        return run

    def checked(given: Sequence[Any]) -> list[Any]:
        tensors = [torch.as_tensor(np.asarray(value)) for value in given]
        for w in written:
            if found := w.wrong(tensors):
                position, wanted = found
                where = f"OnnxRuntimeRunner, input {w.name!r}"
                raise VerifyError(where=where, found=position, wanted=wanted, do=PASS_POSITIONS)
        attended(given)
        return run(given)

    return checked


def _written(model: bytes) -> tuple[WrittenPositions, ...]:
    import onnx
    from onnx import numpy_helper

    graph = onnx.ModelProto.FromString(model).graph
    inputs, producers = [v.name for v in graph.input], {name: n for n in graph.node for name in n.output}
    numbers = {t.name: numpy_helper.to_array(t).reshape(-1).tolist() for t in graph.initializer if t.data_type == t.INT64}
    found = dict[tuple[str, int | None], WrittenPositions]()
    for node in graph.node:
        along: int | None
        if node.op_type == "ScatterElements":
            state, index = node.input[0], node.input[1]
            along = axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
        elif node.op_type == "GroupQueryAttention" and len(node.input) > 5:
            state, index, along, axis = node.input[3], node.input[5], None, 2
        else:
            continue
        while state in producers and producers[state].op_type in _CASTS:
            state = producers[state].input[0]
        count = 0
        while (view := producers.get(index)) is not None:
            if view.op_type == "ReduceMax" and node.op_type == "GroupQueryAttention":
                along, count = 1, 2  # the last position of each row of [N, T], for a state [N, H, L, D]
            elif (new := _inserted(view, numbers)) is None:
                break
            else:
                along, count = axis_before(along, new), count + len(new)
            index = view.input[0]
        if index in inputs and state in inputs and axis >= 0:
            made = WrittenPositions(index, inputs.index(index), state, inputs.index(state), axis, along, count)
            found.setdefault((index, along), made)
    return tuple(found.values())


def _inserted(view: Any, numbers: dict[str, list[int]]) -> list[int] | None:
    # The axes that a view with all entries inserts; None for other ops.
    if view.op_type == "Unsqueeze":
        return numbers.get(view.input[1]) if len(view.input) > 1 else None
    if view.op_type == "Slice":
        starts, ends, _, steps = (numbers.get(name, []) for name in (*view.input[1:], "", "", "")[:4])
        return [] if ends and not any(starts) and min(ends) >= _END and set(steps) <= {1} else None
    return [] if view.op_type in ("Cast", "Expand", "Identity") else None
