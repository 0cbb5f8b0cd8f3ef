"""Programs without the statements that no output needs."""

from __future__ import annotations

import ast
import re

from attrs import evolve

from qfunc.testing.grammar.draft import MisfitError
from qfunc.testing.grammar.program import Program


def names_assigned(statement: str) -> list[str]:
    """Return the names that a statement assigns.

    >>> names_assigned("a, b = x.chunk(2)")
    ['a', 'b']
    """
    (parsed,) = ast.parse(statement).body
    assert isinstance(parsed, ast.Assign)
    return [n.id for target in parsed.targets for n in ast.walk(target) if isinstance(n, ast.Name)]


def prune(program: Program) -> Program:
    """Return the program without statements that no output needs.

    Raises:
        MisfitError: no input is left.

    >>> from qfunc.testing.grammar.program import Input
    >>> layers, steps = ("self.a = nn.ReLU()", "self.b = nn.ReLU()"), ("y = self.a(x)", "z = self.b(y)")
    >>> prune(Program((Input("x", "torch.randn(n, 3)"),), layers, steps, ("y",))).steps
    ('y = self.a(x)',)
    """
    needed = {n for o in program.outputs for n in _names(o)}
    steps: list[str] = []
    for step in reversed(program.steps):
        if needed & set(names_assigned(step)):
            steps.insert(0, step)
            needed |= _names(step.split(" = ", 1)[1])
    inputs = tuple(i for i in program.inputs if i.name in needed)
    layers = tuple(s for s in program.layers if attribute_of(s) in needed)
    kept = {attribute_of(s).removeprefix("self.") for s in layers}
    if not inputs:
        raise MisfitError("a network without inputs")
    changes = tuple(c for c in program.changes if c.split(".")[1] in kept)
    return evolve(program, inputs=inputs, layers=layers, steps=tuple(steps), changes=changes)


def attribute_of(layer: str) -> str:
    """Return the attribute that a statement of `__init__` sets.

    >>> attribute_of("self.fc = nn.Linear(3, 3)"), attribute_of('self.register_buffer("table", torch.ones(3))')
    ('self.fc', 'self.table')
    """
    registered = re.match(r'self\.register_buffer\("(\w+)"', layer)
    return f"self.{registered[1]}" if registered else layer.split(" = ")[0]


def _names(code: str) -> set[str]:
    # Names and attributes of self that an expression reads.
    nodes = list(ast.walk(ast.parse(code)))
    attributes = {ast.unparse(n) for n in nodes if isinstance(n, ast.Attribute) and ast.unparse(n.value) == "self"}
    return {n.id for n in nodes if isinstance(n, ast.Name)} | attributes
