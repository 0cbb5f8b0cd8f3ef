"""Ops that are several ONNX ops, in one line of text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx

from qfunc.lowering.onnx.context import OpContext

Write = Callable[[OpContext], str]
"""Writes an op and returns the name of its result."""

Writer = Callable[[OpContext], str | list[str]]
"""Writes an op and returns the name of its result, or the names of its several results."""


def formula(text: str, **parameters: str) -> Write:
    """Return a writer of ONNX ops in order, "Abs x; Add . 1": x is the input, "." the last value, names are parameters.

    A number is a float constant, `$n` the value of op n, counted from 0.
    """
    steps = [step.split() for step in text.split(";")]

    def write(c: OpContext) -> str:
        made: list[str] = []

        def operand(word: str) -> str:
            if word in ("x", "."):
                return c.input() if word == "x" else made[-1]
            if word.startswith("$"):
                return made[int(word[1:])]
            if c.takes(word) and isinstance(c[word], fx.Node):
                return c.input(word)
            value = float(c[word]) if c.takes(word) else float(word)
            return c.graph.number(value, f"{c.name}.{word}")

        for place, (op, *words) in enumerate(steps):
            inputs = [operand(w) for w in words]
            last = place == len(steps) - 1
            made.append(c.write(op, *inputs) if last else c.graph.node(op, inputs, f"{c.name}.{op.lower()}"))
        return made[-1]

    return write


def with_attributes(op: str, **attributes: Any) -> Write:
    """Return a writer of one ONNX op with attributes; a string names the parameter that holds the attribute's value."""

    def write(c: OpContext) -> str:
        given = {k: float(c[v]) if isinstance(v, str) else v for k, v in attributes.items()}
        return c.write(op, c.input(), **given)

    return write


__all__ = ["Write", "Writer", "formula", "with_attributes"]
