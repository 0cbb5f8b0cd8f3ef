"""x * sigmoid(x): one op or two, as the target computes it, on both roads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attrs import evolve
from torch import nn

import qfunc
from qfunc import targets
from qfunc.estimators import Ema
from qfunc.ops.node import kind_of
from qfunc.specs import Fusion, FusionStep, Op, Refuse, edit


class Written(nn.Module):
    """SiLU by its formula."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x) * x


class Between(nn.Module):
    """An activation between two convolutions."""

    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.first, self.act, self.last = nn.Conv2d(4, 8, 3), act, nn.Conv2d(8, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.act(self.first(x)))


class ReadTwice(nn.Module):
    """A sigmoid that something else reads, and one of another tensor."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = torch.sigmoid(x)
        return x * gate + gate, x * torch.sigmoid(x + 1)


X = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(0))
TWO, ONE = ["sigmoid", "mul"], ["silu"]


def gates(target: Any, model: nn.Module, exported: bool = False) -> list[str]:
    """Return the kinds of the ops of gates in the quantized model."""
    given = torch.export.export(model.eval(), (X,)) if exported else model.eval()
    kinds = [kind_of(node) for node in qfunc.quantize(target)(given).graph.nodes]
    return [kind for kind in kinds if kind in (*TWO, *ONE)]


@pytest.mark.parametrize("exported", [False, True], ids=["traced", "exported"])
@pytest.mark.parametrize(
    ("name", "made"),
    [("onnxruntime", TWO), ("litert", TWO), ("executorch_xnnpack", TWO), ("openvino", ONE), ("tosa", ONE), ("ncnn", ONE),
     ("nnie", TWO), ("edge_tpu", TWO)],
)  # fmt: skip
def test_both_spellings_become_what_the_target_computes(name: str, made: list[str], exported: bool) -> None:
    for act in (nn.SiLU(), Written()):
        assert gates(getattr(targets, name), Between(act), exported) == made


def test_others_stay() -> None:
    """A sigmoid with two readers, and a product with the sigmoid of another tensor."""
    captured = qfunc.quantize(edit.skip(Op("add"))(targets.qdq))(nn.Sequential(nn.Conv2d(4, 4, 1), ReadTwice()))
    assert [k for n in captured.graph.nodes if (k := kind_of(n)) in (*TWO, *ONE)] == [*TWO, *TWO]


@pytest.mark.parametrize(
    "change",
    [
        edit.skip(Op("silu")),
        edit.fuse(Fusion(Op("conv"), FusionStep(Op("silu")))),
        edit.override(Op("silu"), activations={"estimator": Ema()}),
    ],
    ids=["a rule", "a fusion", "an override"],
)
def test_what_names_a_silu_has_one(change: Any) -> None:
    assert gates(change(targets.onnxruntime), Between(nn.SiLU())) == ONE


def test_a_refused_silu_is_refused() -> None:
    """By a refusal that names it; nnie and edge_tpu refuse all but what they list."""
    chip = evolve(targets.onnxruntime, legality=(Refuse(Op("silu"), because="the manual", do="Use relu."),))
    with pytest.raises(qfunc.errors.SpecError, match="the manual"):
        gates(chip, Between(nn.SiLU()))


def test_a_sigmoid_that_an_edit_keeps_in_float_stays() -> None:
    chip = edit.skip(Op("sigmoid"))(targets.tosa)
    assert gates(chip, Between(Written())) == TWO


@pytest.mark.parametrize("name", ["onnxruntime", "litert", "executorch_xnnpack", "openvino", "ncnn"])
def test_the_runtime_computes_it_so(name: str) -> None:
    target = getattr(targets, name)
    runner = target.runtime.runner
    if missing := getattr(runner, "missing", str)():
        pytest.skip(missing)
    if reason := getattr(runner, "comparable", str)():
        pytest.skip(reason)
    model = Between(nn.SiLU()).eval()
    calibrated = qfunc.calibrate([X], progress=False)(qfunc.quantize(target)(model))
    report = qfunc.verify(target, latency=False)(calibrated, [X])
    assert not report.disagreements
    assert str(report.verdict).startswith("bit-exact: 0 of")
    assert report.sqnr is not None
    assert report.sqnr > 25
