"""Expand the recurrent layers of torch.export, such as aten.lstm, to the ops of `qfunc.ops.recurrent`."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import fx

from qfunc.errors import CaptureError
from qfunc.frontend.source_location import source_line
from qfunc.ops.indexing import element
from qfunc.ops.recurrent import gated, gru, lstm, rnn, unrolled

_LAYERS: dict[str, Callable[..., Any]] = {"lstm": lstm, "gru": gru, "rnn_tanh": rnn, "rnn_relu": rnn}
_CELLS = {"lstm_cell": "lstm", "gru_cell": "gru", "rnn_tanh_cell": "tanh", "rnn_relu_cell": "relu"}


def expand_recurrent(graph: fx.Graph) -> None:
    """Replace each recurrent layer by one op per level and direction, and each cell by linear layers, in place.

    Raises:
        CaptureError: a layer has a packed sequence or a projection.
    """
    for node in list(graph.nodes):
        target = str(node.target).split(".")
        if node.op != "call_function" or target[0] != "aten":
            continue
        if target[1] in _LAYERS:
            _require_supported(node, target[1], target[2])
            _replace(node, _layer(node, target[1]))
        elif target[1] in _CELLS:
            _replace(node, _cell(node, _CELLS[target[1]]))
    graph.lint()


def _require_supported(node: fx.Node, name: str, overload: str) -> None:
    found, do = "", ""
    if overload == "data":
        found, do = f"{name} over a packed sequence", "Pad the sequences and pass the padded tensor."
    elif len(node.args[2]) != _weight_count(node):  # type: ignore[arg-type]
        found = f"{name} with proj_size"
        do = "Pass torch.export.export(model, inputs).run_decompositions(), which has the steps as linear layers."
    if found:
        where = source_line(node) or f"node {node.name!r}"
        raise CaptureError(where=where, found=found, wanted="a padded batch without projections", do=do)


def _weight_count(node: fx.Node) -> int:
    _, _, _, biases, levels, _, _, bidirectional, _ = node.args
    return int(levels) * (2 if bidirectional else 1) * (4 if biases else 2)  # type: ignore[arg-type]


def _emit(node: fx.Node) -> Callable[..., fx.Node]:
    def emit(function: Callable[..., Any], *arguments: Any) -> fx.Node:
        with node.graph.inserting_before(node):
            call = node.graph.call_function(function, arguments)
        call.meta = {k: v for k, v in node.meta.items() if k in ("nn_module_stack", "stack_trace")}
        call.stack_trace = node.stack_trace
        return call

    return emit


def _layer(node: fx.Node, name: str) -> tuple[Any, ...]:
    source, hx, params, biases, _, dropout, _, bidirectional, batch_first = node.args
    each = 4 if biases else 2
    tensors: Any = params
    weights = [(*tensors[k : k + each], *((None,) * (4 - each))) for k in range(0, len(tensors), each)]
    emit, p = _emit(node), float(dropout)  # type: ignore[arg-type]
    states: Any = hx if name == "lstm" else (hx,)
    kind = () if not name.startswith("rnn") else (name.removeprefix("rnn_"),)
    between = (lambda x: emit(F.dropout, x, p, False)) if p else None
    return unrolled(
        emit, lambda made, i: emit(element, made, i), _LAYERS[name], source, states, weights, bool(bidirectional),
        bool(batch_first), kind, between,
    )  # fmt: skip


def _cell(node: fx.Node, kind: str) -> tuple[Any, ...]:
    source, hx, w_ih, w_hh, *biases = node.args
    b_ih, b_hh = (*biases, None, None)[:2]
    emit, states = _emit(node), hx if kind == "lstm" else (hx, None)
    h, c = states  # type: ignore[misc]
    return gated(emit, kind, emit(F.linear, source, w_ih, b_ih), emit(F.linear, h, w_hh, b_hh), h, c)


def _replace(node: fx.Node, values: tuple[Any, ...]) -> None:
    for user in list(node.users):
        if user.op == "call_function" and user.target is operator.getitem:
            user.replace_all_uses_with(values[user.args[1]])  # type: ignore[index]
            node.graph.erase_node(user)
    node.replace_all_uses_with(values[0])
    node.graph.erase_node(node)
