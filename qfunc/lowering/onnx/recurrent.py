"""Write recurrent layers as ONNX: LSTM, GRU and RNN, their weights dequantized from codes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, fx

from qfunc.lowering.onnx.context import OpContext, known
from qfunc.lowering.onnx.formula import Writer

ORDER = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "rnn": (0,)}
"""The positions in torch of ONNX's gates: i, f, g, o become i, o, f, c; r, z, n become z, r, h."""


def _rows(c: OpContext, kind: str) -> Tensor:
    width = c.shape("weight_hh").dims[-1]
    blocks = torch.arange(len(ORDER[kind]) * known(c, width)).reshape(len(ORDER[kind]), -1)
    return blocks[list(ORDER[kind])].flatten()


def _bias(c: OpContext, rows: Tensor, name: str) -> Tensor:
    node = c[name]
    return c.constant_value(node).detach()[rows] if isinstance(node, fx.Node) else torch.zeros(len(rows))


def _recurrent(kind: str, states: Sequence[str]) -> Callable[[OpContext], list[str]]:
    """Return the writer of one layer in one direction; ONNX has an axis of directions."""

    def write(c: OpContext) -> list[str]:
        g, name, batched = c.graph, c.name, c.shape().rank == 3
        middle = g.integers(1, name=f"{name}.middle")
        x = c.input() if batched else g.node("Unsqueeze", [c.input(), middle], f"{name}.batched")
        rows = _rows(c, kind)
        weights = [c.permuted_constant(c[n], rows) for n in ("weight_ih", "weight_hh")]
        biases = [_bias(c, rows, n) for n in ("bias_ih", "bias_hh")]
        bias = g.constant(torch.cat(biases)[None].float(), f"{name}.biases") if c["bias_ih"] is not None else ""
        initial_states = [_state(c, s, batched, middle) for s in states]
        output_names = [f"{name}.{n}" for n in ("steps", *(f"last_{s}" for s in states))]
        outputs = g.many(
            kind.upper(), [x, *weights, bias, "", *initial_states], output_names,
            hidden_size=known(c, c.shape("weight_hh").dims[-1]), direction="reverse" if c["reverse"] else "forward",
            linear_before_reset=1 if kind == "gru" else None,
            activations=[c["nonlinearity"].capitalize()] if kind == "rnn" else None,
        )  # fmt: skip
        steps, last_states = g.node("Squeeze", [outputs[0], middle], f"{name}.one_way"), outputs[1:]
        if not batched:
            steps = g.node("Squeeze", [steps, middle], f"{name}.alone")
            last_states = [g.node("Squeeze", [o, middle], f"{o}.alone") for o in last_states]
        return [steps, *last_states]

    return write


def _state(c: OpContext, name: str, batched: bool, middle: str) -> str:
    if c[name] is None:
        return ""
    return c.input(name) if batched else c.graph.node("Unsqueeze", [c.input(name), middle], f"{c.name}.{name}")


WRITERS: dict[str, Writer] = {
    "lstm": _recurrent("lstm", ("hx", "cx")), "gru": _recurrent("gru", ("hx",)), "rnn": _recurrent("rnn", ("hx",)),
}  # fmt: skip
"""The writers of this family, by kind: each returns the names of the output and of the last states."""
