"""The list of mutations follows the code: every line that it breaks stands where it says, once."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest
from mutants import MUTATIONS, Mutation

from tests.each import failures

ROOT = Path(__file__).parents[1]
FOLLOW = "Follow the change of the code, here and in the breakage."
MODULE = '''
import f

X = 1
"""One."""
A, (B.c, *D[f]) = X, [2, 3]
if X:
    Y: int = 4
else:
    Y = 5


@f.one
def g():
    """Two."""
    def h():
        return 6
    return 7


@f.g(8)
class C:
    z = 9

    @property
    def p(self):
        return 10

    @p.setter
    def p(self, value):
        self.z = 11
'''


def test_a_mutation_breaks_one_line() -> None:
    assert failures(breaks_one_line, MUTATIONS) == {}


def breaks_one_line(mutation: Mutation) -> None:
    text, broken = mutation.file(ROOT).read_text(), mutation.broken(ROOT)
    assert len(text.split("\n")) == len(broken.split("\n"))
    assert sum(a != b for a, b in zip(text.split("\n"), broken.split("\n"), strict=True)) == 1
    ast.parse(broken)
    assert mutation.nodes
    for test in mutation.nodes:
        file, _, name = test.partition("::")
        assert f"def {name.partition('[')[0]}" in (ROOT / file).read_text()


def test_names_are_unique() -> None:
    assert [name for name, count in Counter(m.name for m in MUTATIONS).items() if count > 1] == []


def test_every_room_of_the_library_has_mutations() -> None:
    packages = {p.parent.name for p in (ROOT / "qfunc").glob("*/__init__.py")} | {"specs", "targets"}
    assert {m.room for m in MUTATIONS} - {"qfunc"} == packages


def test_addresses_and_tests_are_literals() -> None:
    """A script that follows a move of files finds all of them as text."""
    seen = 0
    for path in (ROOT / "tests/mutants").glob("*.py"):
        tree = ast.parse(path.read_text())
        constants = {
            t.id: s.value for s in tree.body if isinstance(s, ast.Assign) for t in s.targets if isinstance(t, ast.Name)
        }
        for call in (n for n in ast.walk(tree) if isinstance(n, ast.Call) and ast.unparse(n.func) == "Mutation"):
            _, address, _, _, tests = call.args
            for value in (address, *(tests.elts if isinstance(tests, ast.Tuple) else (tests,))):
                literal = constants[value.id] if isinstance(value, ast.Name) else value
                assert isinstance(literal, ast.Constant), f"{path.name}, line {value.lineno}"
            seen += 1
    assert seen == len(MUTATIONS)


@pytest.mark.parametrize(
    ("definition", "old"),
    [
        *(("X", old) for old in ("1", "One")),
        *((name, "2") for name in ("A", "B", "D")),
        *(("Y", old) for old in ("4", "5")),
        *(("g", old) for old in ("f.one", "Two", "6", "7")),
        ("g.h", "6"),
        *(("C", old) for old in ("f.g(8)", "9", "10", "11")),
        ("C.z", "9"),
        *(("C.p", old) for old in ("property", "10", "setter", "11")),
        ("", "import f"),
    ],
)
def test_what_belongs_to_a_definition(definition: str, old: str, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(MODULE)
    assert Mutation("m", f"a:{definition}", old, "0", "t").broken(tmp_path) == re.sub(rf"\b{re.escape(old)}(?!\d)", "0", MODULE)


@pytest.mark.parametrize(
    ("address", "old", "found"),
    [
        ("a:X", "2", "found '2' 0 times in X of a.py, wanted once"),
        ("a:Y", "Y", "found 'Y' 2 times in Y of a.py, wanted once"),
        ("a:", "import", "found 'import' 0 times in a.py, wanted once"),
        ("a:h", "6", "found no definition of 'h' in a.py, wanted one"),
        ("a:f", "import", "found no definition of 'f' in a.py, wanted one"),
        ("a:g.z", "9", "found no definition of 'g.z' in a.py, wanted one"),
        ("b.c:X", "1", "found no file of b.c, wanted b/c.py or b/c/__init__.py"),
        (
            "qfunc.specs.c:X",
            "1",
            "found no file of qfunc.specs.c, wanted qfunc/specs/c.py or qfunc/specs/c/__init__.py "
            "or specs/c.py or specs/c/__init__.py",
        ),
    ],
)
def test_a_line_that_is_gone_or_stands_twice_is_an_error(address: str, old: str, found: str, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(MODULE.replace("import f", ""))
    with pytest.raises(ValueError, match=re.escape(f"mutation 'm': {found}. {FOLLOW}") + "$"):
        Mutation("m", address, old, "", "t").broken(tmp_path)


@pytest.mark.parametrize("place", ["qfunc/specs/a.py", "specs/a.py", "specs/a/__init__.py"])
def test_specs_lie_in_the_library_or_beside_it(place: str, tmp_path: Path) -> None:
    (tmp_path / place).parent.mkdir(parents=True)
    (tmp_path / place).write_text("X = 1\n")
    mutation = Mutation("m", "qfunc.specs.a:X", "1", "2", "t")
    assert mutation.file(tmp_path) == tmp_path / place
    assert mutation.broken(tmp_path) == "X = 2\n"
