"""What keeps a divisor from 0 is not rounded away: y + eps, and max(y, eps), stay in float where y is divided by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, fx, nn

import qfunc
from qfunc.frontend.capture import capture
from qfunc.graph.record import record_of
from qfunc.ops.node import kind_of
from qfunc.passes.match_epsilon_guards import match_epsilon_guards
from qfunc.specs import edit
from qfunc.targets.runtimes import OnnxRuntimeRunner
from tests.onnxruntime_target import ONNXRUNTIME
from tests.passes.user_norms import FrozenBatchNorm2d, WrittenOut

TARGET = edit.weights(bits=7)(ONNXRUNTIME)  # of 7 bits, so that any x86-64 computes the same

GUARDS: list[Callable[[Any, Any], Any]] = [
    lambda x, y: x / (y + 1e-5),
    lambda x, y: x / (1e-5 + y),
    lambda x, y: x * (y + 1e-5).rsqrt(),
    lambda x, y: x / (y.pow(2).sum(-1, keepdim=True) + 1e-6).sqrt(),
    lambda x, y: x * (y + 1e-5).log(),
    lambda x, y: x * (y + 1e-5).reciprocal(),
    lambda x, y: x / y.clamp(min=1e-6),
    lambda x, y: x / y.clamp_min(1e-6).expand_as(x),
    lambda x, y: x / (y + 1e-5).transpose(-1, -2).unsqueeze(0),
]


def read_twice(x: Any, y: Any) -> Any:
    divisor = y + 1e-5
    return x / divisor + divisor


NONE: list[Callable[[Any, Any], Any]] = [
    lambda x, y: x / (y + 1.0),  # no guard, but a number like others
    lambda x, y: x / (y - 1e-5),
    lambda x, y: x / (y + x),
    lambda x, y: (y + 1e-5) / x,
    lambda x, y: x / (y + 1e-5) + (y + 1e-5).relu(),
    lambda x, y: x * (y + 1e-5),
    lambda x, y: x / y.clamp(1e-6, 2.0),
    read_twice,
]


def test_a_guard_that_another_op_reads_is_a_near_miss() -> None:
    record = record_of(match_epsilon_guards(capture()(fx.symbolic_trace(read_twice))))
    assert record is not None
    assert record.unmatched == (("add", "guard", "'add' has a reader that does not divide by it"),)


@pytest.mark.parametrize("by_export", [False, True])
@pytest.mark.parametrize("norm", [FrozenBatchNorm2d, WrittenOut])
def test_a_frozen_norm_folds_though_its_deviation_is_guarded(norm: type[nn.Module], by_export: bool) -> None:
    """rsqrt(running_var + eps) is a constant: the chip sees one convolution, as of nn.BatchNorm2d."""
    x = torch.randn(2, 3, 7, 5)
    net = nn.Sequential(nn.Conv2d(3, 6, 3, bias=False), norm(6), nn.ReLU()).eval()
    quantized = qfunc.quantize(TARGET, example_inputs=(x,) if by_export else None)(net)
    done = qfunc.calibrate([x], progress=False)(quantized)
    assert [s.slot for s in qfunc.explain(done).sites] == ["input", "weight", "bias", "output"]
    assert not qfunc.explain(done).floats
    assert qfunc.verify(TARGET, OnnxRuntimeRunner(threads=1))(done, [x]).agreement.startswith("bit-exact: 0 of")


def named(function: Callable[[Any, Any], Any]) -> fx.GraphModule:
    class Net(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Any:
            return function(x, y)

    return match_epsilon_guards(capture()(Net()))


@pytest.mark.parametrize("function", GUARDS)
def test_a_guard_is_named_and_computes_the_same(function: Callable[[Any, Any], Any]) -> None:
    made, (x, y) = named(function), torch.randn(2, 1, 3, 3).abs()
    assert "guard" in [kind_of(n) for n in made.graph.nodes]
    assert torch.equal(made(x, y), function(x, y))


@pytest.mark.parametrize("function", NONE[:4] + NONE[5:])
def test_other_sums_are_not(function: Callable[[Any, Any], Any]) -> None:
    assert "guard" not in [kind_of(n) for n in named(function).graph.nodes]


def test_of_two_sums_the_one_that_is_divided_by_is_named() -> None:
    kinds = [kind_of(n) for n in named(NONE[4]).graph.nodes]
    assert (kinds.count("guard"), kinds.count("add")) == (1, 2)


class LinearAttention(nn.Module):
    """Cai et al., EfficientViT, arXiv:2205.14756: the last column of the products is the divisor."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.project = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        v = nn.functional.pad(v, (0, 1), value=1.0)
        out = q.relu() @ (k.relu().transpose(-1, -2) @ v)
        return self.project(out[..., :-1] / (out[..., -1:] + 1e-5))


def test_linear_attention_is_finite_and_runs_as_simulated() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 20, 8)
    model = LinearAttention().eval()
    model.qkv.weight.data[:8].abs_()
    model.qkv.bias.data.zero_()
    x[:, 0] = -x[:, 1].abs()  # no query is left of it: 0 / (0 + eps)
    calibrated = qfunc.calibrate([(x,)])(qfunc.quantize(TARGET)(model))
    simulated = calibrated(x)
    assert simulated.isfinite().all()
    (run,) = OnnxRuntimeRunner(threads=1).run(qfunc.deploy(TARGET)(calibrated), (x,))
    cosine = torch.cosine_similarity(torch.as_tensor(np.asarray(run)).flatten(), simulated.flatten(), 0)
    assert cosine > 0.999
