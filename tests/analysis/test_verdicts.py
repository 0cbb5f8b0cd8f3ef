"""A verdict states the share on integers, what is exact, what is within its bound and what was not compared, in this order."""

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import qfunc
from qfunc import targets
from qfunc.analysis.verification_report import Comparison, Report
from qfunc.specs import edit

TARGET = edit.weights(bits=7)(targets.onnxruntime)  # of 7 bits, so that any x86-64 computes the same


def report(lsb=0.0, mismatches=0, predicted=1, exact=True, **fields):
    rows = (Comparison("a", "output", 400, mismatches, lsb, exact), Comparison("a", "alone", 400, 0, 0.0, exact))
    return Report(target="a", runtime="b", predicted=predicted, rows=rows, **fields)


def exactly(integer, total, **fields):
    return report(
        products=total, integer_products=integer, compared_products=integer, bounded_products=total - integer, **fields
    )


EXACT = "bit-exact: 0 of 400 elements differ"
FLOATS = {"lsb": 1.0, "mismatches": 3, "float_units": (("c", "no kernel"),)}
ON_INTEGERS = "of the multiply-accumulates run on integers"
BOUNDED = "compared within bounds: {} of the multiply-accumulates"


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (exactly(5, 5), EXACT),
        (report(), EXACT),
        (exactly(2, 5), f"40 % {ON_INTEGERS}; {EXACT}; {BOUNDED.format('60 %')}"),
        (exactly(2999, 3000), f"99.9 % {ON_INTEGERS}; {EXACT}; {BOUNDED.format('less than 0.1 %')}"),
        (exactly(1, 3000), f"less than 0.1 % {ON_INTEGERS}; {EXACT}; {BOUNDED.format('99.9 %')}"),
        (
            report(products=50, integer_products=50, compared_products=1, bounded_products=45),
            f"{EXACT}; {BOUNDED.format('90 %')}; not compared: 8 % of the multiply-accumulates",
        ),
        (
            exactly(0, 5),
            f"no multiply-accumulate runs on integers; 0 of 400 elements differ; {BOUNDED.format('100 %')}",
        ),
        (report(predicted=0), "no unit runs on integers; 0 of 400 elements differ"),
        (
            exactly(2, 5, **FLOATS),
            f"40 % {ON_INTEGERS}; bit-exact outside 1 float unit: 0 of 400 elements differ, given the runtime's inputs; "
            + BOUNDED.format("60 %"),
        ),
        (
            exactly(5, 5, exact=False, **FLOATS),
            "within 1 LSB or their bounds: 400 elements, 3 of them unequal; no tensor was compared bit by bit",
        ),
        (
            exactly(0, 5, **FLOATS),
            "no multiply-accumulate runs on integers; 0 of 400 elements differ, given the runtime's inputs; "
            + BOUNDED.format("100 %"),
        ),
        (report(9.0, 3), "mismatch: 3 of 400 elements differ, first at a, by 9 LSB"),
        (report(9.0, 3, products=5, incomparable="no VNNI"), "not comparable: no VNNI (3 of 400 elements differ)"),
        (
            report(predicted=0, disagreements=("conv: float",)),
            "mismatch: the runtime's units are not the predicted ones (conv: float)",
        ),
        (report(predicted=0, unknown="no source"), "at most 0 LSB at rate 0, against the simulation (no source)"),
    ],
)
def test_verdicts(found, verdict):
    assert found.verdict == verdict


def test_the_agreement_has_no_share():
    found = exactly(2, 5)
    assert (found.agreement, found.to_dict()["verdict"]) == (EXACT, found.verdict)


@pytest.mark.parametrize(
    ("skipped", "verdict"),
    [
        ((), "bit-exact: 0 of 36 elements differ"),
        (("1",), f"75 % {ON_INTEGERS}; bit-exact: 0 of 32 elements differ; {BOUNDED.format('25 %')}"),
        (("0", "1"), f"no multiply-accumulate runs on integers; 0 of 4 elements differ; {BOUNDED.format('100 %')}"),
    ],
)
def test_products_in_float_are_counted(skipped, verdict):
    net, batches = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1)), [torch.arange(12.0).reshape(4, 3)]
    for parameter in net.parameters():
        nn.init.ones_(parameter)  # float32 sums of small integers are exact in any order
    target = edit.pipe(TARGET, *(edit.skip(edit.name(path)) for path in skipped))
    calibrated = qfunc.calibrate(batches)(qfunc.quantize(target)(net))
    assert qfunc.verify(target)(calibrated, batches).verdict == verdict


@st.composite
def reports(draw):
    def row(name, kind):
        total = draw(st.integers(1, 5000))
        differ = draw(st.sampled_from((0, 0, 1, total)))
        largest = draw(st.sampled_from((0.5, 1.0, 1.5, 133.0))) if differ else 0.0
        return Comparison(name, kind, total, differ, largest, draw(st.booleans()))

    kinds = draw(st.lists(st.sampled_from(("codes", "real", "output", "alone", "float", "simulation")), max_size=6))
    products, *parts = sorted(draw(st.lists(st.integers(0, 10**6), min_size=3, max_size=3)), reverse=True)
    texts = {name: draw(st.sampled_from(("", "", "a reason"))) for name in ("unknown", "incomparable")}
    return Report(
        target="a", runtime="b", predicted=draw(st.integers(0, 2)), rows=tuple(row(f"t{i}", k) for i, k in enumerate(kinds)),
        float_units=tuple((f"f{i}", "no kernel") for i in range(draw(st.integers(0, 2)))),
        disagreements=draw(st.sampled_from(((), (), ("conv: float",)))), products=products, integer_products=parts[0],
        compared_products=parts[1], bounded_products=draw(st.integers(0, products - parts[1])),
        rounded=draw(st.sampled_from((0, 0, 3))), **texts,
    )  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(reports())
def test_no_verdict_contradicts_its_figures(found):
    """Bit-exact means 0 differences; what exceeds its bound is never passed; what was not compared bit by bit is named."""
    verdict = found.verdict
    if "bit-exact" in verdict:
        assert set(re.findall(r"([\d,]+) of [\d,]+ elements differ", verdict)) == {"0"}
        assert not any(row.mismatches for row in found.of("float"))
        assert (
            not any(row.mismatches if row.exact else row.largest_lsb > 1 for row in found.of("alone")) or not found.mismatches
        )
    assert " 0 float unit" not in verdict
    places = [
        verdict.find(text) for text in ("bit-exact", "within 1 LSB", "compared within", "not compared:", "the simulation")
    ]
    assert [p for p in places if p >= 0] == sorted(p for p in places if p >= 0)
    if (
        not verdict.startswith(("mismatch", "not comparable"))
        and not found.unknown
        and found.compared_products < found.products
    ):
        assert " % of the multiply-accumulates" in verdict
    if any(row.mismatches for row in found.of("float")) and not found.unknown:
        assert verdict.startswith(("mismatch", "not comparable"))
