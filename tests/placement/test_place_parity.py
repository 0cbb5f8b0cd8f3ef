"""Placement parity with MQBench: the same tensors, the same codes, or a difference that the table explains.

`PYTHONPATH=tests python -m parity` prints the counts of each back-end.
"""

from __future__ import annotations

import pytest
from attrs import evolve
from parity.backends import BACKENDS
from parity.compare import compare, grouped, table
from parity.golden import GOLDEN
from parity.table import Backend, Explained

from qfunc.specs import edit


@pytest.mark.thorough
@pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: f"{b.name}-{b.target.name}")
def test_every_difference_from_mqbench_is_explained(backend: Backend) -> None:
    found = compare(backend)
    assert not found.unexplained, grouped(found.unexplained)
    assert not found.wrong, "\n".join(found.wrong)


def test_every_backend_of_mqbench_is_compared() -> None:
    assert {b.name for b in BACKENDS} == set(GOLDEN["backends"])


def test_the_table_counts_what_is_alike_and_each_kind_of_difference() -> None:
    head, row = table([compare(tensorrt())]).splitlines()
    assert head.split() == ["back-end,", "target", "same", "a", "b", "c", "unexplained"]
    differences = sum(sum(r.counts.values()) for r in tensorrt().explained)
    assert row.split() == ["Tensorrt,", "tensorrt", "100", "0", str(differences), "0", "0"]


def tensorrt() -> Backend:
    return next(b for b in BACKENDS if b.target.name == "tensorrt")


def test_a_difference_without_a_row_is_seen() -> None:
    first, *others = tensorrt().explained
    found = compare(evolve(tensorrt(), explained=tuple(others)))
    assert len(found.unexplained) == sum(first.counts.values())
    assert found.wrong == ()
    silent = evolve(tensorrt(), target=edit.skip(edit.op("linear"))(tensorrt().target))
    text = grouped(compare(silent).unexplained)
    assert "weight: MQBench -127..127 axis 0, qfunc float: {'resnet18': 1, 'mobilenet_v2': 1}" in text
    assert "  resnet18: fc" in text


def test_a_row_that_says_too_much_is_seen() -> None:
    row = tensorrt().explained[0]
    for changed in (evolve(row, counts={**row.counts, "resnet18": 21}), evolve(row, counts={"resnet18": 22, "lenet": 1})):
        (text, *_) = compare(evolve(tensorrt(), explained=(changed,))).wrong
        assert text.startswith("Explained(kind='b', role='activation', tensors='*'")
    gone = Explained("c", "weight", "fc", "0..255", "float", {"resnet18": 1}, "no longer")
    assert compare(evolve(tensorrt(), explained=(*tensorrt().explained, gone))).wrong == (f"{gone}: found {{}}",)


def test_a_row_twice_without_a_kind_or_without_a_reference_is_seen() -> None:
    rows = tensorrt().explained
    assert "is explained 2 times" in compare(evolve(tensorrt(), explained=(*rows, rows[0]))).wrong[0]
    for nameless in (evolve(rows[0], kind="d"), evolve(rows[0], because="")):
        (text,) = compare(evolve(tensorrt(), explained=(nameless, *rows[1:]))).wrong
        assert text.endswith(": no kind or no reference")
