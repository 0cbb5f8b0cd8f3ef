"""ExecuTorch on other processors: not one code of drawn ops and of halves, nor a real output, differs from the emulation.

    QFUNC_EXAMPLES=100 QFUNC_MACHINES=FOLDER python -m pytest -n 0 -s tests/lowering/machines/test_executorch_machines.py

draws as many examples of up to eight ops for each processor, others every time, and prints how many were compared.
"""

from __future__ import annotations

import importlib.util
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import qfunc
from qfunc import targets
from qfunc.specs import edit
from qfunc.targets.runtimes import ExecuTorchRunner
from tests.lowering.drawn_law import held_against, held_at_ties
from tests.lowering.machines.machines import EMULATED, SamePython, name, require
from tests.lowering.machines.test_machines import X, calibrated
from tests.lowering.tie_ops import every
from tests.lowering.xnnpack.test_executorch_8da4w import BATCHES, KINDS, difference
from tests.lowering.xnnpack.test_executorch_ops import ANYWHERE, CURVES, REFUSED, TARGET, softmax_law
from tests.lowering.xnnpack.test_float_arithmetic import OPS, Between

pytestmark = pytest.mark.skipif(importlib.util.find_spec("executorch") is None, reason="executorch is not installed")
THERE = pytest.mark.parametrize("machine", EMULATED, ids=name)


def with_torch(machine: Any) -> Any:
    """The machine, where `.ci/machines FOLDER executorch` has set it up."""
    require(machine)
    if machine.cpu.architecture == "arm64" and not Path(machine.folder, "site/torch").exists():
        pytest.skip("ExecuTorch's PyTorch is not set up")
    return ExecuTorchRunner(machine)


@THERE
def test_drawn_ops_are_what_xnnpack_computes(machine: Any) -> None:
    runner = with_torch(machine)
    print(f"\n{machine.cpu}: {held_against(runner.run, edit.cpu(machine.cpu)(TARGET), REFUSED, ANYWHERE)}")


@THERE
def test_halves_become_the_codes_that_xnnpack_computes(machine: Any) -> None:
    runner = with_torch(machine)
    print(f"\n{machine.cpu}: {held_at_ties(runner.run, edit.cpu(machine.cpu)(TARGET), every(*CURVES))}")


@pytest.mark.parametrize("machine", [m for m in EMULATED if m.cpu.architecture == "x86-64"], ids=name)
def test_products_quantized_at_run_time_are_those_of_older_processors(machine: Any) -> None:
    require(machine)
    drawn, runner = random.Random(5), ExecuTorchRunner(machine)
    for kind in KINDS:
        shape = (drawn.choice((32, 64)), drawn.randint(1, 5), drawn.randint(1, 37), drawn.choice(BATCHES))
        assert difference(drawn.randrange(2**20), *shape, kind, drawn.random() < 0.5, runner)[0] == 0


@pytest.mark.parametrize("machine", [m for m in EMULATED if str(m.cpu) in ("x86-64-avx2", "x86-64-avxvnni")], ids=name)
def test_float_ops_are_those_of_processors_with_avx2(machine: Any) -> None:
    """Each op between layers, by its kernel: no unit is left to a bound."""
    require(machine)
    runner = ExecuTorchRunner(machine)
    target = edit.skip(edit.name("real"))(edit.cpu(machine.cpu)(targets.executorch_8da4w()))
    for op in OPS.values():
        torch.manual_seed(0)
        x = torch.randn(2, 3, 32) * 3
        made = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(Between(op).eval()))
        with torch.no_grad():
            wanted = qfunc.emulate(target)(made)(x)
        found = runner.run(qfunc.deploy(target)(made), [x])
        assert all(np.array_equal(a, b.numpy()) for a, b in zip(found, wanted, strict=True))


@THERE
def test_softmax_is_xnnpack_s(machine: Any) -> None:
    softmax_law(edit.cpu(machine.cpu)(TARGET), with_torch(machine))


def test_another_process_computes_what_this_one_computes() -> None:
    artifact = qfunc.deploy(TARGET)(calibrated(TARGET))
    here, there = (ExecuTorchRunner(m).inside(artifact) for m in (None, SamePython()))
    assert there.executed == here.executed
    (outputs, codes), (other_outputs, other_codes) = (view.run([X]) for view in (here, there))
    assert codes
    assert all(np.array_equal(a, b) for a, b in zip(outputs, other_outputs, strict=True))
    assert all(np.array_equal(codes[n], other_codes[n]) for n in codes)
