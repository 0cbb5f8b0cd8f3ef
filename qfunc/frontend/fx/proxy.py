"""The proxy of a symbolic trace."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from torch import fx

from qfunc.frontend.refusals.assigned_buffers import assignment_error
from qfunc.frontend.source_location import source_line


class Proxy(fx.Proxy):
    """A proxy that records `x += y` and `x[i] = y` as in-place ops, and refuses `x.data = y`."""

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, fx.Proxy):
            raise assignment_error(source_line(value.node) or f"op {value.node.name!r}", name)
        super().__setattr__(name, value)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.tracer.create_proxy("call_function", operator.setitem, (self, index, value), {})


def _in_place(name: str) -> Callable[[fx.Proxy, Any], fx.Proxy]:
    function = getattr(operator, name)

    def method(self: fx.Proxy, other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", function, (self, other), {})

    return method


for _name in ("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor", "imatmul"):
    setattr(Proxy, f"__{_name}__", _in_place(_name))

__all__ = ["Proxy"]
