"""LiteRT on ARM64: its reference kernels compute what the target describes for x86-64."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

import qfunc
from qfunc import targets
from qfunc.lowering import LiteRtRunner
from tests.lowering.drawn_law import held_against
from tests.lowering.machines.machines import MACHINES, SamePython, require
from tests.lowering.machines.test_machines import X, calibrated
from tests.lowering.tflite.test_litert_ops import REFUSED

needs_litert = pytest.mark.skipif(
    importlib.util.find_spec("ai_edge_litert") is None, reason="ai-edge-litert is not installed"
)  # fmt: skip


@needs_litert
@pytest.mark.parametrize("machine", [m for m in MACHINES if m.cpu.architecture == "arm64"], ids=lambda m: str(m.cpu))
def test_drawn_ops_are_what_the_reference_kernels_compute(machine: Any) -> None:
    require(machine)
    run = LiteRtRunner("reference", threads=1, machine=machine).run
    print(f"\n{machine.cpu}: {held_against(run, targets.litert_reference, REFUSED)}")


@needs_litert
@pytest.mark.parametrize("kernels", ["xnnpack", "reference", "optimised"])
def test_another_process_computes_what_this_one_computes(kernels: str) -> None:
    artifact = qfunc.deploy(targets.litert)(calibrated(targets.litert))
    here, there = (LiteRtRunner(kernels, threads=1, machine=m).inside(artifact) for m in (None, SamePython()))
    assert there.executed == here.executed
    assert there.difference == here.difference == ""
    (outputs, codes), (other_outputs, other_codes) = (view.run([X]) for view in (here, there))
    assert codes
    assert all(np.array_equal(a, b) for a, b in zip(outputs, other_outputs, strict=True))
    assert all(np.array_equal(codes[n], other_codes[n]) for n in codes)


@needs_litert
def test_an_artifact_that_is_loaded_once_takes_batches_of_other_sizes() -> None:
    artifact = qfunc.deploy(targets.litert)(calibrated(targets.litert))
    here, there = (LiteRtRunner(threads=1, machine=m).loaded(artifact) for m in (None, SamePython()))
    for batch in (X, X[:1], X[1:], X):
        wanted = LiteRtRunner(threads=1).run(artifact, [batch])[0]
        assert np.array_equal(here([batch])[0], wanted)
        assert np.array_equal(there([batch])[0], wanted)
