"""Scales that follow a BatchNorm: codes that its statistics do not move, and the same ones in training and on the chip."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import qfunc
from qfunc import recipes, targets
from qfunc.estimators import Mse
from qfunc.functions import DoReFa
from qfunc.graph.sites import quantizer_nodes
from qfunc.specs import PerTensor, Target, edit
from tests.onnxruntime_target import ONNXRUNTIME

FOUR = edit.pipe(ONNXRUNTIME, recipes.lsq(), edit.weights(bits=4, estimator=Mse()))

LOPSIDED = edit.pipe(targets.academic(4, 8), recipes.lsq(), edit.weights(estimator=Mse()))  # codes -8 to 7; also transposed


def network() -> nn.Module:
    """Factors of both signs, one of them 0; a conv, a depthwise and a transposed one, a linear."""
    torch.manual_seed(0)
    made = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 8, 3, groups=4), nn.BatchNorm2d(8),
        nn.ConvTranspose2d(8, 5, 2), nn.BatchNorm2d(5), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 6),
        nn.BatchNorm1d(6, affine=False),
    )  # fmt: skip
    for module in made.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.running_var.uniform_(0.2, 3)
            module.running_mean.uniform_(-1, 1)
            if module.affine:
                nn.init.uniform_(module.weight, -1.5, 1.5)
                module.weight.data[1] = 0
    return made


X = torch.randn(7, 3, 9, 8, generator=torch.Generator().manual_seed(1))


def quantized(target: Target = FOUR) -> Any:
    return qfunc.calibrate([X])(qfunc.quantize(target, batch_norm=qfunc.TrainBatchNorm())(network()))


def trained(model: Any, steps: int = 3) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        model(X).square().mean().backward()
        optimizer.step()
    return model


def weights(model: Any) -> dict[str, Any]:
    return {s.path: s.module for s in quantizer_nodes(model) if s.module.site.slot == "weight"}


def test_running_statistics_do_not_move_what_training_sees() -> None:
    """Variances multiplied by random numbers: the weights that training sees stay the same bits, the chip's scales do not."""
    one = quantized().train()
    other = copy.deepcopy(one)
    for name, buffer in other.named_buffers():
        if name.endswith("running_var"):
            buffer.mul_(torch.rand(buffer.shape) + 0.5)
    for path, module in weights(one).items():
        twin = weights(other)[path]
        norm, value = module.norm[0], torch.randn(module.like)
        torch.testing.assert_close(module(value, norm), twin(value, twin.norm[0]), rtol=0, atol=0, msg=path)
        assert not torch.equal(module.scales(), twin.scales()), path


@pytest.mark.parametrize(("target", "paths"), [(FOUR, "0 3 9"), (LOPSIDED, "0 3 5 9")], ids=["onnxruntime", "academic"])
def test_the_chip_has_the_codes_of_training(target: Target, paths: str) -> None:
    """Training's w_hat / s' and the folded model's codes, of weights off their ties; their scales are s' |f|."""
    model = trained(quantized(target))
    assert [p.split(".")[1] for p, m in weights(model).items() if m.norm] == paths.split()
    folded = weights(qfunc.fold_batch_norm()(model.eval()))
    model.train()
    groups = {n.target: n.args[2] for n in model.graph.nodes if n.op == "call_module" and len(n.args) == 3}
    for path, module in weights(model).items():
        owner = path.removeprefix("quantizers.").removesuffix(".weight")
        w, norm = model.get_parameter(f"{owner}.weight"), module.norm[0]
        f = torch.rsqrt(norm.running_var + norm.eps) * (1 if norm.weight is None else norm.weight.detach())
        shape = module.scale.shape
        kept, f = module.scale.detach().double(), f.double().reshape(shape)
        want = kept * f.abs().clamp(min=1e-3)
        # Two roundings of float32, of f and of the product, and one of each float32 factor: 2^-24 each.
        torch.testing.assert_close(folded[path].scale.double(), want, rtol=2.0**-21, atol=0)
        assert folded[path].norm == ()
        real = w.detach().double() / kept * torch.where(f < 0, -1.0, 1.0)
        tie = ((real - real.floor()) - 0.5).abs() < 1e-4
        low, high = module.scheme.format.qmin, module.scheme.format.qmax
        codes = real.round().clamp(low, high)
        seen = module(w, norm, groups[path]).detach().double() / kept * torch.where(f < 0, -1.0, 1.0)
        torch.testing.assert_close(torch.where(tie, codes, seen), codes, rtol=2.0**-21, atol=0)
        held = folded[path].export(w.detach() * f.float())[0].double()
        large = (f.abs() > 1e-3).expand_as(held) & ~tie
        torch.testing.assert_close(held[large], codes[large], rtol=0, atol=0, msg=path)


def test_evaluation_emulation_and_the_folded_model_agree() -> None:
    """After training with following scales: equal simulations, bit for bit, equal artifacts; derived biases are theirs."""
    model = trained(quantized()).eval()
    folded = qfunc.fold_batch_norm()(model)
    with torch.no_grad():
        assert torch.equal(model(X), folded(X))
    files = [qfunc.deploy(FOUR)(m).files["model.onnx"] for m in (model, folded)]
    assert files[0] == files[1]
    again = qfunc.quantize(FOUR, batch_norm=qfunc.TrainBatchNorm())(network())
    again.load_state_dict(model.state_dict())
    with torch.no_grad():
        assert torch.equal(again.eval()(X), model(X))


@pytest.mark.parametrize(
    ("why", "change"),
    [
        ("one scale for the tensor", edit.weights(granularity=PerTensor())),
        ("powers of two", edit.weights(power_of_two=True)),
        ("a weight that is squashed as a whole", edit.weights(function=DoReFa())),
    ],
)
def test_scales_that_cannot_follow_stay_their_own(why: str, change: Any) -> None:
    """The parameters are then those of the folded weight, and training divides by f."""
    model = quantized(change(FOUR))
    assert all(m.norm == () for m in weights(model).values())
    folded: Tensor = qfunc.fold_batch_norm()(trained(model).eval())(X)
    assert torch.equal(model.eval()(X), folded)


def test_a_kept_weight_follows_its_norm() -> None:
    """A folded weight that stays, asked for again after the statistics moved: in evaluation weights are quantized once."""
    model = quantized().eval()
    module = next(iter(weights(model).values()))
    value = torch.randn(module.like)
    with torch.no_grad():
        before = module(value)
        module.norm[0].running_var.mul_(4)
        assert not torch.equal(module(value), before)
