"""Constants that scale or shift the channels of a layer fold into it, and nothing else does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.frontend.capture import capture
from qfunc.ops.node import kind_of
from qfunc.passes.fold_batch_norm import fold_batch_norms


class Chain(nn.Module):
    """A convolution, and a function of its output and of the module, which has constants."""

    def __init__(self, function: Callable[..., Tensor], conv: nn.Module | None = None) -> None:
        super().__init__()
        self.conv, self.function = nn.Conv2d(3, 4, 1) if conv is None else conv, function
        self.register_buffer("w", torch.rand(4, 1, 1) + 0.5)
        self.register_buffer("b", torch.randn(4, 1, 1))
        self.register_buffer("number", torch.tensor(1.7))
        self.register_buffer("columns", torch.rand(5) + 0.5)
        self.gain = nn.Parameter(torch.randn(4, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """[n, 4, h, w] of [n, 3, h, w]."""
        return self.function(self.conv(x), self)


Function = Callable[[Any, Any], Any]
FOLDED: list[Function] = [
    lambda y, m: y * m.w + m.b,
    lambda y, m: m.b + m.w * y,
    lambda y, m: (y - m.b) / m.w,
    lambda y, m: m.b - y / m.w,
    lambda y, m: (y - m.b) / m.w * 2.0 + 1,
    lambda y, m: ((m.b - y) * 3.0 + 0.5) * m.w,
    lambda y, m: y * 0.5 + 0.1,
    lambda y, m: (y - 0.1) / 0.25,
    lambda y, m: y * m.w,
    lambda y, m: 0.1 * y,
    lambda y, m: y / 3.0,
    lambda y, m: m.b - y,
    lambda y, m: y + 1.0,
    lambda y, m: y * m.number,
    lambda y, m: y * m.gain,
    lambda y, m: y * m.w.exp(),
]


@pytest.mark.parametrize("function", FOLDED)
@pytest.mark.parametrize("conv", [nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1, bias=False), nn.ConvTranspose2d(3, 4, 1)])
def test_the_folded_function_is_the_same(function: Function, conv: nn.Module) -> None:
    torch.manual_seed(0)
    net, x = Chain(function, conv).eval().double(), torch.randn(2, 3, 4, 5, dtype=torch.float64)
    folded = fold_batch_norms(capture()(net))
    assert [n.op for n in folded.graph.nodes if n.op.startswith("call")] == ["call_function"]
    # A few roundings of float64 in another order.
    assert torch.allclose(folded(x), net(x), rtol=1e-12, atol=1e-12)


def test_a_scale_adds_no_bias() -> None:
    folded = fold_batch_norms(capture()(Chain(lambda y, m: 0.1 * y, nn.Conv2d(3, 4, 1, bias=False)).eval()))
    assert [name for name, _ in folded.named_parameters() if "conv" in name] == ["conv.weight"]


NEAR_MISSES: list[tuple[Function, list[str]]] = [
    (lambda y, m: 2.0 / y, ["div"]),
    (lambda y, m: 2.0 / (y - m.b), ["div"]),
    (lambda y, m: y + y, ["add"]),
    (lambda y, m: y * y.mean(), ["mean", "mul"]),
    (lambda y, m: y * m.columns, ["mul"]),  # one number for each column
    (lambda y, m: y.relu() * 0.5, ["relu", "mul"]),
    (lambda y, m: y / 3, ["div"]),  # it may be a size, which symbolic tracing does not know
    (lambda y, m: (y * m.w, y), ["mul"]),
    (lambda y, m: y * m.gain.exp(), ["exp", "mul"]),  # the gain trains
    (lambda y, m: y * 2.0**40 * 2.0**-40 + y, ["mul", "mul", "add"]),
]


@pytest.mark.parametrize(("function", "kinds"), NEAR_MISSES)
def test_near_misses_stay(function: Function, kinds: list[str]) -> None:
    folded = fold_batch_norms(capture()(Chain(function).eval()))
    assert [k for n in folded.graph.nodes if n.op.startswith("call") and (k := kind_of(n)) != "conv"] == kinds


class Tied(nn.Module):
    """A classifier with the weight of the embedding, and scaled scores."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        """[n, 7] of [n]."""
        return self.head(self.embedding(ids).tanh()) * 0.1


def test_a_weight_that_an_embedding_reads_stays_one() -> None:
    folded = fold_batch_norms(capture()(Tied().eval()))
    assert [kind_of(n) for n in folded.graph.nodes if n.op == "call_function"] == ["embedding", "tanh", "linear", "mul"]


def test_a_scale_after_a_norm_that_trains_stays() -> None:
    torch.manual_seed(0)
    conv = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    net, x = Chain(lambda y, m: y * m.gain, conv), torch.randn(8, 3, 6, 6)
    model = qfunc.calibrate([x], progress=False)(qfunc.quantize(targets.onnxruntime, batch_norm=qfunc.TrainBatchNorm())(net))
    assert {"conv.1.weight", "gain"} <= dict(model.named_parameters()).keys()
    # Eight bits of each tensor: 30 dB would do, the wrong factor leaves 0.
    assert 10 * torch.log10(net.eval()(x).square().sum() / (net(x) - model.eval()(x)).square().sum()) > 25
