"""Training: what moves, what is saved, what is resumed, and that all of it is what is deployed."""

from __future__ import annotations

import copy
import io
from typing import Any

import onnx
import pytest
import torch
import torch.nn.functional as F
from onnx import numpy_helper
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import qfunc
from qfunc import functions, recipes, targets
from qfunc.errors import CalibrationError, SpecError
from qfunc.estimators import Ema
from qfunc.quantizers.fake_quantize import FakeQuantize
from qfunc.specs import Target, edit
from tests.onnxruntime_target import ONNXRUNTIME
from tests.training.nets import Small, batch, loss_of, student


def made(target: Target) -> Any:
    return student(target, warm(Small))


def warm(kind: type[nn.Module]) -> nn.Module:
    """A network whose running statistics are those of its data."""
    torch.manual_seed(1)
    net = kind()
    for seed in range(40):
        net(batch(seed))
    return net


def step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    optimizer.zero_grad()
    loss_of(model, batch(seed)).backward()
    optimizer.step()


def learned(model: nn.Module) -> dict[str, Tensor]:
    return {n: p for n, p in model.named_parameters() if n.startswith("quantizers.")}


def test_an_optimizer_of_the_float_model_trains_nothing() -> None:
    """As docs/training.md and docs/from_mqbench.md say."""
    model = warm(Small)
    early = torch.optim.SGD(model.parameters(), lr=0.1)
    quantized = qfunc.quantize(recipes.lsq()(ONNXRUNTIME), batch_norm=qfunc.TrainBatchNorm())(model)
    between = torch.optim.SGD(quantized.parameters(), lr=0.1)
    trained = qfunc.calibrate([batch(0)], progress=False)(quantized).train()
    before = {name: p.detach().clone() for name, p in trained.named_parameters()}
    for optimizer in (early, between):
        step(trained, optimizer, 1)
        assert all(torch.equal(p, before[name]) for name, p in trained.named_parameters())
    step(trained, torch.optim.SGD(trained.parameters(), lr=0.1), 1)
    # The gradient of a bias before a BatchNorm is 0 but for roundings, below the last bit of the bias.
    steps = {name: p for name, p in trained.named_parameters() if p.grad is not None and p.grad.abs().max() > 1e-6}
    assert len(steps) > 10
    assert not any(torch.equal(p, before[name]) for name, p in steps.items())


RECIPES = {
    "lsq": (recipes.lsq(), ONNXRUNTIME),
    "lsq on 4 bits": (recipes.lsq(), targets.academic(4, 4)),
    "lsq_plus": (recipes.lsq_plus(), targets.academic(4, 4)),
    "pact": (recipes.pact(0.3), targets.academic(4, 4)),
    "dsq": (recipes.dsq(), targets.academic(4, 4)),
    # The divergence of 72 values is least far inside of them, where all clip.
    "tqt": (lambda target: edit.activations(estimator=Ema())(recipes.tqt()(target)), targets.vitis),
}


@pytest.mark.parametrize("name", RECIPES)
def test_what_a_recipe_trains_moves(name: str) -> None:
    """Three steps with momentum: every parameter of a quantizer has another value, and so has every other parameter."""
    recipe, target = RECIPES[name]
    model = made(recipe(target))
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    assert learned(model)
    groups = qfunc.parameter_groups(model, lr=0.05, weight_decay=1e-4, quantizer_lr=0.01)
    optimizer = torch.optim.SGD(groups, momentum=0.9)
    for seed in range(3):
        step(model, optimizer, seed)
    # A threshold's step may be below its float32; then it has a gradient.
    still = [n for n, p in model.named_parameters() if torch.equal(p, before[n]) and not bool(p.grad.any())]  # type: ignore[union-attr]
    # PACT's lower bound is 0 where nothing is negative: its paper has none.
    assert [n for n in still if not n.endswith(".low")] == []
    assert all(bool(p.isfinite().all()) for p in model.parameters())


