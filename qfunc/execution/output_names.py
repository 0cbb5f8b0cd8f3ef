"""The names that a forward gives to its outputs: keys of dicts, and fields of named tuples and dataclasses."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from torch import fx

from qfunc.graph.arguments import unflatten


def names_of_outputs(model: fx.GraphModule) -> tuple[str, ...]:
    """Return the name of each tensor that a captured model returns, in order; "" for a tensor without a name.

    A name has the keys and fields on the way to the tensor, and the positions between them, joined by points.  A tensor at
    which only positions lead has no name.

    >>> made = fx.symbolic_trace(lambda x: ({"boxes": x.relu(), "aux": [x.sigmoid()]}, x.abs()))
    >>> names_of_outputs(made)
    ('0.boxes', '0.aux.0', '')
    """
    output = next(n for n in reversed(model.graph.nodes) if n.op == "output")
    found = dict(enumerate(_leaves(model.graph.process_outputs(output.args[0]), (), False)))
    if [node for node, _ in found.values()] != unflatten(output):
        return ()  # an output class that returns its tensors in another order than its entries
    return tuple(name for _, name in found.values())


def _leaves(value: Any, path: tuple[str, ...], named: bool) -> Iterator[tuple[fx.Node, str]]:
    if isinstance(value, fx.Node) and isinstance(value.target, type):
        entries = _entries_of_call(value.target, value.args, value.kwargs)
    elif isinstance(value, fx.Node):
        yield value, ".".join(path) if named else ""
        return
    else:
        entries = _entries(value)
    for key, entry in entries:
        yield from _leaves(entry, (*path, str(key)), named or isinstance(key, str))


def _entries(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, tuple | list):
        names = getattr(value, "_fields", range(len(value)))
        return list(zip(names, value, strict=True))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)]
    return []


def _entries_of_call(target: type, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    # The graph creates the user's class: by its fields, or a mapping by its entries or pairs.
    fields = getattr(target, "_fields", ())
    if not fields and dataclasses.is_dataclass(target):
        fields = tuple(f.name for f in dataclasses.fields(target) if f.init)
    if fields or not issubclass(target, Mapping):
        return [*zip(fields or range(len(args)), args, strict=False), *kwargs.items()]
    given = args[0] if args else ()
    pairs = given.items() if isinstance(given, Mapping) else given
    return [*((p[0], p[1]) for p in pairs if isinstance(p, tuple | list) and len(p) == 2), *kwargs.items()]
