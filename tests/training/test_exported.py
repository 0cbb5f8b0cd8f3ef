"""Training what torch.export exported: in training mode it is the model, in evaluation mode an error with the cure."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import qfunc
from qfunc import recipes
from qfunc.errors import CaptureError
from tests.onnxruntime_target import ONNXRUNTIME
from tests.training.nets import Small, batch, loss_of, net, student

TARGET = recipes.lsq()(ONNXRUNTIME)


class Dropping(Small):
    """With a dropout, which both modes write."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(nn.functional.dropout(x, 0.25, self.training))


def dropping() -> nn.Module:
    made = net()
    made.__class__ = Dropping
    return made


def program(model: nn.Module) -> torch.export.ExportedProgram:
    return torch.export.export(model, (batch(0),))


CURE = (
    "wanted a model that supports both modes. Quantize the nn.Module itself, with example_inputs=(...,) to capture it by "
    "torch.export; or export it in training mode: torch.export.export(model.train(), inputs)."
)


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
@pytest.mark.parametrize("as_module", [False, True])
@pytest.mark.parametrize(
    ("decomposed", "found"),
    [(False, "in evaluation mode, with 2 norms and 1 dropouts"), (True, "after run_decompositions, which has one mode")],
)
def test_a_program_of_evaluation_mode_does_not_train(decomposed: bool, found: str, as_module: bool) -> None:
    exported: Any = program(dropping().eval())
    exported = exported.run_decompositions() if decomposed else exported
    exported = exported.module() if as_module else exported
    found = f"{'the module of an' if as_module else 'an'} ExportedProgram {found}"
    with pytest.raises(CaptureError) as caught:
        qfunc.quantize(TARGET, batch_norm=qfunc.TrainBatchNorm())(exported)
    assert str(caught.value) == f"quantize, batch_norm=TrainBatchNorm(): found {found}, {CURE}"
    quantized = qfunc.calibrate([batch(0)], progress=False)(qfunc.quantize(TARGET)(exported))
    for model in (quantized, nn.Sequential(quantized)):
        with pytest.raises(CaptureError) as caught:
            model.train()
        assert str(caught.value) == f"train: found {found}, {CURE}"
    assert not quantized.eval().training


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
@pytest.mark.parametrize("inputs", [None, (batch(0),)], ids=["fx", "export"])
def test_the_module_of_a_program_is_captured_as_the_program(inputs: Any) -> None:
    """Folded, with the same names and tensors, and left as it was; inside another module its norms fold, too."""
    exported = torch.export.export(net().eval(), (batch(0),), dynamic_shapes=({0: torch.export.Dim.AUTO},))
    module: Any = exported.module()
    before = str(module.graph), {k: v.clone() for k, v in module.state_dict().items()}
    one, other = (qfunc.quantize(TARGET, inputs)(m) for m in (exported, module))
    assert str(other.graph) == str(one.graph)
    assert other.state_dict().keys() == one.state_dict().keys()
    models = [qfunc.calibrate([batch(0)], progress=False)(m) for m in (one, other)]
    assert torch.equal(models[0](batch(1, 5)), models[1](batch(1, 5)))
    assert qfunc.deploy(TARGET)(models[0]).files == qfunc.deploy(TARGET)(models[1]).files
    assert str(module.graph) == before[0]
    assert all(torch.equal(v, before[1][k]) for k, v in module.state_dict().items())
    within = qfunc.quantize(TARGET)(nn.Sequential(module, nn.ReLU()))
    assert "batch_norm" not in str(within.graph)
    trained = qfunc.capture()(torch.export.export(net().train(), (batch(0),)).module())  # type: ignore[arg-type]
    assert trained.get_submodule("norm1").training


def test_a_program_without_norms_and_dropouts_trains() -> None:
    exported = torch.export.export(nn.Linear(3, 2), (torch.ones(4, 3),))
    quantized = qfunc.quantize(TARGET, batch_norm=qfunc.TrainBatchNorm())(exported)
    assert qfunc.calibrate([torch.ones(4, 3)], progress=False)(quantized).train().training


def test_a_program_of_training_mode_is_the_model() -> None:
    """Three steps of each, with the same dropouts: the same gradients, state and files, bit for bit."""
    model = dropping().train()
    model.norm2.eval()  # type: ignore[union-attr]
    captured = qfunc.capture()(program(model))
    modes = {name: captured.get_submodule(name).training for name in ("norm1", "norm2")}
    assert modes == {"norm1": True, "norm2": False}
    students = [student(TARGET, source) for source in (model, program(model))]
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05) for m in students]
    for seed in range(3):
        for each, optimizer in zip(students, optimizers, strict=True):
            torch.manual_seed(seed)
            optimizer.zero_grad()
            loss_of(each, batch(seed)).backward()
            optimizer.step()
    one, other = (m.state_dict() for m in students)
    assert other.keys() == one.keys()
    assert [k for k in one if not torch.equal(one[k], other[k])] == []


@pytest.mark.parametrize("kind", [nn.SyncBatchNorm, lambda n: nn.BatchNorm2d(n, momentum=None)], ids=["sync", "cumulative"])
def test_norms_stay_what_they_are_on_the_road_of_export(kind: Any) -> None:
    """torch.export writes neither the processes of a norm nor that its statistics are the average over all batches."""
    students = [student(TARGET, net(norm=kind), example_inputs=given) for given in (None, (batch(0),))]
    for seed in range(2):
        for each in students:
            loss_of(each, batch(seed)).backward()
    one, other = students
    assert type(one.norm1) is type(other.norm1)
    for name in ("norm1.running_mean", "norm2.running_var", "norm1.num_batches_tracked"):
        assert torch.equal(one.get_buffer(name), other.get_buffer(name)), name
