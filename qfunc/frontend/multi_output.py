"""Ops that return several parts of a tensor: the number of parts, the uses of one part, and the uses of the whole tuple."""

from __future__ import annotations

import operator
import re
from typing import Any

import torch
from torch import fx

from qfunc.errors import CaptureError
from qfunc.frontend.aliasing import SEVERAL, SPLITS
from qfunc.frontend.source_location import source_line
from qfunc.ops.canonicalize import canonical
from qfunc.ops.indexing import element, index_call
from qfunc.ops.opset import BY_TARGET
from qfunc.ops.sizes import is_number, short_name


def reads_tuple(node: fx.Node) -> bool:
    """Return True if an op reads the tuple of a split or a slice of it, as in torch.cat(x.chunk(2)[::-1]).

    >>> g = fx.symbolic_trace(lambda x: x.chunk(2)[::-1]).graph
    >>> [reads_tuple(n) for n in g.nodes]
    [False, True, False, False]
    """
    return short_name(node.op, node.target) in SPLITS and any(_uses_tuple(node, user) for user in node.users)


def _uses_tuple(node: fx.Node, user: fx.Node) -> bool:
    if user.target is operator.getitem:
        return isinstance(user.args[1], slice)
    return user.op.startswith("call_") and canonical(user) is not None


def output_count(node: fx.Node, call: Any) -> int:
    """Return the number of parts of a split, for any size of its input.

    Raises:
        CaptureError: the number depends on the size.

    >>> node = [*fx.symbolic_trace(lambda x: x.split([1, 2])).graph.nodes][1]
    >>> output_count(node, canonical(node))
    2
    """
    name, given = short_name(node.op, node.target), call[1][1]
    if name == "chunk" and isinstance(given, int):
        return given
    if isinstance(given, list | tuple):
        return len(given)
    raise CaptureError(
        where=source_line(node) or f"node {node.name!r}",
        found=f"all parts of {name} as one tuple, whose length depends on the size",
        wanted="parts selected by index",
        do="Name the parts: a, b = x.unbind(0); or give example_inputs=(...,), so that the model is captured by torch.export.",
    )


def is_only_result(node: fx.Node) -> bool:
    """Return True if a node is the first of several results of an exported op whose record has that result alone.

    Raises:
        CaptureError: the places of the maxima of a pool are read, too.

    >>> pool = torch.nn.AdaptiveMaxPool2d(1)
    >>> [is_only_result(n) for n in torch.export.export(pool, (torch.ones(1, 2, 3, 4),)).graph.nodes][2:4]
    [True, False]
    """
    source = node.args[0] if node.target is operator.getitem else None
    if not isinstance(source, fx.Node) or not isinstance(source.target, torch._ops.OpOverload) or node.args[1] != 0:
        return False
    call = canonical(source)
    record = None if call is None else BY_TARGET.get(call[0])
    if record is None or record.results != 1 or len(source.target._schema.returns) == 1:
        return False
    if _POOL_WITH_PLACES.fullmatch(str(source.target)) and any(user.args[1] != 0 and user.users for user in source.users):
        found, wanted = "the places of the maxima of a pool", "the maxima alone"
        do = "Leave out return_indices=True."
        raise CaptureError(where=source_line(source) or f"node {source.name!r}", found=found, wanted=wanted, do=do)
    return True


_POOL_WITH_PLACES = re.compile(r"aten\.adaptive_max_pool[123]d\.default")


def is_result(node: fx.Node, source: fx.Node) -> bool:
    """Return True if x[i] is one of several results of an op, as of topk; they are tensors of their own, not parts of one.

    >>> g = fx.symbolic_trace(lambda x: x.topk(2)[0] + x.chunk(2)[0]).graph
    >>> [is_result(n, n.args[0]) for n in g.nodes if n.target is operator.getitem]
    [True, False]
    """
    return isinstance(node.args[1], int) and _has_results(source)


def _has_results(source: fx.Node) -> bool:
    parts = canonical(source) if short_name(source.op, source.target) in SEVERAL else (torch.maximum,)
    return parts is None or parts[0] not in (torch.maximum, torch.minimum)


def select_output(call: Any) -> Any:
    """Return the canonical call for one part of an op with several results; other calls are returned unchanged.

    x.unbind(dim)[i] is x[..., i], an op with one result; x.topk(k)[0] is not a slice; x.max(dim)[0] is x.amax(dim), if the
    places of the maxima are not read.
    """
    if call is not None and call[0] in (operator.getitem, element) and (extremum := _extremum_alone(*call[1])) is not None:
        return extremum
    if call is None or call[0] is not operator.getitem or not isinstance(call[1][0], fx.Node):
        return call
    if not isinstance(call[1][1], int):
        return index_call(call[1][0], call[1][1], is_number) or call
    source = call[1][0]
    if _has_results(source):
        return element, call[1]
    parts = canonical(source) if short_name(source.op, source.target) == "unbind" else None
    if parts is None:
        return call
    x, dim = parts[1]
    whole = (slice(None),)
    return call[0], (x, (*whole * dim, call[1][1]) if dim >= 0 else (..., call[1][1], *whole * (-dim - 1)))


def _extremum_alone(source: Any, index: Any) -> Any:
    over_dim = canonical(source) if isinstance(source, fx.Node) and index == 0 else None
    alone = {torch.max: torch.amax, torch.min: torch.amin}.get(over_dim[0]) if over_dim is not None else None
    read = [canonical(user) for user in source.users] if alone is not None else []
    if not read or any(c is None or c[0] not in (operator.getitem, element) or c[1][1] != 0 for c in read):
        return None
    return alone, over_dim[1]  # type: ignore[index]
