"""What verify counts, and what a float unit inside an emulation reads."""

from __future__ import annotations

import math
from typing import Any

import torch
from attrs import evolve
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.analysis.verification_report import Difference, Tally
from qfunc.lowering.artifact import Artifact
from qfunc.specs import KeepFloat, edit
from qfunc.targets.runtimes import OnnxRuntimeRunner


def test_differences_are_counted_exactly() -> None:
    """Every element that is not the same value, however close; NaN equals NaN alone; batches add up."""
    tally = Tally("x", "codes")
    tally.add(torch.tensor([0.0, 1.0, 5.0]), torch.tensor([0.0, 1.0 + 2**-20, 2.0]), 1.5)
    assert (tally.elements, tally.mismatches, tally.largest) == (3, 2, 2.0)
    tally.add(torch.tensor([math.nan, 2.0]), torch.tensor([math.nan, 2.0]), 1.0)
    assert (tally.elements, tally.mismatches, tally.largest) == (5, 2, 2.0)
    tally.add(torch.tensor([math.nan, 2.0]), torch.tensor([0.0, math.nan]), 1.0)
    assert (tally.elements, tally.mismatches, tally.largest) == (7, 4, math.inf)
    assert tally.first == Difference(0, (1,), 1.0, 1.0 + 2**-20)


def test_the_first_difference_has_the_number_of_its_batch() -> None:
    tally = Tally("x", "codes")
    for k in range(3):
        tally.add(torch.zeros(2, 3), torch.tensor([[0.0, 0.0, 0.0], [0.0, k, 0.0]]), 1.0)
    assert tally.first == Difference(1, (1, 1), 0.0, 1.0)


def test_a_float_unit_reads_quantized_weights() -> None:
    """A conv whose output has no codes runs in float on what the codes of its operands mean: as the simulation."""
    target = edit.pipe(targets.onnxruntime, edit.add(edit.op("conv"), output=KeepFloat()))
    torch.manual_seed(0)
    net, x = nn.Conv2d(3, 4, 3).eval(), torch.randn(2, 3, 8, 8)
    done = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(net))
    assert torch.equal(qfunc.emulate(target)(done)(x), done(x))
    assert not torch.equal(done(x), net(x))


class Forgetful:
    """ONNX Runtime, which says of every unit that it is gone."""

    def run(self, artifact: Artifact, inputs: list[Tensor]) -> list[Any]:
        return OnnxRuntimeRunner().run(artifact, inputs)

    def inside(self, artifact: Artifact) -> Any:
        found: Any = OnnxRuntimeRunner().inside(artifact)
        return evolve(found, units=dict.fromkeys(found.units, "gone"))


def test_a_unit_that_the_runtime_lost_is_a_disagreement() -> None:
    """A linear layer changes codes, so that no runtime may leave it out, even if all numbers are equal."""
    torch.manual_seed(0)
    x, target = torch.randn(5, 4), targets.onnxruntime
    done = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(nn.Linear(4, 3)))
    report = qfunc.verify(target, Forgetful())(done, [x])
    assert report.mismatches == 0
    assert report.disagreements == ("linear: predicted integer, but the runtime has no such op",)
    assert report.verdict.startswith("mismatch")
