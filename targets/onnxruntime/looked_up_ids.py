"""Refuse ids outside of the tables of a file: ONNX Runtime counts negative ones from the end, or reads other memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from qfunc.errors import VerifyError

__all__ = ["with_checked_ids"]

Run = Callable[[Sequence[Any]], list[Any]]

_MOVES, _LOOKUPS = ("Cast", "Reshape"), ("Gather", "GatherBlockQuantized")


def with_checked_ids(run: Run, model: bytes) -> Run:
    """Return `run` of a model that first raises for ids outside of the tables that its inputs index.

    The tables are those of Gather and GatherBlockQuantized, whose indices are inputs, directly or after casts and reshapes.

    Raises:
        VerifyError: names the input, the id, the table and its rows.
    """
    import onnx

    graph = onnx.ModelProto.FromString(model).graph
    rows = {t.name: t.dims[0] for t in graph.initializer if t.dims}
    inputs = {v.name: place for place, v in enumerate(v for v in graph.input if v.name not in rows)}
    names = {name: name for name in inputs}  # tensor -> the input whose entries it has
    tables: list[tuple[str, str]] = []
    for node in graph.node:
        if node.op_type in _MOVES and node.input[0] in names:
            names[node.output[0]] = names[node.input[0]]
        along = next((a.i for a in node.attribute if a.name in ("axis", "gather_axis")), 0)
        if node.op_type in _LOOKUPS and not along and node.input[0] in rows and node.input[1] in names:
            tables.append((names[node.input[1]], node.input[0]))
    if not tables:
        return run

    def checked(given: Sequence[Any]) -> list[Any]:
        for name, table in tables:
            ids = np.asarray(given[inputs[name]])
            low, high = (int(ids.min()), int(ids.max())) if ids.size else (0, 0)
            if low < 0 or high >= rows[table]:
                raise VerifyError(
                    where=f"OnnxRuntimeRunner, input {name!r}",
                    found=f"the id {low if low < 0 else high}",
                    wanted=f"ids from 0 to {rows[table] - 1}, as the table {table!r} has {rows[table]} rows",
                    do="Pass ids of the model's own tokenizer or table.",
                )
        return run(given)

    return checked
