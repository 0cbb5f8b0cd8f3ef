"""What training loops of PyTorch use beside a model: bfloat16, averaged weights, optimizers and schedules, a teacher."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

import qfunc
from qfunc import recipes, targets
from qfunc.errors import QfuncError
from qfunc.quantizers.fake_quantize import FakeQuantize
from qfunc.specs import edit
from tests.training.nets import CLASSES, batch, loss_of, net, student


def quantizers(model: nn.Module) -> list[FakeQuantize]:
    return [m for m in model.modules() if isinstance(m, FakeQuantize)]


def test_training_in_bfloat16() -> None:
    """The loss falls; scales stay float32, as do their gradients; each quantizer computes in float32; then it deploys."""
    target = recipes.lsq()(targets.onnxruntime)
    model, seen = student(target), list[tuple[FakeQuantize, Tensor, Tensor]]()
    for module in quantizers(model):
        module.register_forward_hook(lambda m, given, made: seen.append((m, given[0].detach(), made.detach())))
    optimizer = torch.optim.SGD(qfunc.parameter_groups(model, lr=0.1, quantizer_lr=0.005), momentum=0.9)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model, batch(1))
        loss.backward()
        if not losses:
            low = [(m, x, y) for m, x, y in seen if x.dtype is torch.bfloat16]
            assert {y.dtype for _, _, y in low} == {torch.bfloat16}
            assert len(low) == 5, "all activations but the input"
            for m, x, y in low:
                with torch.no_grad():
                    assert torch.equal(m.site.function.apply(m.params(), x.float(), m.scheme).bfloat16(), y), m
        seen.clear()
        assert {p.grad.dtype for p in model.parameters()} == {torch.float32}
        assert all(bool(p.grad.isfinite().all()) for p in model.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.95 * losses[0]
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert qfunc.verify(target)(model.eval(), [batch(9)]).agreement.startswith("bit-exact")


@pytest.mark.parametrize("use_buffers", [False, True])
def test_averaged_weights_deploy(use_buffers: bool) -> None:
    """w_ema <- 0.9 w_ema + 0.1 w for weights and scales; tied scales stay one; what is averaged is what is deployed."""
    target = recipes.lsq()(targets.tensorrt)
    model = student(target)
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=use_buffers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    want: dict[str, Tensor] = {}
    for seed in range(3):
        optimizer.zero_grad()
        loss_of(model, batch(seed)).backward()
        optimizer.step()
        averaged.update_parameters(model)
        now = {n: p.detach().double() for n, p in model.named_parameters()}
        want = {n: 0.9 * want[n] + 0.1 * p for n, p in now.items()} if want else now
    for name, parameter in averaged.module.named_parameters():
        # Three float32 averages of numbers of one size.
        torch.testing.assert_close(parameter.double(), want[name], rtol=2**-20, atol=1e-9, msg=name)
        # A bias before a BatchNorm has no gradient.
        assert torch.equal(parameter, model.get_parameter(name)) == (name == "left.bias"), name
    assert len({id(m.scale) for m in quantizers(averaged) if m.site.tie}) == 1
    update_bn([batch(seed) for seed in range(3)], averaged)
    evaluated = averaged.module.eval()
    assert torch.equal(qfunc.fold_batch_norm()(evaluated)(batch(9)), evaluated(batch(9)))
    assert qfunc.deploy(target)(evaluated).files != qfunc.deploy(target)(model.eval()).files
    fresh = qfunc.quantize(target, batch_norm=qfunc.TrainBatchNorm())(net())
    fresh.load_state_dict(evaluated.state_dict())
    given = (batch(0),)  # a state_dict has no shapes
    assert qfunc.deploy(target, given)(fresh.eval()).files == qfunc.deploy(target, given)(evaluated).files


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda groups: torch.optim.SGD(groups, momentum=0.9, nesterov=True),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}
SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 4),
    "adam": lambda o: torch.optim.lr_scheduler.LambdaLR(o, [lambda n: 1.0, lambda n: 0.0 if n > 1 else 1.0]),
    "adamw": lambda o: torch.optim.lr_scheduler.SequentialLR(
        o, [torch.optim.lr_scheduler.LinearLR(o, 0.1, total_iters=2), torch.optim.lr_scheduler.ExponentialLR(o, 0.5)], [2]
    ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_groups_have_rates_and_schedules_of_their_own(name: str) -> None:
    """A scale moves by its group's rate alone, without decay: where that is 0 it stays, where the weights' is 0 these stay."""
    model = student(recipes.lsq()(targets.tensorrt))
    optimizer = OPTIMIZERS[name](qfunc.parameter_groups(model, lr=0.02, weight_decay=0.5, quantizer_lr=0.001))
    schedule = SCHEDULES[name](optimizer)
    weights, scales = (group["params"] for group in optimizer.param_groups)
    assert {id(p) for p in model.parameters()} == {id(p) for p in (*weights, *scales)}
    assert {id(p) for p in scales} == {id(m.scale) for m in quantizers(model) if "scale" in m._parameters}
    for seed in range(4):
        rates = [group["lr"] for group in optimizer.param_groups]
        before = [[p.detach().clone() for p in group] for group in (weights, scales)]
        optimizer.zero_grad()
        loss_of(model, batch(seed)).backward()
        optimizer.step()
        schedule.step()
        for rate, group, old in zip(rates, (weights, scales), before, strict=True):
            assert any(not torch.equal(p, q) for p, q in zip(group, old, strict=True)) == (rate > 0)
    assert all(bool(p.isfinite().all()) for p in model.parameters())
    optimizer = OPTIMIZERS[name](qfunc.parameter_groups(model, lr=0.02, weight_decay=0.5, quantizer_lr=0.001))
    before = [[p.detach().clone() for p in group] for group in (weights, scales)]
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for decays, group, old in zip((True, False), (weights, scales), before, strict=True):
        assert any(not torch.equal(p, q) for p, q in zip(group, old, strict=True)) == decays


def test_a_student_of_4_bits_learns_from_its_float_model() -> None:
    """Knowledge distillation: the teacher is the float model itself, which quantize left as it was."""
    teacher = net().eval()
    before = {n: t.clone() for n, t in teacher.state_dict().items()}
    target = recipes.lsq()(edit.weights(bits=4)(targets.onnxruntime))
    model = student(target, teacher)

    def far() -> float:
        with torch.no_grad():
            return float(divergence(model, teacher, batch(9)))

    first = far()
    optimizer = torch.optim.Adam(qfunc.parameter_groups(model, lr=0.003, quantizer_lr=0.0003))
    for seed in range(12):
        optimizer.zero_grad()
        (divergence(model, teacher, batch(seed)) + 0.01 * F.cross_entropy(model(batch(seed)), CLASSES)).backward()
        optimizer.step()
    assert far() < first / 2
    assert all(torch.equal(t, before[n]) for n, t in teacher.state_dict().items())


def divergence(model: nn.Module, teacher: nn.Module, x: Tensor) -> Tensor:
    """As docs/training.md writes it, with a temperature of 2."""
    with torch.no_grad():
        wanted = (teacher(x) / 2).softmax(1)
    return 4 * F.kl_div((model(x) / 2).log_softmax(1), wanted, reduction="batchmean")


@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")
def test_what_wraps_a_model_is_named() -> None:
    """deploy and save say that it is a wrapper, not a model with quantized submodules."""
    target = recipes.lsq()(targets.onnxruntime)
    model = student(target)
    compiled = "found a compiled model, wanted the calibrated model inside. Pass the model that was given to torch.compile."
    for step, run in (("deploy", qfunc.deploy(target)), ("save", qfunc.save("unused"))):
        averaged = (
            f"found an AveragedModel, wanted the calibrated model inside. Pass its .module: qfunc.{step}(...)(averaged.module)."
        )
        wrong: list[tuple[Any, str]] = [(AveragedModel(model), averaged), (torch.compile(model), compiled)]
        for wrapper, text in wrong:
            with pytest.raises(QfuncError) as caught:
                run(wrapper)
            assert str(caught.value) == f"{step}: {text}"
