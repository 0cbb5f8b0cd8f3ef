"""Modules of the user's own that compute otherwise in training: captured, they compute what they did, in both modes."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.frontend.mode_dependence import TrainingOnly
from qfunc.ops.node import kind_of

X = torch.randn(5, 3, 7, 9, generator=torch.Generator().manual_seed(1))


class StochasticDepth(nn.Module):
    """Leaves out whole rows, at random."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        kept = torch.rand(x.shape[0], 1, 1, 1) >= self.p
        return x * kept / (1 - self.p)


class NormAct(nn.BatchNorm2d):
    """A norm and its activation, whose forward is written out."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, eps=0.01, momentum=0.3)
        self.act, self.gain = nn.PReLU(init=0.1), nn.Parameter(torch.full((1,), 1.5))

    def forward(self, x: Tensor) -> Tensor:
        torch._assert(x.ndim == 4, "rank 4")
        if self.training:
            self.num_batches_tracked.add_(1)
        mean, variance = self.running_mean, self.running_var
        x = F.batch_norm(x, mean, variance, self.weight, self.bias, self.training, self.momentum, self.eps)
        return self.act(x) * self.gain


class NormAct1d(nn.BatchNorm1d):
    """As NormAct, by torch.batch_norm."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.num_batches_tracked += 1
        given = (self.weight, self.bias, self.running_mean, self.running_var, self.training, 0.1, self.eps, False)
        return torch.batch_norm(x, *given).relu()


class Net(nn.Module):
    """Both, the dropped branch twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 6, 3, padding=1, bias=False), NormAct(6)
        self.drop, self.inner = StochasticDepth(0.4), nn.Conv2d(6, 6, 1)
        self.same = self.drop
        self.head, self.last = nn.Linear(6, 4), NormAct1d(4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x))
        x = x + self.drop(self.inner(x))
        x = x + self.same(self.inner(x))
        return self.last(self.head(x.mean((2, 3))))


def net() -> Net:
    torch.manual_seed(2)
    made = Net()
    with torch.no_grad():
        for seed in range(3):
            made.train()(torch.randn(X.shape, generator=torch.Generator().manual_seed(seed)))
    return made.eval()


def test_evaluation_is_the_model_s() -> None:
    model = net()
    captured = qfunc.capture()(model)
    assert torch.equal(captured(X), model(X))
    assert [kind_of(n) for n in captured.graph.nodes if n.op == "call_module"] == ["batch_norm", *["dropout"] * 2, "batch_norm"]
    assert captured.state_dict().keys() == model.state_dict().keys()


def test_training_is_the_model_s() -> None:
    """The same rows are left out, the same statistics are kept, the same gradients flow."""
    model = net()
    captured = qfunc.capture()(model)
    for made in (model, captured):
        made.train()
        torch.manual_seed(4)
        made(X).square().sum().backward()
    assert captured.norm.num_batches_tracked == 4
    for (name, a), b in zip(model.state_dict().items(), captured.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    for (name, a), b in zip(model.named_parameters(), captured.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, msg=name)


@pytest.mark.parametrize("training", [False, True])
def test_the_model_is_not_changed_and_modes_are_kept(training: bool) -> None:
    model = net().train(training)
    model.drop.train(not training)
    before = {name: (type(m), m.training) for name, m in model.named_modules()}
    state = copy.deepcopy(model.state_dict())
    captured = qfunc.capture()(model)
    assert {name: (type(m), m.training) for name, m in model.named_modules()} == before
    assert all(torch.equal(a, b) for a, b in zip(state.values(), model.state_dict().values(), strict=True))
    modes = {name: m.training for name, m in captured.named_modules()}
    assert all(modes[name] == mode for name, (_, mode) in before.items() if name in modes)
    assert isinstance(captured.drop, TrainingOnly)
    assert captured.drop.inner.training is not training


def test_it_folds_and_deploys() -> None:
    """One road or the other: the norms are folded, what drops is looked through."""
    model = net()
    for example in (None, (X,)):
        quantized = qfunc.quantize(targets.onnxruntime, example)(model)
        assert not [n for n in quantized.graph.nodes if kind_of(n) == "batch_norm"]
        done = qfunc.calibrate([X], progress=False)(quantized)
        run = targets.onnxruntime.runtime.runner.session(qfunc.deploy(targets.onnxruntime)(done).files["model.onnx"])
        # 8 bits of weights and activations in four layers: the energy of their noise is far below 1/20.
        want = model(X).detach()
        assert float((torch.from_numpy(run.run([X])[0]) - want).square().sum()) < 0.05 * float(want.square().sum())


def test_a_leaf_of_the_user_s_stays_one() -> None:
    captured = qfunc.capture(leaves=StochasticDepth)(net())
    assert type(captured.drop) is StochasticDepth


def test_what_is_no_identity_in_evaluation_is_traced() -> None:
    class Halves(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if self.training else x / 2

    with pytest.raises(qfunc.errors.CaptureError, match="in train mode"):
        qfunc.capture()(nn.Sequential(Halves()))
