"""LiteRT on other processors: not one code of ops as Hypothesis draws them, and of halves, differs from the emulation.

    QFUNC_EXAMPLES=100 QFUNC_MACHINES=FOLDER python -m pytest -n 0 -s tests/lowering/machines/test_litert_machines.py

draws as many examples of up to eight ops for each processor and kernel set, others every time, and prints how many were
compared.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest
import torch

import qfunc
from qfunc import targets
from qfunc.graph.sites import quantizer_nodes
from qfunc.specs import cpus, edit
from qfunc.targets.runtimes import LiteRtRunner
from tests.conformance.modules import Apply
from tests.lowering.drawn_law import held_against, held_at_ties
from tests.lowering.drawn_ops import Side
from tests.lowering.machines.machines import EMULATED, SamePython, name, require, runs
from tests.lowering.machines.test_machines import X, calibrated
from tests.lowering.tflite.test_litert_ops import CURVES, REFUSED, SETS
from tests.lowering.tflite.test_litert_products import pairs_law
from tests.lowering.tie_ops import every

needs_litert = pytest.mark.skipif(
    importlib.util.find_spec("ai_edge_litert") is None, reason="ai-edge-litert is not installed"
)  # fmt: skip


LITERT_JS = "@litertjs/core"
CASES = pytest.mark.parametrize(
    ("kernels", "machine"),
    [pytest.param(kernels, m, id=f"{kernels}-{name(m)}") for kernels, target in SETS.items() for m in runs(target)],
)


@needs_litert
@CASES
def test_drawn_ops_are_what_the_kernels_compute(kernels: str, machine: Any) -> None:
    require(machine, LITERT_JS)
    run, target = LiteRtRunner(kernels, threads=1, machine=machine).run, edit.cpu(machine.cpu)(SETS[kernels])
    print(f"\n{kernels}, {name(machine)}: {held_against(run, target, REFUSED)}")


@needs_litert
@CASES
def test_halves_become_the_codes_that_the_kernels_compute(kernels: str, machine: Any) -> None:
    require(machine, LITERT_JS)
    run, target = LiteRtRunner(kernels, threads=1, machine=machine).run, edit.cpu(machine.cpu)(SETS[kernels])
    print(f"\n{kernels}, {name(machine)}: {held_at_ties(run, target, every(*CURVES))}")


@needs_litert
@CASES
def test_pairs_of_any_scales_are_what_the_kernels_compute(kernels: str, machine: Any) -> None:
    require(machine, LITERT_JS)
    runner = LiteRtRunner(kernels, threads=1, machine=machine)
    print(f"\n{kernels}, {name(machine)}: {pairs_law(edit.cpu(machine.cpu)(SETS[kernels]), runner)}")


@needs_litert
@pytest.mark.parametrize("machine", EMULATED, ids=name)
@pytest.mark.parametrize("kernels", ["reference", "optimised"])
@pytest.mark.parametrize("zero", [-128, 0, 7])
def test_values_beyond_32_bits_are_what_the_kernels_compute(kernels: str, machine: Any, zero: int) -> None:
    require(machine)
    target = edit.cpu(machine.cpu)(SETS[kernels])
    x = 0.5 * torch.tensor([1e12, -1e12, 2.0**31, 2.0**31 - 128, -(2.0**31), -(2.0**31) - 256, 3e38, -3e38, 1.0, -1.0, 1e9])
    model = calibrated(target, Apply(_twice), x[None])
    for seat in quantizer_nodes(model):
        seat.module.scale.fill_(0.5)
        seat.module.zero_point.fill_(zero)
    found = LiteRtRunner(kernels, threads=1, machine=machine).run(qfunc.deploy(target)(model), [x[None]])[0]
    assert torch.equal(qfunc.emulate(target)(model)(x[None]), torch.from_numpy(found))


@needs_litert
def test_sums_with_the_zero_point_are_rounded_once_on_arm64() -> None:
    """Squares whose quotient plus zero point becomes another code if the product is rounded, too."""
    machine = next(m for m in EMULATED if m.cpu == cpus.arm64)
    require(machine)
    codes, scale = torch.arange(-128.0, 128.0), torch.tensor(0.0371)
    x, g, found = (codes - 3) * scale, torch.Generator().manual_seed(0), []
    while len(found) < 12:
        s, z = 0.05 * torch.exp(3 * torch.rand((), generator=g) - 2), int(torch.randint(-128, 128, (), generator=g))
        twice, once = x * x * (1 / s) + z, ((x * x).double() * (1 / s).double() + z).float()
        if (twice.round().clamp(-128, 127) != once.round().clamp(-128, 127)).any():
            found.append((float(s), z))
    target, shown = edit.cpu(cpus.arm64)(SETS["xnnpack"]), x.reshape(1, 1, 16, 16)
    model = calibrated(target, Side([Apply(_square) for _ in found]), shown)
    seats = [seat.module for seat in quantizer_nodes(model)]
    for seat, (s, z) in zip(seats, [(float(scale), 3), *found], strict=True):
        seat.scale.fill_(s)
        seat.zero_point.fill_(z)
    outputs = LiteRtRunner(threads=1, machine=machine).run(qfunc.deploy(target)(model), [shown])
    for want, got in zip(qfunc.emulate(target)(model)(shown), outputs, strict=True):
        assert torch.equal(want, torch.from_numpy(got))


def _square(x: torch.Tensor) -> torch.Tensor:
    return x * x


def _twice(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, x], -1)


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
