"""Every op that LiteRT runs on codes, as Hypothesis draws it: the emulation is what each kernel set computes.

    QFUNC_EXAMPLES=1000 python -m pytest -n 0 -s tests/lowering/tflite/test_litert_ops.py

draws so many examples of up to eight ops for each kernel set, others every time, and prints how many were compared.
"""

from __future__ import annotations

import importlib.util

import pytest

from qfunc import targets
from qfunc.targets.runtimes import LiteRtRunner
from tests.lowering.drawn_law import held_against, held_at_ties
from tests.lowering.tie_ops import every
from tests.on_integers import on_integers

needs_litert = pytest.mark.skipif(
    importlib.util.find_spec("ai_edge_litert") is None, reason="ai-edge-litert is not installed"
)  # fmt: skip
SETS = {"xnnpack": on_integers(targets.litert), "reference": on_integers(targets.litert_reference),
        "optimised": on_integers(targets.litert_optimised)}  # fmt: skip
# Ratios of scales that no calibration gives, which the kernels do not take.
REFUSED = {
    "a ratio below 2^8", "a ratio below 2^15", "an input's scale below 128 times the output's",
}  # fmt: skip


@needs_litert
@pytest.mark.parametrize("kernels", SETS)
def test_drawn_ops_are_what_the_kernels_compute(kernels):
    print(f"\n{kernels}: {held_against(LiteRtRunner(kernels, threads=1).run, SETS[kernels], REFUSED)}")


CURVES = (
    "sigmoid", "tanh", "hardswish", "leaky", "steep", "generic leaky", "prelu", "gelu", "gelu, tanh", "relu", "relu6", "clip",
    "softmax", "softmax of channels",
)  # fmt: skip


@needs_litert
@pytest.mark.parametrize("kernels", SETS)
def test_halves_become_the_codes_that_the_kernels_compute(kernels):
    print(f"\n{kernels}: {held_at_ties(LiteRtRunner(kernels, threads=1).run, SETS[kernels], every(*CURVES))}")
