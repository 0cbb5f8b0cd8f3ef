"""A captured submodule of an outer module, known by its path and by the classes around it."""

from __future__ import annotations

from collections.abc import Callable

from attrs import evolve
from torch import fx, nn

from qfunc.errors import QfuncError
from qfunc.graph.hooks import without_hooks
from qfunc.graph.record import attach, enclosed, record_of
from qfunc.graph.sources import bears_its_module, qualified
from qfunc.graph.wrappers import unwrapped


def around(outer: nn.Module, path: str) -> tuple[str, ...]:
    """The classes of the modules around a submodule, the outermost first.

    >>> around(nn.Sequential(nn.Sequential(nn.ReLU())), "0.0")
    ('torch.nn.modules.container.Sequential', 'torch.nn.modules.container.Sequential')
    """
    words = path.split(".")
    return tuple(qualified(type(outer.get_submodule(".".join(words[:i])))) for i in range(len(words)))


def within(path: str, road: Callable[[nn.Module], fx.GraphModule], part: nn.Module, classes: tuple[str, ...]) -> fx.GraphModule:
    """The captured submodule, whose tensors are named by their paths in the outer module, of which `classes` are around it."""
    try:
        captured = road(without_hooks(unwrapped(part)))
    except QfuncError as e:
        e.add_note(f"in submodule {path!r}")
        raise
    record = record_of(captured)
    assert record is not None
    fact = record.facts.get(getattr(captured.graph.output_node().args[0], "name", ""))
    inside = fact.modules if fact is not None else ()
    bare = fact.path if fact is not None and len(inside) == 1 and bears_its_module(inside[0]) else ""
    return enclosed(attach(captured, evolve(record, within=path, around=classes, bare=bare)), classes)


__all__ = ["around", "within"]