def test_dorefa_trains_the_weights_alone() -> None:
    """One group, as no quantizer learns; without any quantizer there is something wrong."""
    model = made(recipes.dorefa()(targets.academic(4, 4)))
    assert not learned(model)
    groups = qfunc.parameter_groups(model, lr=0.1, weight_decay=0.5, quantizer_lr=0.01)
    assert [(len(g["params"]), g["lr"], g["weight_decay"]) for g in groups] == [(len([*model.parameters()]), 0.1, 0.5)]
    step(model, torch.optim.SGD(groups, momentum=0.9), 0)
    with pytest.raises(CalibrationError) as caught:
        qfunc.parameter_groups(nn.Linear(2, 2), lr=0.1)
    cure = "Quantize it first, and pass the quantized model; or pass model.parameters() to the optimizer."
    assert str(caught.value) == f"parameter_groups: found a Linear without quantizers, wanted a quantized model. {cure}"


@pytest.mark.parametrize("name", [*RECIPES, "dorefa"])
def test_recipes_begin_near_the_trained_network(name: str) -> None:
    """BatchNorms are folded, so nothing behind a layer takes back what a transformed weight adds or loses."""
    recipe, target = RECIPES.get(name, (recipes.dorefa(), targets.academic(4, 4)))
    float_, x = warm(Small).eval(), batch(7)
    quantized = qfunc.calibrate([x])(qfunc.quantize(recipe(target))(float_))
    with torch.no_grad():
        ratio = quantized(x).std() / float_(x).std()
    assert 0.5 < ratio < 2  # 4 bits lose some of it; weights of [-1, 1] gave 7 times as much here


def test_biases_follow_the_scales_that_train() -> None:
    """After training, the integers of the exported bias are R(b / (s_x s_w)) of the scales as they are now."""
    model = made(recipes.lsq()(targets.onnxruntime))
    optimizer = torch.optim.SGD(qfunc.parameter_groups(model, lr=0.05, quantizer_lr=0.02))
    before = model.get_submodule("quantizers.mean.output").qparams().scale.clone()
    for seed in range(3):
        step(model, optimizer, seed)
    model.eval()
    folded = qfunc.fold_batch_norm()(model)
    scale_x = model.get_submodule("quantizers.mean.output").qparams().scale
    assert scale_x != before
    scale_w = model.get_submodule("quantizers.head.weight").qparams().scale.flatten()
    codes, qparams = model.get_submodule("quantizers.head.bias").export(folded.get_parameter("head.bias"))
    exact = folded.get_parameter("head.bias").detach().double() / (scale_x * scale_w).double()
    assert torch.equal(qparams.scale, scale_x * scale_w)
    assert torch.equal(codes.double(), exact.round())  # no bias lies within 2^-24 of a tie
    assert torch.equal(folded(batch(9)), model(batch(9)))


@pytest.mark.parametrize("name", ["lsq", "tqt"])
def test_the_exported_bias_integers_are_those_of_the_simulation(name: str) -> None:
    """After training: int32 of s_x s_w, and 8 bits of a power of two; of folded BatchNorms and of a layer's own."""
    recipe, target = RECIPES[name]
    model, seen = made(recipe(target)), {}
    optimizer = torch.optim.SGD(qfunc.parameter_groups(model, lr=0.05, quantizer_lr=0.02))
    for seed in range(3):
        step(model, optimizer, seed)
    layers = ("left", "right", "head")
    for layer in layers:
        quantizer = model.eval().get_submodule(f"quantizers.{layer}.bias")
        quantizer.register_forward_hook(lambda m, _, value, layer=layer: seen.update({layer: value}))
    with torch.no_grad():
        model(batch(9))
    file = onnx.load_from_string(qfunc.deploy(recipe(target))(model).files["model.onnx"])
    held = {t.name: torch.from_numpy(numpy_helper.to_array(t).copy()) for t in file.graph.initializer}
    assert {held[f"{layer}.bias.codes"].dtype for layer in layers} == {torch.int32 if name == "lsq" else torch.int8}
    for layer in layers:
        assert held[f"{layer}.bias.codes"].any()
        assert torch.equal(held[f"{layer}.bias.codes"] * held[f"{layer}.bias.scale"], seen[layer])


def test_tied_sites_hold_one_parameter() -> None:
    """A concat's inputs train one scale: its gradient is the sum, and the chip finds them equal."""
    model = made(recipes.lsq()(targets.tensorrt))
    sites = [m for m in model.modules() if isinstance(m, FakeQuantize) and m.site.tie]
    assert len(sites) >= 2
    assert len({id(m.scale) for m in sites}) == 1
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    step(model, optimizer, 0)
    assert len({id(m.scale) for m in copy.deepcopy(model).modules() if isinstance(m, FakeQuantize) and m.site.tie}) == 1


