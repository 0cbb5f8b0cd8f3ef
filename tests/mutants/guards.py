"""The files of tests that may notice a mutant, the likeliest first."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from math import log
from pathlib import Path

from mutants.mutant import Mutant

LIBRARY = ("qfunc", "specs", "targets")  # qfunc.specs and qfunc.targets are the folders beside qfunc
_WORD = re.compile(r"[A-Za-z]\w+")


def sources(root: Path) -> list[str]:
    """Return the paths of the files of the library."""
    found = (p for folder in LIBRARY for p in (root / folder).rglob("*.py"))
    return sorted(p.relative_to(root).as_posix() for p in found)


def module_of(path: str) -> str:
    """Return the name of a module.

    >>> module_of("targets/ncnn/__init__.py"), module_of("qfunc/errors.py")
    ('qfunc.targets.ncnn', 'qfunc.errors')
    """
    parts = path.removesuffix(".py").removesuffix("/__init__").split("/")
    return ".".join(parts if parts[0] == "qfunc" else ["qfunc", *parts])


def files_of_tests(root: Path) -> list[str]:
    """Return the paths of the files of tests."""
    return sorted(_tests(root))


def ranked(root: Path, mutant: Mutant) -> list[str]:
    """Return the files of tests that share words with the mutant.

    A file has a score: the sum of the weights of the words that it shares, a rare word counting more.  The words are
    the names of the definition (weight 6); in the path of the test, the words of its file (4), folders (3) and name (2); the
    module (3), the names that it defines (1), and the names that modules define which import it (0.3).
    """
    tests = _tests(root)
    weights: Counter[str] = Counter()
    module, tree = module_of(mutant.path), ast.parse((root / mutant.path).read_text())
    for name in _defined(tree):
        weights[name] = max(weights[name], 1)
    for path in _importers(root, module):
        for name in _defined(ast.parse((root / path).read_text())):
            weights[name] = max(weights[name], 0.3)
    for name in mutant.definition.split("."):
        weights[name] = 6
    weights[module] = 3
    for word in _parts(mutant.definition):
        weights[f"/{word}"] = 2
    for word in _parts(mutant.path):
        weights[f"/{word}"] = 3
    for word in _parts(Path(mutant.path).name):
        weights[f"/{word}"] = 4
    counts = Counter(word for words in tests.values() for word in words)
    rarity = {word: weight * log(len(tests) / counts[word]) for word, weight in weights.items() if counts[word]}
    scores = {test: sum(rarity.get(word, 0.0) for word in words) for test, words in tests.items()}
    return sorted((t for t, score in scores.items() if score > 0), key=lambda t: (-scores[t], t))


@cache
def _tests(root: Path) -> dict[str, frozenset[str]]:
    """Return the words of each file of tests: names, imported modules, and the parts of its path with a slash."""
    found = {}
    for place in (root / "tests").rglob("test_*.py"):
        text, path = place.read_text(), place.relative_to(root).as_posix()
        words = {*_WORD.findall(text), *re.findall(r"qfunc[\w.]+", text), *(f"/{word}" for word in _parts(path))}
        found[path] = frozenset(words)
    return found


def _parts(path: str) -> set[str]:
    words = re.split(r"[/_.]", path)
    return {w.removesuffix("s") for w in words if w} - {"qfunc", "test", "py", "", "init", "target"}


def _importers(root: Path, module: str) -> list[str]:
    """Return the paths of the modules that import a module."""
    found = re.compile(rf"from {re.escape(module)} import|import {re.escape(module)}\b")
    return [path for path, text in _library(root).items() if found.search(text)]


@cache
def _library(root: Path) -> dict[str, str]:
    return {path: (root / path).read_text() for path in sources(root)}


def _defined(tree: ast.AST) -> set[str]:
    """Return the names of functions and classes, and of the constants of a module."""
    found = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    for statement in getattr(tree, "body", []):
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        found |= {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
    return {name for name in found if not name.startswith("__")}
