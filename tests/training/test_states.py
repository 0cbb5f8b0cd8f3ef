"""What a state_dict holds: everything that a quantized model learns, before calibration, in parts, and half way."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import qfunc
from qfunc import functions, recipes, targets
from qfunc.errors import CalibrationError
from qfunc.specs import Target, edit
from tests.training.nets import batch, loss_of, net, student


class Detector(nn.Module):
    """Quantized parts with BatchNorms, one of them a plain child, around something that is not captured."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU())
        self.body = nn.Sequential(nn.Conv2d(4, 5, 3), nn.BatchNorm2d(5), nn.ReLU())
        self.head = nn.Linear(5, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = self.body(x) if float(x.detach().sum()) != 0 else x[:, :5]
        return self.head(x.mean((2, 3)))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(qfunc.parameter_groups(model, lr=0.05, weight_decay=0.01, quantizer_lr=0.002), momentum=0.9)


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, seeds: range) -> None:
    for seed in seeds:
        optimizer.zero_grad()
        loss_of(model, batch(seed)).backward()
        optimizer.step()


def through_a_file(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def require_same(one: nn.Module, other: nn.Module) -> None:
    want, have = one.state_dict(), other.state_dict()
    assert have.keys() == want.keys()
    assert [k for k in want if not torch.equal(have[k], want[k])] == []


STOCHASTIC = functions.Stochastic(functions.Lsq(batch_axis=0))
DROPPED = functions.QDrop(functions.Lsq(batch_axis=0), p=0.75)
NOISY: dict[str, Target] = {
    "stochastic": edit.pipe(
        targets.tensorrt, edit.weights(function=functions.Stochastic(functions.Lsq())), edit.activations(function=STOCHASTIC)
    ),
    "qdrop": edit.activations(function=DROPPED)(targets.onnxruntime),
    "both": edit.activations(function=functions.QDrop(STOCHASTIC))(targets.onnxruntime),
}


@pytest.mark.parametrize("name", NOISY)
def test_interrupting_changes_nothing(name: str) -> None:
    """Two steps, a file, a model that was only quantized, two steps more: as four in one go; frozen statistics too."""
    one = student(NOISY[name])
    optimizer = sgd(one)
    qfunc.freeze_norms(one, 3, optimizer)
    steps(one, optimizer, range(2))
    saved = through_a_file({"model": one.state_dict(), "optimizer": optimizer.state_dict()})
    other: Any = qfunc.quantize(NOISY[name], norms=qfunc.BatchStatistics())(net()).train()
    other.load_state_dict(saved["model"])
    resumed = sgd(other)
    resumed.load_state_dict(saved["optimizer"])
    qfunc.freeze_norms(other, 3, resumed)
    steps(one, optimizer, range(2, 5))
    steps(other, resumed, range(2, 5))
    require_same(one, other)
    assert one.norm1.frozen
    assert other.norm1.frozen
    assert all(int(s) == 5 for n, s in other.named_buffers() if n.endswith(".step"))


def test_parts_of_a_model_with_norms_inside() -> None:
    """quantize(at=): one state_dict of the whole, whose names are the float model's; resumed and deployed the same."""
    target = recipes.lsq()(targets.onnxruntime)
    parts = {"at": ("stem", "body"), "norms": qfunc.BatchStatistics()}
    one = student(target, Detector(), **parts)
    assert set(Detector().state_dict()) <= set(one.state_dict())
    optimizer = sgd(one)
    steps(one, optimizer, range(2))
    saved = through_a_file({"model": one.state_dict(), "optimizer": optimizer.state_dict()})
    other = qfunc.quantize(target, **parts)(Detector()).train()  # type: ignore[call-overload]
    other.load_state_dict(saved["model"])
    resumed = sgd(other)
    resumed.load_state_dict(saved["optimizer"])
    for model, each in ((one, optimizer), (other, resumed)):
        steps(model, each, range(2, 4))
    require_same(one, other)
    x = batch(9)
    assert torch.equal(one.eval()(x), other.eval()(x))
    given = (x,)
    files = [qfunc.deploy(target, given)(m.stem).files for m in (one, other)]
    assert files[0] == files[1]


def test_before_calibration_a_state_dict_is_one_of_a_model_without_scales() -> None:
    """It loads, the model stays uncalibrated, weights' scales arrive; calibrated afterwards both are the same."""
    target = recipes.lsq()(targets.onnxruntime)
    one = qfunc.quantize(target, norms=qfunc.BatchStatistics())(net())
    with torch.no_grad():
        one.get_parameter("left.weight").mul_(1.5)
        one.get_parameter("quantizers.left.weight.scale").mul_(1.25)
    other = qfunc.quantize(target, norms=qfunc.BatchStatistics())(net())
    other.load_state_dict(through_a_file(one.state_dict()))
    with pytest.raises(CalibrationError, match=r"^site 'x': found no qparams yet, wanted a calibrated model"):
        other(batch(0))
    models = [qfunc.calibrate([batch(0)], progress=False)(m) for m in (one, other)]
    require_same(*models)
    assert torch.equal(models[0](batch(1)), models[1](batch(1)))
    calibrated = through_a_file(models[0].state_dict())
    again = qfunc.quantize(target, norms=qfunc.BatchStatistics())(net())
    assert again.load_state_dict(calibrated).missing_keys == []
    assert torch.equal(again(batch(1)), models[0](batch(1)))


def test_a_trained_model_is_folded_where_its_state_is_not() -> None:
    """The state of a model whose BatchNorms train fits no folded one: torch names what is missing."""
    target = recipes.lsq()(targets.onnxruntime)
    with pytest.raises(RuntimeError, match=r"norm1\.running_mean"):
        qfunc.quantize(target)(net()).load_state_dict(student(target).state_dict())
