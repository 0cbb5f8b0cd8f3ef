"""Ids outside of the tables of embeddings that inputs index."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from attrs import frozen
from torch import Tensor, fx

from qfunc.errors import CaptureError
from qfunc.graph.constants import read_attr
from qfunc.numerics.kernels.requantize import clamp_to_bounds
from qfunc.ops.node import attribute, kind_of


@frozen
class IdTable:
    """A table of embeddings that an input indexes: the input's name and place, the table's path and its number of rows."""

    name: str
    place: int
    path: str
    rows: int


def id_tables(network: fx.GraphModule) -> tuple[IdTable, ...]:
    """Return the tables that inputs index, directly or after casts and reshapes.

    >>> from qfunc.frontend.capture import capture
    >>> from torch import nn
    >>> id_tables(capture()(nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 2))))
    (IdTable(name='input', place=0, path='0.weight', rows=8),)
    """
    found = []
    for place, node in enumerate(n for n in network.graph.nodes if n.op == "placeholder"):
        pending = [node]
        while pending:
            current = pending.pop()
            for user in current.users:
                kind = kind_of(user)
                clamps_nothing = user.target is clamp_to_bounds and not user.args[1]  # as an emulation has it
                if kind == "cast" or kind == "reshape" or clamps_nothing:
                    pending.append(user)
                elif kind == "embedding" and attribute(user, "indices") is current:
                    table = attribute(user, "weight")
                    while table.op != "get_attr" and table.all_input_nodes:  # its quantizer
                        table = table.all_input_nodes[0]
                    if table.op == "get_attr":
                        path = str(table.target).removeprefix("integers.")
                        found.append(IdTable(str(node.target), place, path, len(read_attr(network, table))))
    return tuple(found)


def require_ids(tables: Iterable[IdTable], inputs: Iterable[Any], where: str) -> None:
    """Refuse ids outside of the tables that they index.

    Args:
        tables: Those of `id_tables`.
        inputs: The inputs in the order of the graph's.
        where: The step, for the message.
    Raises:
        CaptureError: names the input, the id, the table and its rows.
    """
    given = list(inputs)
    for table in tables:
        value = given[table.place] if table.place < len(given) else None
        if not isinstance(value, Tensor) or not value.numel():
            continue
        low, high = (int(v) for v in torch.aminmax(value))
        if low < 0 or high >= table.rows:
            raise CaptureError(
                where=f"{where}, input {table.name!r}",
                found=f"the id {low if low < 0 else high}",
                wanted=f"ids from 0 to {table.rows - 1}, as the table {table.path!r} has {table.rows} rows",
                do="Pass ids of the model's own tokenizer or table.",
            )
