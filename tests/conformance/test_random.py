"""Random small networks: not one code differs from ONNX Runtime's, not one unit from the prediction."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings

import qfunc
from qfunc import targets
from qfunc.testing.pipeline import _rounded
from qfunc.testing.strategies import small_models
from tests.conformance.running import RUNNER, calibrated


@pytest.mark.thorough
@settings(max_examples=30, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(small_models())
def test_random_networks_are_bit_exact(drawn):
    model, example = drawn
    made = calibrated(model, example)
    for candidate in (made, _rounded(made, example)):
        report = qfunc.verify(targets.onnxruntime, RUNNER)(candidate, [example, 2 * example.flip(0), torch.zeros_like(example)])
        assert not report.disagreements, report
        assert report.agreement.startswith("bit-exact: " if candidate is made else "bit-exact"), report
