"""Mutants of a file: copies of its text with one change each, by the operators of mutmut.

Changes without a meaning are left out: docstrings, annotations, decorators, assertions, messages, and what only type
checkers read.  So are changes that any test notices that runs the line: None in place of a value or of an argument, and
calls without an argument that is given by position.
"""

from __future__ import annotations

import ast
from random import Random

import libcst as cst
import libcst.matchers as m
from attrs import field, frozen
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators, operator_arg_removal, operator_assignment, operator_lambda

_MESSAGES = ("where", "found", "wanted", "do", "because", "progress", "strict")
"""Keywords of messages and of progress bars; `strict` of `zip` only repeats that the lengths are equal."""
_NAMES = m.OneOf(*(m.Name(name) for name in _MESSAGES))
_NO_MEANING = m.OneOf(
    m.Annotation(),
    m.Decorator(),
    m.Assert(),
    m.Raise(),
    m.If(test=m.Name("TYPE_CHECKING")),
    m.Expr(value=m.SimpleString() | m.ConcatenatedString()),
    m.Assign(targets=[m.AssignTarget(m.Name("__all__") | _NAMES)]),
    m.Assign(targets=[m.AssignTarget(m.Name(m.MatchRegex(r"[A-Z]\w*[a-z]\w*")))]),  # the alias of a type
    m.Arg(keyword=_NAMES),
    m.Param(name=_NAMES),
    m.Call(func=m.OneOf(m.Name("cast"), m.Name("TypeVar"), m.Name("print"), m.Attribute(value=m.Name("warnings")))),
    m.ConcatenatedString(),
    m.SimpleString(m.MatchRegex(r"(?s).*\s.*")),  # of several words: a message
    m.FormattedString(parts=[m.ZeroOrMore(), m.FormattedStringText(m.MatchRegex(r"(?s).*\s.*")), m.ZeroOrMore()]),
)


@frozen
class Mutant:
    """A file with one change, named by its line and by its number among the mutants of the line.

    Args:
        definition: The qualified name of the function or class that it changes, empty outside of them.
        text: The whole text with the change.
        statement: The lines of the statement that it changes, empty outside of functions.
    """

    path: str
    line: int
    number: int
    definition: str
    text: str = field(repr=False)
    statement: range = range(0)

    @property
    def name(self) -> str:
        """The path, the line and the number: `specs/scheme.py:41.2`."""
        return f"{self.path}:{self.line}.{self.number}"


@frozen
class Change:
    """A node and the node that replaces it, in a definition, by an operator."""

    old: cst.CSTNode
    new: cst.CSTNode
    definition: str
    operator: str


class Changes(cst.CSTVisitor):
    """The changes of a module, by line.

    >>> Changes.of("def f(x):\\n    return x < 3\\n").numbers
    {2: 2}
    """

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, path: str) -> None:
        self.path, self.by_line = path, dict[int, list[Change]]()
        self._outer: list[str] = []
        self.module: cst.Module

    @classmethod
    def of(cls, text: str, path: str = "") -> Changes:
        """Return the changes of a text."""
        wrapper, found = MetadataWrapper(cst.parse_module(text)), cls(path)
        wrapper.visit(found)
        found.module = wrapper.module
        return found

    @property
    def numbers(self) -> dict[int, int]:
        """The number of mutants of each line that has some."""
        return {line: len(changes) for line, changes in sorted(self.by_line.items())}

    def drawn(self, random: Random) -> Mutant:
        """Return a mutant: a line, an operator and a change are drawn.

        By changes alone most mutants would pass None to a call.
        """
        line = random.choice(sorted(self.by_line))
        changes = self.by_line[line]
        operator = random.choice(sorted({c.operator for c in changes}))
        return self.mutant(line, random.choice([i for i, c in enumerate(changes, 1) if c.operator == operator]))

    def mutant(self, line: int, number: int) -> Mutant:
        """Return one mutant.

        Raises:
            LookupError: the line has no mutant of this number.
        """
        change = self.by_line[line][number - 1]
        text = self.module.deep_replace(change.old, change.new).code  # type: ignore[arg-type]
        return Mutant(self.path, line, number, change.definition, text, statement(self.module.code, line))

    def on_visit(self, node: cst.CSTNode) -> bool:
        """Note the changes of a node."""
        if m.matches(node, _NO_MEANING):
            return False
        if isinstance(node, cst.FunctionDef | cst.ClassDef):
            self._outer.append(node.name.value)
        inside = ".".join(self._outer)
        changes = [
            Change(node, new, inside, operator.__name__)
            for kind, operator in mutation_operators
            if isinstance(node, kind) and operator not in (operator_assignment, operator_lambda)
            for new in operator(node)
            if operator is not operator_arg_removal or _lacks_a_keyword(node, new)
        ]
        if changes:
            line = self.get_metadata(PositionProvider, node).start.line
            self.by_line.setdefault(line, []).extend(changes)
        return True

    def on_leave(self, node: cst.CSTNode) -> None:
        """Leave a definition."""
        if isinstance(node, cst.FunctionDef | cst.ClassDef):
            self._outer.pop()


def statement(text: str, line: int) -> range:
    """Return the lines of the statement of a function at a line, without those of its body; empty outside of functions.

    >>> statement("x = 1\\ndef f(\\n    y):\\n    return [\\n        y]", 5), len(statement("x = 1", 1))
    (range(4, 6), 0)
    """
    found = range(0)
    for function in (n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef)):
        for node in (n for s in function.body for n in ast.walk(s) if isinstance(n, ast.stmt)):
            body = getattr(node, "body", None)
            last = body[0].lineno - 1 if body else node.end_lineno or node.lineno
            if node.lineno <= line <= max(node.lineno, last):
                found = range(node.lineno, max(node.lineno, last) + 1)
    return found


def _lacks_a_keyword(old: cst.Call, new: cst.Call) -> bool:
    """Return whether a call lost an argument with a keyword, which is none of a message."""
    left = {id(argument) for argument in new.args}
    gone = [a for a in old.args if id(a) not in left]
    return len(new.args) < len(old.args) and all(a.keyword and not m.matches(a, _NO_MEANING) for a in gone)
