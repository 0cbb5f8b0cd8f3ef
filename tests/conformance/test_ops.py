"""Every op and variant: emulation against ONNX Runtime, unit by unit, code by code."""

from __future__ import annotations

import pytest
import torch

from tests.conformance.modules import EXACT, FLOAT, INTEGER, Case
from tests.conformance.running import verified


def _report(case: Case):
    torch.manual_seed(3)
    make, shape = case
    return verified(make(), *shape)


@pytest.mark.thorough
@pytest.mark.parametrize("name", INTEGER)
def test_integer_units_are_bit_exact(name):
    report = _report(INTEGER[name])
    assert report.agreement.startswith("bit-exact: "), report
    assert report.predicted > 0
    assert not report.float_units


@pytest.mark.parametrize("name", EXACT)
def test_units_that_vanish_or_are_elementwise_are_bit_exact(name):
    report = _report(EXACT[name])
    assert report.agreement.startswith("bit-exact: "), report


@pytest.mark.thorough
@pytest.mark.parametrize("name", FLOAT)
def test_float_units_are_predicted_and_all_others_bit_exact(name):
    report = _report(FLOAT[name])
    assert report.agreement.startswith("bit-exact"), report
    assert report.agreement.startswith("bit-exact: ") or report.float_units
