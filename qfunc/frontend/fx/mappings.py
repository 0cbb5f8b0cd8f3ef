"""Mappings of the user's own classes in a traced graph: an OrderedDict, a ModelOutput stay what they are."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import fields, is_dataclass
from typing import Any

from torch import fx

from qfunc.errors import CaptureError


def is_user_mapping(value: Any) -> bool:
    """Whether a value is of a class derived from dict, which the tracer of torch.fx would make a plain one.

    >>> from collections import OrderedDict
    >>> is_user_mapping(OrderedDict()), is_user_mapping({})
    (True, False)
    """
    kind = type(value)
    return isinstance(value, dict) and kind not in (dict, defaultdict) and not kind.__module__.startswith("torch.fx")


def rebuild_mapping(tracer: fx.Tracer, value: Any) -> fx.Node:
    """A node that makes a mapping of the same class, with the values of the graph.

    Raises:
        CaptureError: the class cannot be made from a dict, and is no dataclass.
    """
    kind: Any = type(value)
    entries = list(value)
    named = {f.name: getattr(value, f.name) for f in fields(value) if f.init} if is_dataclass(value) else {}
    args = () if is_dataclass(value) else (dict(value),)
    try:
        again = kind(*args, **named)
        same = type(again) is kind and list(again) == entries
    except Exception:
        same = False
    if not same:
        raise CaptureError(
            where=f"the {kind.__name__} that a forward makes",
            found="a class derived from dict that its entries alone do not make",
            wanted=f"{kind.__name__}({{...}}) with the same keys",
            do="Return a dict, an OrderedDict or a dataclass.",
        )
    given: Any = tracer.create_arg(args), tracer.create_arg(named)
    return tracer.create_node("call_function", kind, *given)


__all__ = ["is_user_mapping", "rebuild_mapping"]
