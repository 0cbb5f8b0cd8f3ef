"""BatchNorm folding against float64 arithmetic that is written out here."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qfunc.frontend.capture import capture
from qfunc.graph.record import record_of
from qfunc.ops.node import kind_of
from qfunc.passes.fold_batch_norm import fold_batch_norms

EPS = torch.finfo(torch.float32).eps


def settled(model: nn.Module) -> nn.Module:
    """Statistics and affine parameters as training leaves them, negative and tiny gammas too."""
    g = torch.Generator().manual_seed(9)
    for m in model.modules():
        if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.running_mean is not None:
            m.running_mean.copy_(torch.randn(m.num_features, generator=g))
            m.running_var.copy_(torch.rand(m.num_features, generator=g) + 0.1)
            if m.affine:
                m.weight.data.copy_(torch.randn(m.num_features, generator=g))
                m.weight.data[0] = 0.0
                m.bias.data.copy_(torch.randn(m.num_features, generator=g))
    return model.eval()


def check(model: nn.Module, x: Tensor, kinds: list[str]) -> Any:
    torch.manual_seed(1)
    captured = capture()(settled(model))
    before = copy.deepcopy(captured.state_dict())
    folded = fold_batch_norms(captured)
    found = [kind_of(n) for n in folded.graph.nodes if n.op.startswith("call")]
    assert found == kinds
    double = copy.deepcopy(model).double()
    expected = double(x.double())
    # Each output is a sum; the rounding of weights, of products and of partial sums is at most (terms + 4)
    # half-ulps of the sum of magnitudes, which the same model bounds on |x| with |w|, |mean|, |beta|.
    bound = magnitude(double)(x.double().abs())
    terms = max(p.numel() // p.shape[0] for p in model.parameters() if p.ndim > 1) + 4 if kinds else 4
    got = folded(x)
    assert got.dtype == torch.float32
    assert ((got.double() - expected).abs() <= terms * EPS * bound).all()
    assert all(torch.equal(before[k], v) for k, v in captured.state_dict().items()), "the argument was changed"
    record = record_of(folded)
    assert record is not None
    assert set(record.facts) <= {n.name for n in folded.graph.nodes}
    return folded


def magnitude(model: nn.Module) -> nn.Module:
    """The same network of absolute values: norm(x) = |f| * (x + |mean|) + |beta|."""
    twin = copy.deepcopy(model)
    for parameter in twin.parameters():
        parameter.data.abs_()
    for m in twin.modules():
        if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.running_mean is not None:
            m.running_mean.abs_().neg_()
    return twin


CASES: dict[str, tuple[nn.Module, tuple[int, ...], list[str]]] = {
    "conv1d": (nn.Sequential(nn.Conv1d(3, 5, 3), nn.BatchNorm1d(5)), (2, 3, 7), ["conv"]),
    "conv2d": (nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5)), (2, 3, 7, 5), ["conv"]),
    "conv2d without bias": (nn.Sequential(nn.Conv2d(3, 5, 3, bias=False), nn.BatchNorm2d(5)), (2, 3, 7, 5), ["conv"]),
    "conv3d": (nn.Sequential(nn.Conv3d(2, 3, 2), nn.BatchNorm3d(3)), (2, 2, 3, 5, 4), ["conv"]),
    "grouped": (nn.Sequential(nn.Conv2d(4, 6, 3, groups=2), nn.BatchNorm2d(6)), (2, 4, 5, 5), ["conv"]),
    "depthwise": (nn.Sequential(nn.Conv2d(3, 6, 3, groups=3, bias=False), nn.BatchNorm2d(6)), (2, 3, 5, 5), ["conv"]),
    "transposed": (nn.Sequential(nn.ConvTranspose2d(4, 6, 3, 2), nn.BatchNorm2d(6)), (2, 4, 5, 5), ["conv_transpose"]),
    "transposed, grouped": (
        nn.Sequential(nn.ConvTranspose2d(4, 6, 3, groups=2, bias=False), nn.BatchNorm2d(6)), (2, 4, 5, 5), ["conv_transpose"]),
    "transposed 1d": (nn.Sequential(nn.ConvTranspose1d(4, 6, 3, groups=2), nn.BatchNorm1d(6)), (2, 4, 5), ["conv_transpose"]),
    "linear": (nn.Sequential(nn.Linear(7, 5), nn.BatchNorm1d(5)), (3, 7), ["linear"]),
    "not affine": (nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5, affine=False)), (2, 3, 7, 5), ["conv"]),
    "two in a row": (nn.Sequential(nn.Conv2d(3, 5, 1), nn.BatchNorm2d(5), nn.BatchNorm2d(5)), (2, 3, 4, 4), ["conv"]),
    "before a conv": (nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 5, 3, padding=1)), (2, 3, 5, 5), ["conv", "conv"]),
    "after a relu": (nn.Sequential(nn.Conv2d(3, 5, 1), nn.ReLU(), nn.BatchNorm2d(5)), (2, 3, 5, 5), ["conv", "relu", "conv"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_folded(name: str) -> None:
    model, shape, kinds = CASES[name]
    check(model, torch.randn(shape, generator=torch.Generator().manual_seed(2)), kinds)


def test_the_folded_numbers() -> None:
    model = settled(nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3, eps=0.25)))
    conv, norm = model[0], model[1]
    folded = fold_batch_norms(capture()(model))
    factor = norm.weight.double() / (norm.running_var.double() + 0.25).sqrt()
    weight = conv.weight.double() * factor.view(3, 1, 1, 1)
    bias = norm.bias.double() + (conv.bias.double() - norm.running_mean.double()) * factor
    # One rounding to float32 of the float64 value, itself good to some ulp of float64.
    for found, wanted in ((folded.get_parameter("0.weight"), weight), (folded.get_parameter("0.bias"), bias)):
        assert ((found.double() - wanted).abs() <= 0.5001 * EPS * wanted.abs() + 1e-15).all()


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)
        self.bn1, self.bn2 = nn.BatchNorm2d(3), nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn1(self.conv(x)) + self.bn2(self.conv(x)) + self.conv(x)


def test_a_shared_weight_is_copied_where_not_the_same_is_folded_into_it() -> None:
    folded = check(Shared(), torch.randn(2, 3, 4, 4), ["conv", "conv", "add", "conv", "add"])
    weights = [str(n.args[1].target) for n in folded.graph.nodes if kind_of(n) == "conv"]
    assert weights == ["conv.weight_1", "conv.weight_2", "conv.weight"]  # the last is what the model held


class Frozen(nn.Module):
    """A norm written out, computed anew at each call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.rand(3) + 0.5)
        self.register_buffer("shift", torch.randn(3))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale.reshape(1, -1, 1, 1).sqrt() + self.shift.reshape(1, -1, 1, 1)