@pytest.mark.parametrize("recipe", ["lsq", "tqt", "pact"])
def test_a_state_dict_makes_a_fresh_model_the_trained_one(recipe: str) -> None:
    """Loaded into a model that was never calibrated, and resumed with its optimizer: the same weights, bit for bit."""
    change, target = RECIPES[recipe]
    one = made(change(target))
    optimizer = torch.optim.Adam(one.parameters(), lr=0.01)
    for seed in range(2):
        step(one, optimizer, seed)
    file = io.BytesIO()
    torch.save({"model": one.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    other = qfunc.quantize(change(target), batch_norm=qfunc.TrainBatchNorm())(Small()).train()
    other.load_state_dict(saved["model"])
    resumed = torch.optim.Adam(other.parameters(), lr=0.01)
    resumed.load_state_dict(saved["optimizer"])
    for seed in range(2, 4):
        step(one, optimizer, seed)
        step(other, resumed, seed)
    have, want = other.state_dict(), one.state_dict()
    assert have.keys() == want.keys()
    assert all(torch.equal(have[k], want[k]) for k in want)


@pytest.mark.parametrize("function", [functions.QDrop(), functions.Stochastic()])
def test_a_run_with_noise_is_resumed_bit_for_bit(function: Any) -> None:
    one = made(edit.activations(function=function)(targets.onnxruntime))
    optimizer = torch.optim.SGD(one.parameters(), lr=0.01)
    step(one, optimizer, 0)
    other = made(edit.activations(function=function)(targets.onnxruntime))
    other.load_state_dict(one.state_dict())
    again = torch.optim.SGD(other.parameters(), lr=0.01)
    for model, each in ((one, optimizer), (other, again)):
        step(model, each, 1)
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")
@pytest.mark.parametrize("target", [targets.tensorrt, edit.weights(bits=8)(ONNXRUNTIME)], ids=lambda t: t.name)
def test_a_step_compiles_as_one_graph(target: Target) -> None:
    """And gives the eager step's gradients, but for the order of sums, by a backend whose backward computes values anew."""
    model = made(recipes.lsq()(target))
    compiled = torch.compile(copy.deepcopy(model), fullgraph=True, backend="aot_eager_decomp_partition")
    for m in (model, compiled):
        loss_of(m, batch(1)).backward()
    found = dict(compiled._orig_mod.named_parameters())
    for name, parameter in model.named_parameters():
        # Sums in another order move a value by 2^-20; one that lies that near to where its code clips has another gradient.
        wrong = (found[name].grad - parameter.grad).abs() > 1e-4 * parameter.grad.abs().max() + 1e-8
        assert int(wrong.sum()) <= 1, name


class Residual(nn.Module):
    """A branch that starts at 0, as residual networks are often initialised."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), nn.Linear(3, 6)
        nn.init.zeros_(self.norm.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(x + self.norm(self.conv(x))).mean((2, 3)))


@pytest.mark.parametrize("target", [ONNXRUNTIME, targets.tensorrt, targets.vitis], ids=lambda t: t.name)
def test_gamma_of_zero_trains(target: Target) -> None:
    """Four steps: gamma and the weights move, whatever the least scale of the chip."""
    model = student(target, warm(Residual))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for seed in range(4):
        step(model, optimizer, seed)
    assert bool(model.norm.weight.ne(0).all())
    assert bool(model.get_parameter("conv.weight").ne(warm(Residual).conv.weight).any())  # type: ignore[union-attr]
    assert all(bool(v.isfinite().all()) for v in model.state_dict().values() if v.is_floating_point())


def test_autocast_and_checkpointing_train() -> None:
    model = made(recipes.lsq()(targets.tensorrt))
    with torch.autocast("cpu", torch.bfloat16):
        loss = loss_of(model, batch(1))
    loss.backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters())
    one, other = made(recipes.lsq()(targets.tensorrt)).eval(), made(recipes.lsq()(targets.tensorrt)).eval()
    one(batch(1)).square().sum().backward()
    checkpoint(other, batch(1), use_reentrant=False).square().sum().backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_the_runtime_predicts_what_the_emulation_of_the_trained_model_does() -> None:
    model = made(recipes.lsq()(targets.onnxruntime))
    optimizer = torch.optim.SGD(qfunc.parameter_groups(model, lr=0.05, quantizer_lr=0.01))
    for seed in range(4):
        step(model, optimizer, seed)
    model.eval()
    report = qfunc.verify(targets.onnxruntime)(model, [batch(20, 16)])
    assert report.agreement.startswith("bit-exact"), str(report)


def test_freezing_after_some_batches_counts_on_when_resumed() -> None:
    model = made(targets.tensorrt)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    qfunc.freeze_batch_norm(model, 3, optimizer)
    means: list[Tensor] = []
    for seed in range(5):
        step(model, optimizer, seed)
        means.append(model.norm1.running_mean.clone())
    assert not torch.equal(means[1], means[2])
    assert torch.equal(means[2], means[4]), "three batches were seen"
    other = made(targets.tensorrt)
    other.load_state_dict(model.state_dict())
    qfunc.freeze_batch_norm(other, 3, torch.optim.SGD(other.parameters(), lr=0.01))
    assert other.norm1.frozen
    with pytest.raises(
        SpecError, match=r"freeze_batch_norm: found after=3, optimizer=NoneType, wanted a number of batches and an"
    ):
        qfunc.freeze_batch_norm(model, 3)
    with pytest.raises(
        CalibrationError, match=r"freeze_batch_norm: found no BatchNorm that trains, wanted at least one. Quantize with"
    ):
        qfunc.freeze_batch_norm(qfunc.quantize(targets.tensorrt)(Small()))


@pytest.mark.parametrize("target", [targets.tensorrt, targets.vitis], ids=lambda t: t.name)
def test_dsq_moves_its_scales_by_parts_of_their_size(target: Target) -> None:
    """At the rate of the docs; a scale that trained by itself grew more than tenfold, for its gradient is that of 255 steps."""
    model = made(recipes.dsq()(target))
    before = {n: p.detach().clone() for n, p in learned(model).items() if n.endswith(".width")}
    groups = qfunc.parameter_groups(model, lr=0.01, quantizer_lr=0.001)
    optimizer = torch.optim.SGD(groups, momentum=0.9)
    for seed in range(8):
        step(model, optimizer, seed)
    grown = {n: float((learned(model)[n].detach() / width).abs().max()) for n, width in before.items()}
    assert before
    assert max(grown.values()) < 2, grown
    assert any(growth != 1 for growth in grown.values())


def test_evaluation_sees_what_has_no_version() -> None:
    """A fused optimizer while the model stays in evaluation, and `.data` behind `.eval()`."""
    model, x = made(targets.tensorrt).eval(), batch(3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, fused=True)
    for change in (lambda: step(model, optimizer, 0), lambda: (model.left.weight.data.mul_(1.5), model.eval())):
        with torch.no_grad():
            before = model(x)
            change_at(change)
            after, fresh = model(x), copy.deepcopy(model)(x)
        assert not torch.equal(before, after)
        assert torch.equal(after, fresh)


def change_at(change: Any) -> None:
    """With gradients, as in training."""
    with torch.enable_grad():
        change()


def test_weights_are_quantized_once_in_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until one of the tensors behind them changes."""
    model, seen = made(targets.tensorrt).eval(), []
    original = FakeQuantize._quantize
    monkeypatch.setattr(
        FakeQuantize, "_quantize", lambda self, *given: (seen.append(self.site.name), original(self, *given))[1]
    )
    x = batch(3)
    with torch.no_grad():
        first = model(x)
        weights = [n for n in seen if "weight" in n]
        assert torch.equal(model(x), first)
        assert [n for n in seen if "weight" in n] == weights
        model.norm1.weight.mul_(1.5)
        second = model(x)
        assert not torch.equal(first, second)
        assert [n for n in seen if "weight" in n] == [*weights, "left.weight"]
    model(x).sum().backward()
    assert model.norm1.weight.grad is not None


def test_a_kept_bias_follows_the_scale_of_the_input() -> None:
    """Its own scale is a product of others', which may change in evaluation too."""
    model = made(targets.onnxruntime).eval()
    bias, site = model.get_submodule("quantizers.head.bias"), model.get_submodule("quantizers.mean.output")
    held = model.get_parameter("head.bias")
    with torch.no_grad():
        before = bias(held)
        assert bias(held) is before
        site.scale.mul_(2.0**20)
        assert not torch.equal(bias(held), before)
