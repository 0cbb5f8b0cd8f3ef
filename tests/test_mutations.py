"""Mutants: what is changed and what is not, which tests are tried first, and the verdicts in a small library."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from mutants.guards import module_of, ranked, sources
from mutants.mutant import Changes
from mutants.trials import PASSED, Result
from mutants.verdicts import CAUGHT, Trial, Trials
from mutations import ROOT, of_each, part_of, sampled

TESTS = Path(__file__).parent
LIBRARY = {
    "qfunc/__init__.py": "from qfunc.a import is_large\n",
    "qfunc/a.py": 'def is_large(x):\n    """Return whether x is large."""\n    return x > 7\n',
    "qfunc/b.py": "def double(x):\n    return 2 * x\n",
    "qfunc/d.py": "def four():\n    return 4\n",
    "qfunc/c.py": "def half(x):\n    return x / 2\n",
    "specs/__init__.py": "",
    "targets/__init__.py": "",
    "pyproject.toml": "[tool.pytest.ini_options]\n",
    "tests/test_large.py": """
import sys
from qfunc import is_large

def test_that_fails_in_any_case():
    assert is_large(7)

def test_large():
    assert "mutants" not in sys.modules
    assert is_large(8) and not is_large(7)
""",
    "tests/test_other_things.py": """
import importlib

def test_by_another_name():
    assert importlib.import_module("q" "func.d").__dict__["fo" "ur"]() == 4

def test_nothing():
    pass
""",
    "tests/test_double.py": "from qfunc.b import double\n\ndef test_nothing():\n    assert double(0) == 0\n",
    "tests/test_half.py": """
import pytest
from qfunc.c import half

def test_with_a_package():
    pytest.importorskip("no_such_package")
    assert half(4) == 2
""",
}


def run(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a tree that has a library of its own."""
    command, env = [sys.executable, "tests/mutations.py", *arguments], os.environ | {"PYTHONPATH": "", "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=tree, env=env, text=True, capture_output=True, timeout=300, check=False)


@pytest.mark.thorough
def test_every_verdict(tmp_path: Path) -> None:
    for name, text in LIBRARY.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    shutil.copytree(TESTS / "mutants", tmp_path / "tests/mutants")
    shutil.copy(TESTS / "mutations.py", tmp_path / "tests")
    caught = run(tmp_path, "--only", "qfunc/a.py", "--jobs", "2")
    assert caught.returncode == 0, caught.stdout + caught.stderr
    assert "caught    qfunc/a.py:3.1 " in caught.stdout
    assert "left out:\ntests/test_large.py::test_that_fails_in_any_case" in caught.stdout
    names = [f"--only=qfunc/{name}" for name in ("a.py:3.2", "b.py:2.2", "c.py", "d.py")]
    missed = run(tmp_path, *names)
    assert missed.returncode == 1, missed.stderr
    assert "\n-    return 2 * x\n+    return 3 * x\n1 tests passed\n" in missed.stdout
    assert "MISSED    qfunc/d.py:2.1" in missed.stdout
    assert "not run   qfunc/c.py:2.1" in missed.stdout
    assert "1 caught, 2 missed, 0 time over, 2 not run" in missed.stdout
    searched = run(tmp_path, *names, "--search", "--least", "0.6")
    assert searched.returncode == 0, searched.stdout + searched.stderr
    assert "caught    qfunc/d.py:2.1" in searched.stdout
    assert "2 caught, 1 missed, 0 time over, 2 not run" in searched.stdout
    assert {name: (tmp_path / name).read_text() for name in LIBRARY} == LIBRARY


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("x = f(1)\ny = f(x)", {1}),
        ("def f(x):\n    return x < 3", {2}),
        ('"""Text."""', set()),
        ("def f(x: int = 2, progress: bool = True) -> int: ...", {1}),
        ("def f(progress: bool = True) -> int: ...", set()),
        ("if TYPE_CHECKING:\n    x = 1", set()),
        ("@frozen(eq=False)\nclass A:\n    pass", set()),
        ("raise ValueError(f'found {x + 1}')", set()),
        ("do = f'Pass {x}.'", set()),
        ("__all__ = ['a']", set()),
        ("Span = tuple[int, int]", set()),
        ("assert x > 1", set()),
        ("def f():\n    return 'no bias'", set()),
    ],
)
def test_lines_with_mutants(text: str, lines: set[int]) -> None:
    assert Changes.of(text).by_line.keys() == lines


def test_mutants_that_ask_for_one_test_have_jobs_of_their_own() -> None:
    text = "def f(x):\n    return x > 7 and x < 9 and x != 8\n"
    changes = Changes.of(text, "qfunc/a.py")
    mutants = [changes.mutant(2, number) for number in range(1, 4)]
    trials = Trials({mutant: Trial.of(mutant, ["tests/test_a.py"], 10.0) for mutant in mutants})
    failing = [Result(job, 1, 0.1, "tests/test_a.py::test_f", 0, False, "") for job in trials.first()]
    (first,), (second,) = trials.follow(failing[0]), trials.follow(failing[1])
    trials.follow(Result(first, 1, 0.1, "tests/test_a.py::test_f", 0, False, ""))  # the unchanged library fails too
    (third,) = trials.follow(failing[2])
    assert len({first, second, third}) == 3
    for job in (second, third):
        assert trials.follow(Result(job, PASSED, 0.1, "", 1, False, "")) == []
    assert [trial.verdict for trial in trials.trials.values()] == ["", CAUGHT, CAUGHT]


def test_a_call_loses_its_keywords_only() -> None:
    changes = Changes.of("f(g(a), n=1)(zip(a, b, strict=True))")
    texts = [changes.mutant(1, n).text.partition(")(")[0] for n in range(1, changes.numbers[1] + 1)]
    assert texts == ["f(g(a), ", "f(g(a), n=2"]


def test_a_mutant_differs_from_its_file_and_can_be_named() -> None:
    path = "qfunc/numerics/rounding.py"
    changes = Changes.of((ROOT / path).read_text(), path)
    for seed in range(30):
        mutant = changes.drawn(Random(seed))
        assert mutant.text != (ROOT / path).read_text()
        compile(mutant.text, path, "exec")
        assert changes.mutant(mutant.line, mutant.number) == mutant
    assert {"half_up", ""} <= {changes.drawn(Random(seed)).definition for seed in range(100)}


def test_the_tests_of_a_module_come_first() -> None:
    path = "qfunc/numerics/rounding.py"
    changes = Changes.of((ROOT / path).read_text(), path)
    drawn = [changes.drawn(Random(seed)) for seed in range(20)]
    assert "tests/numerics/test_rounding.py" in ranked(ROOT, next(m for m in drawn if m.definition == "half_up"))[:10]
    assert module_of(path) == "qfunc.numerics.rounding"


def test_draws_follow_their_seed() -> None:
    files = [path for path in sources(ROOT) if path.startswith("qfunc/estimators/")]
    assert {path.partition("/")[0] for path in sources(ROOT)} == {"qfunc", "specs", "targets"}
    first, second = ([m.name for m in sampled(files, 4, seed)] for seed in (0, 1))
    assert len(set(first)) == 4
    assert first == [m.name for m in sampled(files, 4, 0)] != second
    assert [m.path for m in of_each(files[:3], 0)] == [f for f in files[:3] if Changes.of((ROOT / f).read_text()).by_line]


@pytest.mark.parametrize("text", ["", "3", "0/4", "5/4", "a/b", "1/0", "-1/2"])
def test_a_part_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=f"^found '{text}', wanted I/N with I from 1 to N, such as 2/4$"):
        part_of(text)
