"""docs/reports.md: its code is the example's, line by line, and its output what the example prints."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages.printed import About, differences

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reports.md").read_text()
PROGRAM = (ROOT / "examples/reports.py").read_text()
REASON = "a ratio of float sums is rounded to a whole number"
RATIOS = (
    About(r"(\d+) dB", 0.07, REASON),  # 1 of 15
    About(r"in (\d+)% of the examples", 0.02, "an example whose two best classes are near has one of them"),
)


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def lines(text):
    return [line for line in text.splitlines() if line.strip()]


def test_the_page_shows_the_whole_example_and_nothing_else():
    code = "\n".join(PROGRAM.splitlines()[ast.parse(PROGRAM).body[0].end_lineno :])
    assert lines("\n".join(blocks("python"))) == lines(code)


@pytest.mark.thorough
def test_it_prints_what_the_page_says(tmp_path):
    command = [sys.executable, "-W", "error", "examples/reports.py", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    (shown,) = blocks("text")
    assert differences(done.stdout, shown, *RATIOS) == ""
    assert sorted(p.name for p in tmp_path.iterdir()) == ["errors.html", "losses.html", "verified.html"]
    assert all(p.read_text().startswith("<!doctype html>") for p in tmp_path.iterdir())


def test_the_commands_are_those_of_the_command_line():
    from qfunc import __main__ as command

    shown = re.findall(r"python -m qfunc (\w+)", PAGE)
    assert shown == re.findall(r"python -m qfunc (\w+)", command.__doc__)
