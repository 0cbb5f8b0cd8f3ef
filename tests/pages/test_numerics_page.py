"""docs/numerics.md: its programs run, and what they define keeps the laws."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs/numerics.md").read_text()


@pytest.mark.thorough
def test_the_programs_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a module of their own, for a frozen value is pickled by the name of its module."""
    page = types.ModuleType("numerics_page")
    monkeypatch.setitem(sys.modules, page.__name__, page)
    programs = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert len(programs) == 4
    for program in programs:
        exec(compile(program, "docs/numerics.md", "exec"), vars(page))
