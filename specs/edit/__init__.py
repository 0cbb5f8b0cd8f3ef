"""Edits: functions target -> target, which compose; later edits win.

This module holds public names only, so that an editor completes those and no others.
"""

from qfunc.specs.edit._functions import (
    Edit,
    activations,
    add,
    deploy,
    fuse,
    inputs,
    outputs,
    override,
    pipe,
    skip,
    weights,
)
from qfunc.specs.edit._rewrites import SchemeChange, narrowed
from qfunc.specs.edit._selectors import module, name, op, where

__all__ = [
    "Edit", "SchemeChange", "activations", "add", "deploy", "fuse", "inputs", "module", "name", "narrowed", "op",
    "outputs", "override", "pipe", "skip", "weights", "where",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)
