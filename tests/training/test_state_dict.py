"""What a state_dict holds: everything that a quantized model learns, before calibration, in parts, and half way."""

from __future__ import annotations

import copy
import io
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import qfunc
from qfunc import functions, recipes, targets
from qfunc.errors import CalibrationError, VerifyError
from qfunc.quantizers.fake_quantize import FakeQuantize
from qfunc.specs import Target, edit
from qfunc.targets.runtimes import OnnxRuntimeRunner
from tests.onnxruntime_target import ONNXRUNTIME
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
    "qdrop": edit.activations(function=DROPPED)(ONNXRUNTIME),
    "both": edit.activations(function=functions.QDrop(STOCHASTIC))(ONNXRUNTIME),
}


@pytest.mark.parametrize("name", NOISY)
def test_interrupting_changes_nothing(name: str) -> None:
    """Two steps, a file, a model that was only quantized, two steps more: as four in one go; frozen statistics too."""
    one = student(NOISY[name])
    optimizer = sgd(one)
    qfunc.freeze_batch_norm(one, 3, optimizer)
    steps(one, optimizer, range(2))
    saved = through_a_file({"model": one.state_dict(), "optimizer": optimizer.state_dict()})
    other: Any = qfunc.quantize(NOISY[name], batch_norm=qfunc.TrainBatchNorm())(net()).train()
    other.load_state_dict(saved["model"])
    resumed = sgd(other)
    resumed.load_state_dict(saved["optimizer"])
    qfunc.freeze_batch_norm(other, 3, resumed)
    steps(one, optimizer, range(2, 5))
    steps(other, resumed, range(2, 5))
    require_same(one, other)
    assert one.norm1.frozen
    assert other.norm1.frozen
    assert all(int(s) == 5 for n, s in other.named_buffers() if n.endswith(".step"))


@pytest.mark.parametrize("name", NOISY)
def test_saving_and_loading_midway_changes_nothing(name: str, tmp_path: Path) -> None:
    """Two steps, `save`, `load` onto the float network, two steps more: as four in one go."""
    one = student(NOISY[name])
    optimizer = sgd(one)
    steps(one, optimizer, range(2))
    qfunc.save(tmp_path / "midway")(one)
    saved = through_a_file(optimizer.state_dict())
    other: Any = qfunc.load(tmp_path / "midway")(net())
    assert other.training
    resumed = sgd(other)
    resumed.load_state_dict(saved)
    steps(one, optimizer, range(2, 4))
    steps(other, resumed, range(2, 4))
    require_same(one, other)


@pytest.mark.parametrize("order", ["freeze, load", "load, freeze", "load alone"])
@pytest.mark.parametrize("after", [0, 2])
def test_frozen_statistics_stand_still_when_resumed(order: str, after: int) -> None:
    """Interrupted after the freeze: the first step that is resumed is the next one, in whatever order it was set up."""
    target = edit.activations(function=DROPPED)(targets.onnxruntime)

    def frozen(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        qfunc.freeze_batch_norm(model, after, optimizer if after else None)

    one = student(target)
    optimizer = torch.optim.Adam(one.parameters(), lr=0.01)
    frozen(one, optimizer)
    steps(one, optimizer, range(3))
    saved = through_a_file({"model": one.state_dict(), "optimizer": optimizer.state_dict()})
    other: Any = qfunc.quantize(target, batch_norm=qfunc.TrainBatchNorm())(net()).train()
    other = copy.deepcopy(other)  # which has its own norms to look at
    resumed = torch.optim.Adam(other.parameters(), lr=0.01)
    if order == "freeze, load":
        frozen(other, resumed)
    other.load_state_dict(saved["model"])
    resumed.load_state_dict(saved["optimizer"])
    if order == "load, freeze":
        frozen(other, resumed)
    steps(one, optimizer, range(3, 5))
    steps(other, resumed, range(3, 5))
    require_same(one, other)
    assert int(other.norm1.num_batches_tracked) == after


def test_an_earlier_state_thaws_what_froze_since() -> None:
    """The state of the first of three steps, of which the second freezes, gives the second and third again."""
    one = student(recipes.lsq()(targets.onnxruntime))
    optimizer = torch.optim.SGD(one.parameters(), lr=0.01)
    qfunc.freeze_batch_norm(one, 2, optimizer)
    steps(one, optimizer, range(1))
    early = copy.deepcopy(one.state_dict())
    steps(one, optimizer, range(1, 3))
    late = copy.deepcopy(one.state_dict())
    assert one.norm1.frozen
    one.load_state_dict(early)
    assert not one.norm1.frozen
    steps(one, optimizer, range(1, 3))
    assert [k for k, v in one.state_dict().items() if not torch.equal(v, late[k])] == []


def test_parts_of_a_model_with_norms_inside() -> None:
    """quantize(submodules=): one state_dict of the whole, whose names are the float model's; resumed and deployed the same."""
    target = recipes.lsq()(targets.onnxruntime)
    parts = {"submodules": ("stem", "body"), "batch_norm": qfunc.TrainBatchNorm()}
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


def test_a_part_whose_scales_are_tied_stays_tied() -> None:
    """Its inputs of a concat are calibrated, averaged and trained as one scale."""
    target = recipes.lsq()(targets.tensorrt)
    whole, part = student(target), student(target, nn.Sequential(net()), submodules=("0",))
    for model in (whole, part):
        loss_of(model, batch(1)).backward()
    tied = [m.scale for m in part.modules() if isinstance(m, FakeQuantize) and m.site.tie]
    assert len(tied) == 2
    assert tied[0] is tied[1]
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(part.parameters(), whole.parameters(), strict=True))


