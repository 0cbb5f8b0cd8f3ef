"""Mappings of user-defined classes in a traced graph: an OrderedDict or a ModelOutput keeps its class."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import fields, is_dataclass
from typing import Any

from torch import fx

from qfunc.errors import CaptureError


def is_user_mapping(value: Any) -> bool:
    """Return True if the class of a value derives from dict; the tracer of torch.fx would convert it to a plain dict.

    >>> from collections import OrderedDict
    >>> is_user_mapping(OrderedDict()), is_user_mapping({})
    (True, False)
    """
    kind = type(value)
    return isinstance(value, dict) and kind not in (dict, defaultdict) and not kind.__module__.startswith("torch.fx")


def rebuild_mapping(tracer: fx.Tracer, value: Any) -> fx.Node:
    """Create a node that builds a mapping of the same class from values of the graph.

    Raises:
        CaptureError: the class can neither be built from a dict nor is a dataclass.
    """
    kind: Any = type(value)
    entries = list(value)
    init_fields = {f.name: getattr(value, f.name) for f in fields(value) if f.init} if is_dataclass(value) else {}
    args = () if is_dataclass(value) else (dict(value),)
    try:
        rebuilt = kind(*args, **init_fields)
        same = type(rebuilt) is kind and list(rebuilt) == entries
    except Exception:
        same = False
    if not same:
        raise CaptureError(
            where=f"the {kind.__name__} that a forward creates",
            found="a subclass of dict that cannot be built from its entries alone",
            wanted=f"{kind.__name__}({{...}}) with the same keys",
            do="Return a dict, an OrderedDict or a dataclass.",
        )
    given: Any = tracer.create_arg(args), tracer.create_arg(init_fields)
    return tracer.create_node("call_function", kind, *given)
