"""Every benchmark finds the names that it imports, and is imported; the packages that only benchmarks need may be missing."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted((ROOT / "benchmarks").glob("*.py"))
_OURS = {"qfunc", "tests", *(file.stem for file in FILES)}


def imports(file: Path) -> list[tuple[str, str | None]]:
    """Return (module, name) of every import of this project, those inside of functions included."""
    found: list[tuple[str, str | None]] = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found += [(node.module, alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [(alias.name, None) for alias in node.names]
    return [(module, name) for module, name in found if module.partition(".")[0] in _OURS]


def defines(module: str, name: str | None) -> bool:
    """Return True if a module exists and has a name; a benchmark is read, not run."""
    if (ROOT / "benchmarks" / f"{module}.py").exists():
        tree = ast.parse((ROOT / "benchmarks" / f"{module}.py").read_text())
        return name is None or any(name == given for node in tree.body for given in _names(node))
    if importlib.util.find_spec(module) is None:
        return False
    return name is None or hasattr(importlib.import_module(module), name) or _is_module(f"{module}.{name}")


def _is_module(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _names(node: ast.stmt) -> list[str]:
    match node:
        case ast.FunctionDef() | ast.ClassDef():
            return [node.name]
        case ast.Assign():
            return [n.id for target in node.targets for n in ast.walk(target) if isinstance(n, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
        case ast.ImportFrom() | ast.Import():
            return [alias.asname or alias.name for alias in node.names]
        case ast.If() | ast.Try():
            return [name for inner in node.body for name in _names(inner)]
    return []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_benchmark_imports_names_that_exist(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Folders that a benchmark adds to sys.path by itself.
    monkeypatch.syspath_prepend(ROOT)
    assert [f"{module}.{name}" for module, name in imports(file) if not defines(module, name)] == []


IMPORT = """
import importlib, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        print(error.name)
"""


@pytest.mark.thorough
def test_benchmarks_are_imported() -> None:
    """What they read when they are imported, such as the targets, is there."""
    folders = os.pathsep.join((str(ROOT / "benchmarks"), str(ROOT)))
    command = [sys.executable, "-W", "error", "-c", IMPORT, *(file.stem for file in FILES)]
    ran = subprocess.run(command, env={**os.environ, "PYTHONPATH": folders}, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert _OURS.isdisjoint(ran.stdout.split())


def test_circles() -> None:
    edges = {file.stem: {module for module, _ in imports(file)} & {f.stem for f in FILES} for file in FILES}
    while leaves := {name for name, to in edges.items() if not to}:
        edges = {name: to - leaves for name, to in edges.items() if name not in leaves}
    assert not edges, f"benchmarks import each other in a circle: {sorted(edges)}"
