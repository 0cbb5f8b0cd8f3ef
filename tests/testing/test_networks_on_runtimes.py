"""Networks of the fuzzer's grammar on every runtime that is installed: right, or refused by an error of four parts."""

from __future__ import annotations

import warnings

import pytest

from qfunc.testing.fuzz.campaign import runnable_target
from qfunc.testing.fuzz.trial import Trial
from qfunc.testing.grammar.families import common_program, program

TARGETS = (
    "onnxruntime", "litert", "litert_reference", "litert_optimised", "executorch_xnnpack", "ncnn", "tosa", "openvino",
)  # fmt: skip
COMMON = (1001, 1002, 1004, 1005, 1013, 1019, 1030, 1034, 1057, 1079, 1084, 1093, 1098)
"""Networks of the common families that passed when they were chosen; docs/fuzzing.md says how to run others."""
SEEDS = (800001, 800003, 800005, 800015, 800021, 800027, 800039)
"""Networks of rare families, or whose names meet, that passed when they were chosen."""

REPAIRED = {
    "openvino": (95153, 90117, 400000),
    "ncnn": (95314, 90302, 660028, 660060, 700323),
    "tosa": (480020, 480155, 480205, 481096),
}
"""Networks of the common families that differed before they were repaired."""


@pytest.mark.thorough
@pytest.mark.parametrize("name", TARGETS)
def test_drawn_networks_are_right_or_refused(name):
    target, found = runnable_target(name), {}
    drawn = [program(seed) for seed in SEEDS] + [common_program(seed) for seed in (*COMMON, *REPAIRED.get(name, ()))]
    for one in drawn:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found[one.seed] = Trial(one, target).outcome()
    bad = {seed: outcome.signature for seed, outcome in found.items() if outcome.bad}
    assert not bad, bad
    assert sum(o.kind != "refused" for o in found.values()) >= 8
