"""The list of mutations follows the code: every line that it breaks stands where it says, once."""

from __future__ import annotations

from pathlib import Path

import pytest
from mutants import MUTATIONS, Mutation

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.name)
def test_a_mutation_breaks_one_line(mutation: Mutation) -> None:
    assert mutation.broken(ROOT) != (ROOT / mutation.file).read_text()
    assert "\n" not in mutation.old + mutation.new
    assert mutation.tests
    for test in mutation.tests:
        file, _, name = test.partition("::")
        assert f"def {name.partition('[')[0]}" in (ROOT / file).read_text()


def test_names_are_unique_and_areas_are_covered() -> None:
    names = [m.name for m in MUTATIONS]
    assert len(set(names)) == len(names) >= 45
    folders = {str(Path(m.file).parent) for m in MUTATIONS}
    inside = ("numerics", "estimators", "graph", "transforms", "lowering")
    assert {*(f"qfunc/{name}" for name in inside), "specs", "targets"} <= folders


def test_a_line_that_is_gone_or_stands_twice_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\ny = 1\n")
    for old, count in (("= 1", 2), ("z", 0)):
        with pytest.raises(ValueError, match=f"found '{old}' {count} times in a.py, wanted once"):
            Mutation("m", "a.py", old, "", "t").broken(tmp_path)