def test_before_calibration_a_state_dict_is_one_of_a_model_without_scales() -> None:
    """It loads, the model stays uncalibrated, weights' scales arrive; calibrated afterwards both are the same."""
    target = recipes.lsq()(targets.onnxruntime)
    one = qfunc.quantize(target, batch_norm=qfunc.TrainBatchNorm())(net())
    with torch.no_grad():
        one.get_parameter("left.weight").mul_(1.5)
        one.get_parameter("quantizers.left.weight.scale").mul_(1.25)
    other = qfunc.quantize(target, batch_norm=qfunc.TrainBatchNorm())(net())
    other.load_state_dict(through_a_file(one.state_dict()))
    with pytest.raises(CalibrationError, match=r"^site 'x': found no qparams yet, wanted a calibrated model"):
        other(batch(0))
    models = [qfunc.calibrate([batch(0)], progress=False)(m) for m in (one, other)]
    require_same(*models)
    assert torch.equal(models[0](batch(1)), models[1](batch(1)))
    calibrated = through_a_file(models[0].state_dict())
    again = qfunc.quantize(target, batch_norm=qfunc.TrainBatchNorm())(net())
    assert again.load_state_dict(calibrated).missing_keys == []
    assert torch.equal(again(batch(1)), models[0](batch(1)))


BATCH, FOLDED = qfunc.TrainBatchNorm(), qfunc.FoldBatchNorm()
LSQ, PLAIN = recipes.lsq()(ONNXRUNTIME), ONNXRUNTIME
WEIGHT = "Int(7, low=-63)" if OnnxRuntimeRunner().comparable() else "Int(8, low=-127)"  # as tests/conftest.py decides
UNFIT: dict[str, tuple[Any, Any, str]] = {
    "norms that train, where they are folded": (
        (LSQ, BATCH),
        (LSQ, FOLDED),
        "found a state with BatchNorms that train ('norm1', 'norm2'), wanted one with folded BatchNorms. Quantize with "
        "batch_norm=qfunc.TrainBatchNorm(), load the state, and fold it: qfunc.fold_batch_norm()(model).",
    ),
    "folded norms, where they train": (
        (LSQ, FOLDED),
        (LSQ, BATCH),
        "found a state with folded BatchNorms, wanted one with BatchNorms that train ('norm1', 'norm2'). Quantize with "
        "batch_norm=qfunc.FoldBatchNorm(), as the saved model was.",
    ),
    "another function": (
        (LSQ, BATCH),
        (PLAIN, BATCH),
        f"found a state of Lsq in {WEIGHT}, wanted one of Fixed in {WEIGHT} ('left.weight', 'relu', "
        "'right.weight' and 5 more). Quantize with the target of the saved model; otherwise values and training may differ.",
    ),
    "other bits": (
        (edit.weights(bits=5)(PLAIN), BATCH),
        (edit.weights(bits=6)(PLAIN), BATCH),
        "found a state of Fixed in Int(5, low=-15), wanted one of Fixed in Int(6, low=-31) ('left.weight', 'right.weight', "
        "'head.weight'). Quantize with the target of the saved model; otherwise values and training may differ.",
    ),
}


@pytest.mark.parametrize("name", UNFIT)
def test_a_state_of_another_kind_is_told(name: str) -> None:
    """By a warning, with names and the cure; torch then does what it does of the keys, strictly or not."""
    (target, norms), (other, others), text = UNFIT[name]
    source = student(target, batch_norm=norms)
    for around in (lambda m: m, nn.Sequential):
        given = through_a_file(around(source).state_dict())
        model: Any = around(qfunc.quantize(other, batch_norm=others)(net()))
        for strict in (True, False):
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                if strict and norms != others:
                    with pytest.raises(RuntimeError, match="Missing key"):
                        model.load_state_dict(given)
                else:
                    found = model.load_state_dict(given, strict=strict)
                    assert bool(found.missing_keys) == (norms != others)
            assert [str(w.message) for w in warned] == [f"load_state_dict: {text}"]


def test_a_state_without_qparams_is_told_where_they_are_lost() -> None:
    fresh = qfunc.quantize(LSQ, batch_norm=BATCH)(net())
    model = student(LSQ)
    lost = "'x', 'left.bias', 'relu' and 6 more"
    text = f"found a state without the qparams of {lost}, which this model had, wanted one with qparams. Load the state of a "
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        model.load_state_dict(fresh.state_dict())
    assert [str(w.message) for w in warned] == [f"load_state_dict: {text}calibrated model, or calibrate again."]
    with pytest.raises(CalibrationError, match="found no qparams yet"):
        model(batch(0))
    model.load_state_dict(net().state_dict(), strict=False)  # weights of the float model, and nothing else
    model.load_state_dict(student(LSQ).state_dict())
    model(batch(0))


def test_a_model_that_took_a_state_is_verified() -> None:
    """It has met no input: the first batch has the shapes; so it is with submodules.  A runner is asked for as ever."""
    target = edit.weights(bits=7)(recipes.lsq()(targets.onnxruntime))  # of 7 bits, so that any x86-64 computes the same
    for source, how in ((net(), {}), (Detector(), {"submodules": ("stem", "body")})):
        one = student(target, source, **how).eval()
        other: Any = qfunc.quantize(target, batch_norm=qfunc.TrainBatchNorm(), **how)(source).eval()
        other.load_state_dict(one.state_dict())
        reports = [qfunc.verify(target)(m, [batch(1, 4), batch(2)]) for m in (one, other)]
        assert reports[1].agreement.startswith("bit-exact"), str(reports[1])
        assert reports[1] == reports[0]
    with pytest.raises(VerifyError, match="found no batches"):
        qfunc.verify(target)(other, [])
