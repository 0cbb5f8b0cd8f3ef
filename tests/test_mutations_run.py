"""Runs of mutations: every verdict in a small library, and the parts of a list."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest
from mutants import MUTATIONS
from mutations import chosen, part_of

TESTS = Path(__file__).parent
TREE = {
    "qfunc/__init__.py": "ONE = 1\n",
    "specs/__init__.py": "",
    "targets/__init__.py": "",
    "pyproject.toml": "[tool.pytest.ini_options]\n",
    "tests/test_a.py": """
import sys, time, qfunc

def test_one():
    assert qfunc.ONE == 1

def test_any():
    assert qfunc.ONE

def test_slow():
    time.sleep(1000 * (qfunc.ONE - 1))

def test_mutants_are_not_imported_yet():
    assert "mutants" not in sys.modules

def test_case():
    pass
""",
    "tests/test_b.py": """
import sys

def test_library_of_elsewhere():
    sys.path.insert(0, "../other")
    import qfunc
""",
}
PROGRAM = """
from mutants.mutation import Mutation
from mutants.trials import Copy, Job, run
from pathlib import Path

def job(old, new, test, seconds=100.0):
    return Job((test,), seconds, Mutation(f"{old} {new} {test}", "qfunc:ONE", old, new, test))

if __name__ == "__main__":
    a = "tests/test_a.py"
    jobs = [
        job("1", "2", f"{a}::test_one"),
        job("1", "2", f"{a}::test_any"),
        job("3", "2", f"{a}::test_any"),
        job("1", "2", f"{a}::test_of_none"),
        job("1", "2", f"{a}::test_slow", 4.0),
        job("1", "(", f"{a}::test_any"),
        job("1", "2", "tests/test_b.py"),
        Job((a,), 100.0),
    ]
    copies = [Copy.of(Path("tree"), Path(f"copy {i}")) for i in range(2)]
    results = {}
    run(jobs, copies, lambda r: results.setdefault(r.job, r))
    print([results[j].code for j in jobs])
    print(*(results[j].tail.splitlines()[-1] for j in jobs if results[j].code not in (0, 1, 4)), sep="\\n")
    print({(c.tree / "qfunc/__init__.py").read_text() for c in copies})
"""


@pytest.mark.thorough
def test_every_verdict(tmp_path: Path) -> None:
    """A failure, a pass, a line that is gone, a test that is gone, no end, no import, another library, no breakage."""
    for name, text in TREE.items():
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / name).write_text(text)
    for i in range(2):  # beside the tree of each copy
        (tmp_path / f"copy {i}/other/qfunc").mkdir(parents=True)
        (tmp_path / f"copy {i}/other/qfunc/__init__.py").write_text("")
    (tmp_path / "program.py").write_text(PROGRAM)
    env = os.environ | {"PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "program.py"]
    made = subprocess.run(command, cwd=tmp_path, env=env, text=True, capture_output=True, timeout=300, check=False)
    assert made.returncode == 0, made.stderr
    codes, *reasons, texts = made.stdout.splitlines()
    assert codes == "[1, 0, 70, 4, -1, 4, 70, 0]"
    gone, late, foreign = reasons
    assert "found '3' 0 times in ONE of qfunc/__init__.py, wanted once." in gone
    assert late == "no end after 4 s"
    assert foreign.startswith("the copy is not what is imported: [")
    assert "other/qfunc/__init__.py" in foreign
    assert texts == "{'ONE = 1\\n'}"


def test_parts_are_the_whole() -> None:
    parts = [chosen([], None, 0, (i, 4)) for i in (1, 2, 3, 4)]
    assert sorted(m.name for part in parts for m in part) == sorted(m.name for m in MUTATIONS)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert chosen([], None, 0, (1, 1)) == MUTATIONS


@pytest.mark.parametrize("text", ["", "3", "0/4", "5/4", "a/b", "1/0", "-1/2"])
def test_a_part_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=f"^found '{text}', wanted I/N with I from 1 to N, such as 2/4$"):
        part_of(text)
