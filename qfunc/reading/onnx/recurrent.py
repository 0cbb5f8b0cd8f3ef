"""Read LSTM, GRU and RNN as one op a direction."""

from __future__ import annotations

import operator
from typing import Any

import torch

from qfunc.ops.recurrent import gru, lstm, rnn
from qfunc.reading.node import NodeReader, Reader
from qfunc.reading.values import Constant

_GATES = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}
"""The positions in ONNX of torch's gates: i, o, f, c become i, f, g, o; z, r, h become r, z, n."""
_OPS: dict[str, Any] = {"LSTM": lstm, "GRU": gru, "RNN": rnn}
_DEFAULT = {"LSTM": ["sigmoid", "tanh", "tanh"], "GRU": ["sigmoid", "tanh"], "RNN": ["tanh"]}


def _recurrent(r: NodeReader) -> Any:
    ways = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}[r.attribute("direction", "forward")]
    names = [str(n.decode() if isinstance(n, bytes) else n).lower() for n in r.attribute("activations", [])]
    names = names or _DEFAULT[r.op] * len(ways)
    _require_known(r, names, len(ways))
    states = 2 if r.op == "LSTM" else 1
    ends: list[list[Any]] = [[] for _ in range(states)]
    steps = []
    x = r.call(torch.transpose, r.x(), 0, 1) if r.attribute("layout", 0) else r.x()
    for way, reverse in enumerate(ways):
        weights = [_rows(r, i, way) for i in (1, 2)]
        biases = _biases(r, way)
        given = [_state(r, 5 + k, way) for k in range(states)]
        more = (names[way],) if r.op == "RNN" else ()
        whole = r.call(_OPS[r.op], x, *given, *weights, *biases, reverse, *more)
        parts = whole if isinstance(whole, tuple) else [r.call(operator.getitem, whole, k) for k in range(states + 1)]
        steps.append(r.call(torch.unsqueeze, parts[0], 1))
        for end, part in zip(ends, parts[1:], strict=True):
            end.append(part)
    results = [_joined(r, steps, 1), *(_joined(r, end, 0) for end in ends)]
    if r.attribute("layout", 0):
        results = [r.call(torch.permute, results[0], (2, 0, 1, 3)), *(r.call(torch.transpose, e, 0, 1) for e in results[1:])]
    return results


def _require_known(r: NodeReader, names: list[str], ways: int) -> None:
    known = names == _DEFAULT[r.op] * ways or (r.op == "RNN" and set(names) <= {"tanh", "relu"})
    lengths = r.has(4) and r.tensor(4) is None
    if r.has(4) and (given := r.tensor(4)) is not None and (n := r.length(0)) is not None:
        lengths = bool((given != n).any())
    before = r.op != "GRU" or r.attribute("linear_before_reset", 0)
    odd = [
        *([] if known else [f"activations {names}"]), *(["lengths of sequences"] if lengths else []),
        *(["peepholes"] if r.op == "LSTM" and r.has(7) else []), *([] if before else ["linear_before_reset=0"]),
        *(["clip"] if r.attribute("clip") is not None else []), *(["input_forget"] if r.attribute("input_forget", 0) else []),
    ]  # fmt: skip
    if odd:
        raise r.refuse(" and ".join(odd), "a layer as PyTorch has it", "Leave the layer out: read(..., outputs=(...)).")


def _blocks(r: NodeReader, tensor: torch.Tensor) -> torch.Tensor:
    gates = _GATES[r.op]
    return tensor.reshape(len(gates), -1, *tensor.shape[1:])[list(gates)].reshape(tensor.shape)


def _rows(r: NodeReader, index: int, way: int) -> Constant:
    suffix = "_reverse" if way else ""
    value = _blocks(r, r.known(index, "weights")[way])
    return Constant(value.contiguous(), f"{r.path}.{('weight_ih', 'weight_hh')[index - 1]}{suffix}", True)


def _biases(r: NodeReader, way: int) -> tuple[Constant | None, Constant | None]:
    if not r.has(3):
        return None, None
    both = r.known(3, "biases")[way]
    suffix = "_reverse" if way else ""
    first, second = (_blocks(r, part).contiguous() for part in both.reshape(2, -1))
    return Constant(first, f"{r.path}.bias_ih{suffix}", True), Constant(second, f"{r.path}.bias_hh{suffix}", True)


def _state(r: NodeReader, index: int, way: int) -> Any:
    if not r.has(index):
        return None
    given = r.x(index)
    given = r.call(torch.transpose, given, 0, 1) if r.attribute("layout", 0) else given
    known = given.tensor if isinstance(given, Constant) else None
    if known is not None and not bool(known.any()):
        return None
    return r.call(operator.getitem, given, slice(way, way + 1))


def _joined(r: NodeReader, parts: list[Any], axis: int) -> Any:
    return parts[0] if len(parts) == 1 else r.call(torch.cat, parts, axis)


READERS: dict[str, Reader] = {"LSTM": _recurrent, "GRU": _recurrent, "RNN": _recurrent}
"""The readers of this family, by operator."""