class Pairs(nn.Module):
    """A conv and a norm that are read as one pair twice, and the conv once more with another norm."""

    def __init__(self, conv: nn.Module, norm: nn.Module, other: nn.Module | None = None) -> None:
        super().__init__()
        self.block, self.other = nn.Sequential(conv, norm), other
        self.alias = nn.Sequential(conv, norm)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.block(x))
        y = y if self.other is None else torch.relu(self.other(self.block[0](y)))
        return self.alias(y)


@pytest.mark.parametrize("norm", [nn.BatchNorm2d, lambda n: Frozen(), lambda n: nn.Sequential(nn.BatchNorm2d(n), Frozen())])
@pytest.mark.parametrize("conv", [lambda: nn.Conv2d(3, 3, 1, bias=False), lambda: nn.ConvTranspose2d(3, 3, 1)])
@pytest.mark.parametrize("other", [None, nn.BatchNorm2d])
def test_a_shared_pair_stays_shared(conv: Any, norm: Any, other: Any) -> None:
    model = settled(Pairs(conv(), norm(3), other and other(3)))
    x = torch.randn(2, 3, 4, 4)
    folded = fold_batch_norms(capture()(model))
    read = [tuple(str(a.target) for a in n.args[1:3]) for n in folded.graph.nodes if kind_of(n) in ("conv", "conv_transpose")]
    pair, second = ("block.0.weight", "block.0.bias"), ("block.0.weight_1", "block.0.bias_1")
    assert read == ([pair, pair] if other is None else [pair, second, pair])
    own = {name for name, _ in folded.named_parameters() if not name.startswith(("block.1", "other", "alias"))}
    assert own == {name for names in read for name in names}
    # Folding moves each result by some roundings of float32.
    assert torch.allclose(folded(x), model(x), rtol=1e-4, atol=1e-5)


class ReadTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return self.bn(y) + y


def test_a_conv_that_is_read_twice_is_not_folded() -> None:
    check(ReadTwice(), torch.randn(2, 3, 4, 4), ["conv", "conv", "add"])


class SharedNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.bn = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.a(x)) + self.bn(torch.relu(self.bn(self.b(x))))


def test_a_shared_norm() -> None:
    check(SharedNorm(), torch.randn(2, 3, 4, 4), ["conv", "conv", "relu", "conv", "add"])


def test_norms_that_stay() -> None:
    x = torch.randn(4, 3, 5)
    for model, kinds in (
        (nn.Sequential(nn.Conv1d(3, 3, 1), nn.BatchNorm1d(3, track_running_stats=False)), ["conv", "batch_norm"]),
        (nn.Sequential(nn.ReLU(), nn.BatchNorm1d(3)), ["relu", "batch_norm"]),
    ):
        captured = capture()(settled(model))
        folded = fold_batch_norms(captured)
        assert [kind_of(n) for n in folded.graph.nodes if n.op.startswith("call")] == kinds
        assert torch.equal(folded(x), model(x))


def test_linear_on_sequences_does_not_fold_into_the_wrong_axis() -> None:
    # BatchNorm1d of [N, C, L] norms axis 1, a linear writes axis 2.
    model = settled(nn.Sequential(nn.Linear(7, 4), nn.BatchNorm1d(5)))
    x = torch.randn(3, 5, 7)
    assert torch.equal(fold_batch_norms(capture()(model))(x), model(x))


@pytest.mark.filterwarnings("ignore")
def test_folded_on_the_export_road() -> None:
    model = settled(nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU(inplace=True)))
    x = torch.randn(2, 3, 7, 5)
    assert torch.equal(fold_batch_norms(capture((x,))(model))(x), fold_batch_norms(capture()(model))(x))
