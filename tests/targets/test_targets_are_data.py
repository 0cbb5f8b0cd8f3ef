"""A target is a datasheet: a docstring, imports, assignments, and for a family one def of assignments and a return."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHIPS = ROOT / "targets"
ALONE = {p for p in CHIPS.glob("*.py") if p.name not in ("__init__.py", "arithmetics.py", "runtimes.py")}
FILES = sorted(ALONE | {p for p in CHIPS.rglob("*/*.py") if p.stem.endswith("target")})
"""The files of chips of data alone, and in the folders of chips those named `target`."""


def excess(source: str) -> list[str]:
    """The statements of a target file that are no data."""
    first, *rest = ast.parse(source).body
    docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    functions = [s for s in rest if isinstance(s, ast.FunctionDef)]
    wrong = [s for s in rest if not isinstance(s, ast.Import | ast.ImportFrom | ast.Assign | ast.AnnAssign | ast.FunctionDef)]
    wrong += functions[1:] + [f for f in functions if not returns_at_once(f)]
    wrong += [n for s in rest for n in ast.walk(s) if isinstance(n, ast.Lambda | ast.NamedExpr | ast.Await | ast.Yield)]
    return ([] if docstring else ["no docstring"]) + [ast.unparse(s) for s in wrong]


def returns_at_once(function: ast.FunctionDef) -> bool:
    """Whether the body is assignments and a return, after a docstring if there is one."""
    *assigned, last = function.body[1:] if ast.get_docstring(function) else function.body
    plain = all(isinstance(s, ast.Assign) for s in assigned)
    return plain and isinstance(last, ast.Return) and not function.decorator_list


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(CHIPS).as_posix())
def test_a_target_file_is_data(path):
    assert excess(path.read_text()) == []


def test_there_are_targets():
    assert FILES


@pytest.mark.parametrize(
    "statement",
    ["for i in x: pass", "class A: pass", "if a: b = 1", "print(1)", "a = lambda: 1", "def f():\n    x += 1\n    return x",
     "def f():\n    if a: return 1\n    return 2",
     "def f():\n    return 1\ndef g():\n    return 2", "@cache\ndef f():\n    return 1", "with a: b = 1", "x += 1"],
)  # fmt: skip
def test_what_is_no_data_is_seen(statement):
    assert excess(f'"""A chip."""\nfrom a import b\n{statement}\n')


def test_data_is_data():
    assert (
        excess('"""A chip."""\nfrom a import b\nx: int = 1\ny = b(x)\ndef f(bits):\n    """A family."""\n    return b(bits)\n')
        == []
    )
    assert excess("x = 1") == ["no docstring"]
