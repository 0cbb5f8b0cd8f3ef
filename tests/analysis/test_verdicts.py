"""A verdict begins with the share of the multiply-accumulates on integers, unless it is all of them."""

import pytest
import torch
from torch import nn

import qfunc
from qfunc import targets
from qfunc.analysis.verification_report import Comparison, Report
from qfunc.specs import edit

TARGET = edit.weights(bits=7)(targets.onnxruntime)  # of 7 bits, so that any x86-64 computes the same


def report(lsb=0.0, mismatches=0, predicted=1, **fields):
    rows = (Comparison("a", "output", 400, mismatches, lsb), Comparison("a", "alone", 400, 0, 0.0))
    return Report(target="a", runtime="b", predicted=predicted, rows=rows, **fields)


EXACT = "bit-exact: 0 of 400 elements differ"
FLOATS = {"lsb": 1.0, "mismatches": 3, "float_units": (("c", "no kernel"),)}
COUNTS = "3 of 400 elements differ, no tensor of codes was compared"


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (report(products=5, integer_products=5), EXACT),
        (report(), EXACT),
        (report(products=5, integer_products=2), f"40 % of the multiply-accumulates run on integers; {EXACT}"),
        (report(products=3000, integer_products=2999), f"99.9 % of the multiply-accumulates run on integers; {EXACT}"),
        (report(products=3000, integer_products=1), f"less than 0.1 % of the multiply-accumulates run on integers; {EXACT}"),
        (report(products=5), "no multiply-accumulate runs on integers; 0 of 400 elements differ"),
        (report(predicted=0), "no unit runs on integers; 0 of 400 elements differ"),
        (
            report(products=5, integer_products=2, **FLOATS),
            f"40 % of the multiply-accumulates run on integers; bit-exact outside 1 float units: {COUNTS}",
        ),
        (
            report(products=5, **FLOATS),
            f"no multiply-accumulate runs on integers; the float units agree within 1 LSB or their bounds: {COUNTS}",
        ),
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
    found = report(products=5, integer_products=2)
    assert (found.agreement, found.to_dict()["verdict"]) == (EXACT, found.verdict)


@pytest.mark.parametrize(
    ("skipped", "verdict"),
    [
        ((), "bit-exact: 0 of 36 elements differ"),
        (("1",), "75 % of the multiply-accumulates run on integers; bit-exact: 0 of 32 elements differ"),
        (("0", "1"), "no multiply-accumulate runs on integers; 0 of 4 elements differ"),
    ],
)
def test_products_in_float_are_counted(skipped, verdict):
    net, batches = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1)), [torch.arange(12.0).reshape(4, 3)]
    for parameter in net.parameters():
        nn.init.ones_(parameter)  # float32 sums of small integers are exact in any order
    target = edit.pipe(TARGET, *(edit.skip(edit.name(path)) for path in skipped))
    calibrated = qfunc.calibrate(batches)(qfunc.quantize(target)(net))
    assert qfunc.verify(target)(calibrated, batches).verdict == verdict
