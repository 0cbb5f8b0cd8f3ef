"""Where a definition stands: the file of a module, and the lines of a qualified name in its text."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

BESIDE = ("specs", "targets")  # packages of qfunc that a checkout keeps beside its folder
Span = tuple[int, int]  # the first line, and one after the last


def candidates(module: str) -> tuple[str, ...]:
    """Return the files that a module may have in a checkout.

    >>> candidates("qfunc.specs.scheme")
    ('qfunc/specs/scheme.py', 'qfunc/specs/scheme/__init__.py', 'specs/scheme.py', 'specs/scheme/__init__.py')
    """
    parts = module.split(".")
    places = ["/".join(parts)] + ["/".join(parts[1:]) for part in parts[1:2] if part in BESIDE]
    return tuple(place + end for place in places for end in (".py", "/__init__.py"))


def file_of(root: Path, module: str) -> Path | None:
    """Return the file of a module, None if it has none."""
    return next((root / place for place in candidates(module) if (root / place).is_file()), None)


def spans(text: str, name: str) -> list[Span]:
    """Return the lines of every definition of `name` in the text of a module, all lines for the empty name.

    `name` is that of a function, a class or an assignment, with dots inside classes and functions.  Decorators
    and the docstring behind an assignment belong to a definition.  Overloads and properties have several.

    >>> spans("import a\\n\\n@a\\ndef f():\\n    return 1\\n", "f")
    [(2, 5)]
    """
    if not name:
        return [(0, len(text.split("\n")))]
    bodies = [ast.parse(text).body]
    *outer, last = name.split(".")
    for part in outer:
        bodies = [_inside(s) for body in bodies for s, _ in _statements(body) if part in _names(s)]
    return [span for body in bodies for s, span in _statements(body) if last in _names(s)]


def _statements(body: list[ast.stmt]) -> Iterator[tuple[ast.stmt, Span]]:
    """Yield the statements of a body and of its branches, each with its lines."""
    for i, statement in enumerate(body):
        if isinstance(statement, ast.If | ast.Try | ast.With):
            yield from _statements([s for s in ast.iter_child_nodes(statement) if isinstance(s, ast.stmt)])
            for handler in getattr(statement, "handlers", []):
                yield from _statements(handler.body)
        assigns = isinstance(statement, ast.Assign | ast.AnnAssign)
        last = body[i + 1] if assigns and i + 1 < len(body) and _is_text(body[i + 1]) else statement
        first = min(d.lineno for d in (statement, *getattr(statement, "decorator_list", ())))
        yield statement, (first - 1, last.end_lineno or last.lineno)


def _is_text(statement: ast.stmt) -> bool:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _inside(statement: ast.stmt) -> list[ast.stmt]:
    return list(getattr(statement, "body", []))


def _names(statement: ast.stmt) -> set[str]:
    """Return the names that a statement defines."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    if isinstance(statement, ast.Assign):
        return {name for target in statement.targets for name in _assigned(target)}
    if isinstance(statement, ast.AnnAssign | ast.AugAssign):
        return set(_assigned(statement.target))
    return set()


def _assigned(target: ast.expr) -> Iterator[str]:
    """Yield the names that an assignment binds, or whose parts it changes."""
    if isinstance(target, ast.Name):
        yield target.id
    elif isinstance(target, ast.Tuple | ast.List):
        for element in target.elts:
            yield from _assigned(element)
    elif isinstance(target, ast.Attribute | ast.Subscript | ast.Starred):
        yield from _assigned(target.value)
