"""A program while it is written: each statement is run on the meta device, so that shapes are known and always fit."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qfunc.testing.grammar.program import Input, Program

BATCH = 5
"""The number of examples while a program is written, which no other size equals by design."""
LARGEST = 1 << 18
"""The largest number of elements of a value."""
Block = Callable[["Draft", str], str]
T = TypeVar("T")


class MisfitError(Exception):
    """A statement that PyTorch refuses for the shapes at hand, or whose value is too large."""


class Draft:
    """Statements so far, and the value of each name on the meta device."""

    def __init__(self, seed: str, batch: int = BATCH) -> None:
        self.random = random.Random(seed)
        self.module = nn.Module()
        self.inputs: list[Input] = []
        self.layers: list[str] = []
        self.steps: list[str] = []
        self.names: dict[str, Any] = {"self": self.module, "torch": torch, "F": F, "nn": nn, "math": math, "n": batch}
        self.count = 0

    def pick(self, *choices: T) -> T:
        """Return one of the choices."""
        return self.random.choice(choices)

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return self.random.random() < probability

    def input(self, code: str) -> str:
        """Add an input drawn by this code; return its name."""
        name = "xyzuvw"[len(self.inputs)]
        self.inputs.append(Input(name, code))
        self.run(f"{name} = {code}")
        return name

    def layer(self, kind: str, code: str) -> str:
        """Add `self.kind1 = code` to `__init__`; return "self.kind1"."""
        self.count += 1
        name = f"self.{kind}{self.count}"
        self.run(f"{name} = {code}")
        self.layers.append(f"{name} = {code}")
        return name

    def buffer(self, code: str) -> str:
        """Register a buffer of this value; return its name."""
        self.count += 1
        statement = f'self.register_buffer("table{self.count}", {code})'
        self.run(statement)
        self.layers.append(statement)
        return f"self.table{self.count}"

    def let(self, code: str) -> str:
        """Add `name = code` to `forward`; return the name."""
        self.count += 1
        name = f"y{self.count}"
        self.state(f"{name} = {code}")
        return name

    def unpack(self, count: int, code: str) -> tuple[str, ...]:
        """Add `a, b, ... = code` to `forward`; return the names."""
        self.count += 1
        names = tuple(f"{letter}{self.count}" for letter in "abcdefgh"[:count])
        self.state(f"{', '.join(names)} = {code}")
        return names

    def state(self, statement: str) -> None:
        """Add a statement to `forward`."""
        self.run(statement)
        self.steps.append(statement)

    def run(self, statement: str) -> None:
        """Run a statement on the meta device.

        Raises:
            MisfitError: PyTorch refuses it.
        """
        try:
            with torch.device("meta"), torch.no_grad():
                exec(statement, self.names)
        except Exception as e:  # whatever the shapes at hand do not allow
            raise MisfitError(f"{statement}: {e}") from e
        sizes = [v.numel() for v in self.names.values() if isinstance(v, Tensor)]
        if max(sizes, default=0) > LARGEST or min(sizes, default=1) == 0:
            raise MisfitError(f"{statement}: {max(sizes)} elements")

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a value."""
        return tuple(self.names[name].shape)

    def image(self, name: str) -> tuple[int, ...]:
        """Return the shape of an image, [N, C, H, W].

        Raises:
            MisfitError: the value is of another rank.
        """
        shape = self.shape(name)
        if len(shape) != 4:
            raise MisfitError(f"{name}: rank {len(shape)}")
        return shape

    def is_tensor(self, name: str) -> bool:
        """Return True if the name is a tensor's."""
        return isinstance(self.names[name], Tensor)

    def outcome(self, x: str) -> tuple[str, ...]:
        """Return what the network returns: a value, at times with another one, or the index of its largest element."""
        tensors = [n for n in self.names if n[0] == "y" and n != x and self.is_tensor(n)]
        if tensors and self.chance(0.15):
            return x, self.pick(*tensors)
        if self.chance(0.06):
            return (self.let(f"{x}.argmax(1)"),) if self.chance(0.5) else (x, self.let(f"torch.argmax({x}, dim=-1)"))
        return (x,)

    def attempt(self, block: Block, x: str) -> str:
        """Write a block that reads x; return its output, or x if it does not fit."""
        marks = len(self.layers), len(self.steps), dict(self.names)
        try:
            return block(self, x)
        except MisfitError:
            del self.layers[marks[0] :], self.steps[marks[1] :]
            self.names = marks[2]
            return x


def replay(program: Program, batch: int = BATCH) -> Draft:
    """Return the draft of a program for this number of examples.

    Raises:
        MisfitError: it does not run.

    >>> program = Program((Input("x", "torch.randn(n, 3)"),), (), ("y = x[:, 1:]",), ("y",))
    >>> replay(program).shape("y")
    (5, 2)
    """
    draft = Draft("", batch)
    for one in program.inputs:
        draft.inputs.append(one)
        draft.run(f"{one.name} = {one.code}")
    for statement in program.layers:
        draft.run(statement)
    for statement in program.steps:
        draft.state(statement)
    draft.run(f"returned = ({', '.join(program.outputs)},)")
    return draft
