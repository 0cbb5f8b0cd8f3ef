"""Edits: functions target -> target, which compose; later edits win.

This module holds public names only, so that an editor completes those and no others.
"""

from qfunc.specs.edit._functions import activations, cpu, deploy, fuse, override, pipe, slower, state, weights
from qfunc.specs.edit._rewrites import Edit, SchemeChange, narrowed
from qfunc.specs.edit._rules import add, inputs, outputs, skip
from qfunc.specs.edit._selectors import module, name, node, op, where

__all__ = [
    "Edit", "SchemeChange", "activations", "add", "cpu", "deploy", "fuse", "inputs", "module", "name", "narrowed", "node", "op",
    "outputs", "override", "pipe", "skip", "slower", "state", "weights", "where",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)
