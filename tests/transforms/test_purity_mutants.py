"""calibrate leaves the quantized model as uncalibrated as it was."""

from __future__ import annotations

import qfunc
from qfunc.graph.record import record_of
from qfunc.graph.sites import quantizer_nodes
from tests.transforms.checks import quantized, same_state, state


def test_a_quantized_model_stays_uncalibrated_when_a_calibrated_one_is_made() -> None:
    _, batch, made = quantized("residual")
    before, ready = state(made), [s.module.ready for s in quantizer_nodes(made)]
    done = qfunc.calibrate([batch], progress=False)(made)
    assert all(s.module.ready for s in quantizer_nodes(done))
    assert not all(ready)
    assert [s.module.ready for s in quantizer_nodes(made)] == ready
    assert same_state(state(made), before)
    assert record_of(made).stage == "quantized"
