"""Writers of several ONNX ops from one line of text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx

from qfunc.lowering.onnx.context import OpContext

Write = Callable[[OpContext], str]
"""Write an op and return the name of its result."""

Writer = Callable[[OpContext], str | list[str]]
"""Write an op and return the name of its result, or the names of its results."""


def formula(text: str) -> Write:
    """Return a writer of ONNX ops in order, such as "Abs x; Add . 1".

    x is the input, "." is the last value, and names are parameters.

    A number is a float constant, `$n` the value of op n, counted from 0.  "alpha=negative_slope" and "fmod=1" are
    attributes: the value of a parameter, a float if its default is one, or a number.
    """
    steps = [step.split() for step in text.split(";")]

    def write(c: OpContext) -> str:
        values: list[str] = []

        def operand(word: str) -> str:
            if word in ("x", "."):
                return c.input() if word == "x" else values[-1]
            if word.startswith("$"):
                return values[int(word[1:])]
            if c.takes(word) and isinstance(c[word], fx.Node):
                return c.input(word)
            value = float(c[word]) if c.takes(word) else float(word)
            return c.graph.number(value, f"{c.name}.{word}")

        def attribute(word: str) -> Any:
            if c.takes(word):
                return float(c[word]) if isinstance(c.default(word), float) else c[word]
            return float(word) if "." in word else int(word)

        for place, (op, *words) in enumerate(steps):
            inputs = [operand(w) for w in words if "=" not in w]
            attributes = {name: attribute(value) for name, _, value in (w.partition("=") for w in words) if value}
            last = place == len(steps) - 1
            name = f"{c.name}.{op.lower()}"
            values.append(c.write(op, *inputs, **attributes) if last else c.graph.node(op, inputs, name, **attributes))
        return values[-1]

    return write
