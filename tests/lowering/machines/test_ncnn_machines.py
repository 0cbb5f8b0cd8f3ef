"""ncnn on other processors: not one value of ops as Hypothesis draws them, and of halves, differs from the emulation.

    QFUNC_EXAMPLES=100 QFUNC_MACHINES=FOLDER python -m pytest -n 0 -s tests/lowering/machines/test_ncnn_machines.py

draws as many examples of up to eight ops for each processor, others every time, and prints how many were compared.
"""

from __future__ import annotations

import importlib.util
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import qfunc
from qfunc import targets
from qfunc.specs import edit
from qfunc.targets.runtimes import NcnnRunner
from tests.lowering.machines.machines import EMULATED, SamePython, name, require
from tests.lowering.machines.test_machines import X, calibrated
from tests.lowering.ncnn_files.test_ncnn_ops import drawn_ops_law, ties_law

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ncnn") is None, reason="ncnn is not installed")
THERE = pytest.mark.parametrize("machine", EMULATED, ids=name)


@THERE
def test_drawn_ops_are_what_ncnn_computes(machine: Any) -> None:
    require(machine)
    print(f"\n{machine.cpu}: {drawn_ops_law(edit.cpu(machine.cpu)(targets.ncnn), NcnnRunner(machine=machine))}")


@THERE
@pytest.mark.parametrize("ties", [True, False])
def test_halves_become_the_values_that_ncnn_computes(machine: Any, ties: bool) -> None:
    require(machine)
    ties_law(edit.cpu(machine.cpu)(targets.ncnn), NcnnRunner(machine=machine), ties)


@THERE
def test_depthwise_convolutions_are_what_ncnn_computes(machine: Any) -> None:
    """Of every kernel that has its own form: 3x3 of stride 1 and 2 with and without a clip, and others."""
    require(machine)
    target = edit.cpu(machine.cpu)(targets.ncnn)
    curves = (nn.Identity, nn.ReLU, nn.ReLU6)
    for kernel, stride, dilation, many, activation in product(((2, 3), (3, 3)), (1, 2), (1, 2), (1, 2), curves):
        layer = nn.Sequential(nn.Conv2d(9, 9 * many, kernel, stride, dilation=dilation, groups=9), activation())
        x = torch.randn(2, 9, 9, 9, generator=torch.Generator().manual_seed(1))
        model = calibrated(target, layer, x)
        found = NcnnRunner(machine=machine).run(qfunc.deploy(target)(model), [2 * x])[0]
        assert torch.equal(qfunc.emulate(target)(model)(2 * x), torch.from_numpy(found)), (layer,)


def test_another_process_computes_what_this_one_computes() -> None:
    artifact = qfunc.deploy(targets.ncnn)(calibrated(targets.ncnn))
    here, there = (NcnnRunner(machine=m).inside(artifact) for m in (None, SamePython()))
    assert there.tensors == here.tensors
    assert there.reals == here.reals
    (outputs, found), (other_outputs, others) = (view.run([X]) for view in (here, there))
    assert found.keys() == here.tensors | here.reals
    assert all(np.array_equal(a, b) for a, b in zip(outputs, other_outputs, strict=True))
    assert all(np.array_equal(found[n], others[n]) for n in found)
