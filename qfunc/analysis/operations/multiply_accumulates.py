"""The multiply-accumulates of each op of a network for one batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils.flop_counter import FlopCounterMode

from qfunc.analysis.lockstep import TRANSPARENT, Ops
from qfunc.ops.node import kind_of, op_of, parameters_of

aten = torch.ops.aten


def multiply_accumulates(ops: Ops, arguments: tuple[Any, ...]) -> dict[fx.Node, int]:
    """Return the multiply-accumulates of each op for one batch.

    Recurrent layers multiply each of their T N inputs and states by a matrix: T N (|W_ih| + |W_hh|).  Attention of queries
    [..., L, E] over S keys with values of width V has L S (E + V) for each head.  A product of matrices has K for each entry of
    its result.  All else is counted by torch, whose counter omits these ops or those of vectors.
    """
    values, counts = ops.inputs(arguments), {}
    counter = FlopCounterMode(display=False, custom_mapping=_OF_VECTORS)
    counter.mod_tracker = _Global()  # type: ignore[assignment]
    with counter:
        for node in ops.nodes:
            before = counter.get_total_flops()
            if kind_of(node) in TRANSPARENT:
                values[node] = values[node.all_input_nodes[0]]
            elif node.op != "placeholder":
                values[node] = ops.call(node, values.__getitem__)
            own = _own_count(node, values)
            counts[node] = (counter.get_total_flops() - before) // 2 if own is None else own
    return counts


def _own_count(node: fx.Node, values: Mapping[fx.Node, Any]) -> int | None:
    # The count of an op for which torch's counter may have none, from its values; None for other ops.
    rule = _RULES.get(kind_of(node)) if op_of(node) is not None else None
    if rule is None:
        return None
    given = fx.map_arg(node.args, lambda n: values.get(n))
    return rule(dict(zip(parameters_of(node), given, strict=True)), values[node])


def _recurrent(given: Mapping[str, Any], result: Any) -> int:
    x: Tensor = given["input"]
    return x.numel() // max(x.shape[-1], 1) * int(given["weight_ih"].numel() + given["weight_hh"].numel())


def _attention(given: Mapping[str, Any], result: Any) -> int:
    query, key, value = given["query"], given["key"], given["value"]
    scores = math.prod(result.shape[:-1]) * key.shape[-2]
    return int(scores * (query.shape[-1] + value.shape[-1]))


def _matmul(given: Mapping[str, Any], result: Any) -> int:
    return int(result.numel() * given["input"].shape[-1])


_RULES: dict[str, Callable[[Mapping[str, Any], Any], int]] = {
    **dict.fromkeys(("lstm", "gru", "rnn"), _recurrent), **dict.fromkeys(("sdpa", "cached_attention"), _attention),
    "matmul": _matmul,
}  # fmt: skip


def _vectors(*shapes: Any, out_shape: Any = None, **_: Any) -> int:
    # A matrix or vector times a vector: the number of floating point operations is twice that of the larger operand.
    return 2 * max(math.prod(s) for s in shapes if isinstance(s, torch.Size))


_OF_VECTORS: dict[Any, Any] = dict.fromkeys((aten.mv, aten.addmv, aten.dot, aten.vdot), _vectors)
"""Products in modules of the user's, which torch does not count."""


class _Global:
    """Counts all ops under one name: torch's own tracker hooks into the modules of all threads, which then fail."""

    parents = frozenset({"Global"})

    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...
