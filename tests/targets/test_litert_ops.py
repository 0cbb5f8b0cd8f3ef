"""Every op that LiteRT runs on codes, as Hypothesis draws it: the emulation is what each kernel set computes.

    QFUNC_EXAMPLES=1000 python -m pytest -n 0 -s tests/targets/test_litert_ops.py

draws so many examples of up to eight ops for each kernel set, others every time, and prints how many were compared.
"""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections import Counter

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, reject, settings

import qfunc
from qfunc import targets
from qfunc.errors import DeployError, EmulationError
from qfunc.graph.units import Partition
from qfunc.lowering import LiteRt
from tests.targets.litert_ops import Side, image, move, trials

needs_litert = pytest.mark.skipif(
    importlib.util.find_spec("ai_edge_litert") is None, reason="ai-edge-litert is not installed"
)  # fmt: skip
SETS = {"xnnpack": targets.litert, "reference": targets.litert_reference, "optimised": targets.litert_optimised}
EXAMPLES = int(os.environ.get("QFUNC_EXAMPLES", "0"))


@needs_litert
@pytest.mark.parametrize("kernels", SETS)
def test_drawn_ops_are_what_the_kernels_compute(kernels):
    target, ops, elements, refused = SETS[kernels], Counter[str](), 0, Counter[str]()

    @settings(max_examples=EXAMPLES or 4, derandomize=not EXAMPLES, deadline=None, database=None,
              phases=[Phase.generate], suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(trials())
    def law(trial):
        nonlocal elements
        try:
            each = list(compared(trial, target, kernels))
        except (DeployError, EmulationError) as e:
            refused[str(e).split(", wanted ")[1]] += 1
            reject()
        for name, op, different, count in each:
            assert not different, f"{name}, {op} of {trial.shape}: {different} of {count} differ"
            ops[name] += 1
            elements += count

    law()
    # Ratios of scales that no calibration gives, which the kernels do not take.
    assert {r.split(". ")[0] for r in refused} <= {
        "ratios in [2^-10, 2^8)", "a sum of 16 bits", "an input's scale of at most 128 times the output's"}  # fmt: skip
    print(f"\n{kernels}: {ops.total():,} ops, {elements:,} elements, 0 differ: {dict(sorted(ops.items()))}, {dict(refused)}")


def compared(trial, target, kernels):
    """(name, op, outputs that differ, outputs) of each op."""
    model = _calibrated(Side(trial.ops).eval(), target, trial.shape)
    move(model, trial.seed, trial.spread)
    x = image(model, trial.shape, trial.seed)
    assert not [u.path for u in Partition(model, target).units if not u.integer]
    emulated = qfunc.emulate(target)(model)(x)
    found = LiteRt(kernels, threads=1).run(qfunc.deploy(target)(model), [x])
    for name, op, want, got in zip(trial.names, trial.ops, emulated, found, strict=True):
        yield name, op, int((want != torch.from_numpy(got)).sum()), want.numel()


def _calibrated(model, target, shape):
    batch = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return qfunc.calibrate([batch], progress=False)(qfunc.quantize(target)(model))
