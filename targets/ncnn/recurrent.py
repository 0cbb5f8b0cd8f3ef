"""Recurrent layers as ncnn's layers, in float32: one layer in one direction, from the LSTM, GRU and RNN of ONNX.

Rows of weights are in blocks of one gate; ONNX has i, o, f, c and z, r, h, ncnn has i, f, o, g and r, u, n.  The biases of
the input and of the state are one sum, but for the gate n of a GRU, where r multiplies that of the state.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from qfunc.lowering.qdq.qparams import Array
from qfunc.targets.ncnn.builder import tagged
from qfunc.targets.ncnn.writer import OpContext


def _blocks(value: Array, order: tuple[int, ...]) -> Array:
    """Return rows [gates * hidden, ...] with their blocks in another order."""
    return value.reshape(len(order), -1, *value.shape[1:])[list(order)]


def _summed(ours: Array, theirs: Array) -> Array:
    return ours + theirs


def _gru_bias(ours: Array, theirs: Array) -> Array:
    return np.stack([*(ours + theirs)[:2], ours[2], theirs[2]])


def recurrent(kind: str, order: tuple[int, ...], bias: Callable[[Array, Array], Array]) -> Callable[[OpContext], None]:
    """Return the writer of a layer of that kind, whose gates have that order among ONNX's.

    Raises:
        DeployError: weights that are computed.
    """

    def write(step: OpContext) -> None:
        given = [step.constant_input(index) for index in (1, 2, 3)]
        if given[0] is None or given[1] is None or (given[2] is None and step.present(3)):
            raise step.refuse("weights that are computed", "constants", "Compute them once, outside the model.")
        w, r = (_blocks(each.real[0], order) for each in given[:2] if each is not None)
        hidden = r.shape[-1]
        both = np.zeros(2 * len(order) * hidden, np.float32) if given[2] is None else given[2].real[0]
        ours, theirs = (_blocks(half, order) for half in np.split(both, 2))
        x, states = step.input(), [step.input(index) for index in (5, 6) if step.present(index)]
        steps = x.shape[0]
        reverse = int(step.attribute("direction", b"forward") in (b"reverse", "reverse"))
        shapes = [(steps, hidden), *[(1, hidden)] * (2 if kind == "LSTM" else 1)]
        parameters, held = {0: hidden, 1: int(w.size), 2: reverse}, [tagged(v) for v in (w, bias(ours, theirs), r)]
        outputs = step.file.outputs(kind, [x, *states], list(step.node.output), shapes, parameters, held)
        for blob, name in zip(outputs, step.node.output, strict=True):
            step.keep(blob, name)

    return write


LSTM = recurrent("LSTM", (0, 2, 1, 3), _summed)
GRU = recurrent("GRU", (1, 0, 2), _gru_bias)
RNN = recurrent("RNN", (0,), _summed)
