"""Tables of embeddings in a program of torch.export: their rows bound the ids of tokens and the positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from qfunc.errors import CaptureError, first_line

_LOOKUP = torch.ops.aten.embedding.default
_VIEWS = (torch.ops.aten.view.default, torch.ops.aten.reshape.default)
_ROWS: dict[Any, int] = {_LOOKUP: 1, torch.ops.aten.index.Tensor: 1}
"""Ops that read rows of a table, their first argument: the places of the rows among the arguments."""


def require_rows(program: torch.export.ExportedProgram, ids: Tensor) -> None:
    """Raise unless ids are rows of the table that the first input of a program indexes.

    Raises:
        CaptureError: names the id, the table and its rows.
    """
    signature = program.graph_signature
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    first = next(n for n in program.graph.nodes if n.name == next(iter(signature.user_inputs)))
    read = {first, *(user for user in first.users if user.target in _VIEWS)}
    for user in [user for node in read for user in node.users]:
        if user.target is not _LOOKUP or user.args[1] not in read:
            continue
        low, high, rows = int(ids.min()), int(ids.max()), int(user.args[0].meta["val"].shape[0])
        if low < 0 or high >= rows:
            path = str(names.get(user.args[0].name, user.args[0].name)).removeprefix("model.")
            raise CaptureError(
                where="Decoder.inputs",
                found=f"the id {low if low < 0 else high}",
                wanted=f"ids from 0 to {rows - 1}, as the table {path!r} has {rows} rows",
                do="Pass ids of the model's own tokenizer.",
            )


def require_positions(program: torch.export.ExportedProgram, last: Sequence[Tensor], where: str) -> None:
    """Raise if a table of positions ends before the last position of the cache, or a program runs at its end only.

    Args:
        program: (ids, positions, *state) -> (logits, *state).
        last: Inputs of one token at the last position.
        where: The step, for the message.
    Raises:
        CaptureError: names the table and its rows, or the error.
    """
    position = int(last[1].max())
    try:
        with torch.no_grad():
            module: Any = program.module(check_guards=False)
            _Lookups(module).run(*last)
            module(last[0], torch.zeros_like(last[1]), *last[2:])
    except _BeyondTheEnd as e:
        path, rows, row = e.table.removeprefix("model."), e.rows, e.row
        step = where.partition(",")[0]
        length = rows - (row - position)
        call = f"{step}({length})" if step == "decoder" else f"{step}({length}, features)"
        raise CaptureError(
            where=where,
            found=f"a length of {position + 1}, whose last position reads row {row} of {path!r}, which has {rows}",
            wanted=f"at most {length}",
            do=f"Write qfunc.{call}(model).",
        ) from None
    except Exception as e:  # an assertion of torch.export
        do = (
            "A size in its forward may be past_key_values.get_seq_length(), as in Falcon with ALiBi: read position_ids instead."
        )
        found, wanted = first_line(e), f"a graph that runs at each position from 0 to {position}"
        raise CaptureError(where=where, found=found, wanted=wanted, do=do) from e


class _BeyondTheEnd(Exception):
    def __init__(self, table: str, rows: int, row: int) -> None:
        super().__init__(table, rows, row)
        self.table, self.rows, self.row = table, rows, row


class _Lookups(fx.Interpreter):
    # Runs a program, and stops at the first table that ends before the row that is read.
    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self.extra_traceback = False

    def run_node(self, n: fx.Node) -> Any:
        place, table = _ROWS.get(n.target), n.args[0] if n.args else None
        if place is not None and isinstance(table, fx.Node) and table.op == "get_attr":
            args, _ = self.fetch_args_kwargs_from_env(n)
            read = args[place][0] if isinstance(args[place], list | tuple) else args[place]
            whole = isinstance(read, Tensor) and read.dtype in (torch.int32, torch.int64) and read.numel()
            if whole and (row := int(read.max())) >= len(args[0]):
                raise _BeyondTheEnd(str(table.target), len(args[0]), row)
        return super().run_node(n)
