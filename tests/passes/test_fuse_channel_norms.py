"""Norms of images and unit vectors written out by the model: one op where they are one, the model's own steps elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.ops.node import kind_of
from qfunc.passes.fuse_channel_norms import CHANNEL_NORMS
from qfunc.passes.rewrite import rewrite

X = torch.randn(2, 3, 6, 5, generator=torch.Generator().manual_seed(3)) * 4 + 1
Function = Callable[[Any, Any], Any]


class Image(nn.Module):
    """A convolution, a function with one weight and bias per channel, and a convolution."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.first, self.last, self.function = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 1), function
        self.w, self.b = nn.Parameter(torch.rand(4, 1, 1) + 0.5), nn.Parameter(torch.rand(1, 4, 1, 1) - 0.5)
        self.one = nn.Parameter(torch.rand(1, 1, 1))
        self.row = nn.Parameter(torch.rand(3) + 0.5)  # one number for each column

    def forward(self, x: Tensor) -> Any:
        y = self.function(self.first(x), self)
        return (self.last(y[0]), y[1]) if isinstance(y, tuple) else self.last(y)


def convnext(x: Tensor, m: Any) -> Tensor:
    mean = x.mean(1, keepdim=True)
    variance = (x - mean).pow(2).mean(1, keepdim=True)
    return m.w * ((x - mean) / torch.sqrt(variance + 1e-6)) + m.b


def of_places(x: Tensor, m: Any) -> Tensor:
    mean, variance = x.mean((2, 3), keepdim=True), x.var((-1, -2), keepdim=True, unbiased=False)
    return (x - mean) * torch.rsqrt(variance + 1e-5)


def watched(x: Tensor, m: Any) -> tuple[Tensor, Tensor]:
    length = x.norm(dim=1, keepdim=True)
    return x / length, length


ONE: list[tuple[str, Function]] = [
    ("layer_norm", convnext),
    ("layer_norm", lambda x, m: convnext(F.relu(x), m)),
    ("layer_norm", lambda x, m: (x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True, correction=0) + 1e-6).sqrt() * m.w),
    ("instance_norm", of_places),
    ("instance_norm", lambda x, m: of_places(x, m) * m.w + m.b),
    ("instance_norm", lambda x, m: m.b * of_places(F.max_pool2d(x, 2), m)),
    ("normalize", lambda x, m: x / x.norm(dim=1, keepdim=True)),
    ("normalize", lambda x, m: x / x.norm(p=2, dim=1, keepdim=True).clamp(min=1e-12)),
    ("normalize", lambda x, m: x / torch.linalg.vector_norm(x, dim=(2, 3), keepdim=True).clamp_min(1e-12).expand_as(x)),
    ("normalize", lambda x, m: x / x.pow(2).sum(1, keepdim=True).sqrt().clamp_min(1e-9)),
    ("normalize", lambda x, m: F.normalize(x, dim=1)),
]
STEPS: list[Function] = [
    lambda x, m: (x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True) + 1e-6).sqrt() * m.w,  # of a sample
    lambda x, m: (x - x.mean(2, keepdim=True)) / (x.var(2, keepdim=True, correction=0) + 1e-6).sqrt(),  # of columns
    lambda x, m: (x - x.mean(1, keepdim=True)) / (x.var((2, 3), keepdim=True, correction=0) + 1e-6).sqrt() * m.w,
    lambda x, m: (x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True, correction=0) + 1e-6).sqrt() * m.one,
    lambda x, m: (x - x.mean((2, 3), keepdim=True)) / (x.std((2, 3), keepdim=True) + 1e-6),
    lambda x, m: x / (x.pow(2).sum(1, keepdim=True).sqrt() + 1e-10),
    lambda x, m: x / x.norm(dim=1, keepdim=True).clamp(max=1e6),
    lambda x, m: (x + 1) / x.norm(dim=1, keepdim=True),
    watched,
]


def kinds(network: Any) -> list[str]:
    """The kinds of the ops."""
    return [kind for n in network.graph.nodes if (kind := kind_of(n)) not in ("input", "constant", "output")]


@pytest.mark.parametrize("example", [None, (X,)], ids=["fx", "export"])
@pytest.mark.parametrize(("kind", "function"), ONE)
def test_a_norm_is_one_op_with_the_values_of_its_steps(kind: str, function: Function, example: Any) -> None:
    torch.manual_seed(1)
    model = Image(function).eval()
    named = rewrite(qfunc.capture(example)(model), *CHANNEL_NORMS)
    assert {*kinds(named)} <= {"conv", "relu", "max_pool", "reshape", "transpose", kind}
    assert kinds(named).count(kind) == 1
    # Means and sums of 4 or 12 float32 squares in another order.
    torch.testing.assert_close(named(X), model(X), rtol=2**-18, atol=2**-18)


@pytest.mark.parametrize("function", STEPS)
def test_what_is_no_norm_keeps_its_steps(function: Function) -> None:
    captured = qfunc.capture()(Image(function).eval())
    before = [n.target for n in captured.graph.nodes]
    assert [n.target for n in rewrite(captured, *CHANNEL_NORMS).graph.nodes] == before


def test_a_factor_of_columns_stays_behind_the_norm() -> None:
    named = rewrite(qfunc.capture()(Image(lambda x, m: of_places(x, m) * m.row + m.b).eval()), *CHANNEL_NORMS)
    assert kinds(named) == ["conv", "instance_norm", "mul", "add", "conv"]


def test_a_norm_without_a_known_number_of_axes_keeps_its_steps() -> None:
    class Bare(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return of_places(x, self)

    captured = qfunc.capture()(Bare())
    assert "instance_norm" not in kinds(rewrite(captured, *CHANNEL_NORMS))


@pytest.mark.parametrize("function", [ONE[0][1], ONE[4][1]])
def test_a_chip_of_integers_runs_what_it_refuses_in_steps(function: Function) -> None:
    torch.manual_seed(1)
    model = Image(function).eval()
    done = qfunc.calibrate([X], progress=False)(qfunc.quantize(targets.tosa)(model))
    noise = (done(X) - model(X)).square().sum()
    # Seven bits of most tensors leave 30 dB and more; a wrong axis leaves 0.
    assert 10 * torch.log10(model(X).square().sum() / noise) > 25
    assert qfunc.deploy(targets.tosa)(done).files
