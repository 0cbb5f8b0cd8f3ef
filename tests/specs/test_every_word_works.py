"""Every class and field of the specs: some change of its value changes an emulation, an artifact or a refusal."""

from __future__ import annotations

import attrs
import pytest

import qfunc.specs
from qfunc.targets import arithmetics
from tests.specs.witnesses import arithmetic, formats, placement, whole
from tests.specs.witnesses.witness import MESSAGES, changes, holds, observed

WITNESSES = {**formats.WITNESSES, **placement.WITNESSES, **arithmetic.WITNESSES, **whole.WITNESSES}


def words() -> list[str]:
    """Each field of each class of the specs and of the arithmetics of single chips, and each class without fields."""
    found = []
    for name, module in {n: m for m in (qfunc.specs, arithmetics) for n in m.__all__}.items():
        kind = getattr(module, name)
        if isinstance(kind, type) and attrs.has(kind) and not hasattr(kind, "form"):
            found += [f"{name}.{f.name}" for f in attrs.fields(kind) if f.init] or [name]
    return found


def test_each_word_has_a_witness() -> None:
    assert sorted(WITNESSES) == sorted(words())


@pytest.mark.thorough
@pytest.mark.parametrize("word", sorted(WITNESSES))
def test_the_word_changes_something(word: str) -> None:
    w = WITNESSES[word]
    places = list(changes(w.before, w.after))
    assert places
    for path, before, after in places:
        assert word in path if "." in word else holds(before, word) != holds(after, word), (path, before, after)
    first, second = observed(w, w.before), observed(w, w.after)
    assert first != second, first
    assert "value" in (first[0], second[0]) or word.rpartition(".")[2] in MESSAGES, (first, second)
