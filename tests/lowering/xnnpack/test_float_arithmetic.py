"""XNNPACK's float32 ops as `executorch_8da4w` describes them: no bit may differ, of drawn nodes and of drawn networks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.lowering.runner_support import other_kernels
from qfunc.numerics.sums.dynamic import flushed
from qfunc.specs import edit
from qfunc.targets.executorch import elementary as curves
from qfunc.targets.executorch import rows
from qfunc.targets.executorch.builder import CURVES
from qfunc.targets.executorch.logistic import sigmoid
from qfunc.targets.runtimes import ExecuTorchRunner
from tests.lowering.xnnpack.nodes import differ, operator, run
from tests.onnxruntime_target import REASON

pytestmark = [
    pytest.mark.skipif(bool(ExecuTorchRunner().missing()), reason="executorch is not installed"),
    pytest.mark.skipif(bool(other_kernels() or REASON), reason="the kernels' arithmetic is that of x86-64 with VNNI"),
]

SEEDS = st.integers(0, 2**32)
PHASES = (Phase.explicit, Phase.generate)
DRAWN = settings(max_examples=60, deadline=None, phases=PHASES)
LOWEST = torch.finfo(torch.float32).min
RANGES = (0, 2, 20, 70)
"""The largest exponent of entries, up and down; of the last, products overflow and vanish."""


def real(seed: int, exponent: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    powers = 2.0 ** torch.randint(-exponent, exponent + 1, shape, generator=generator)
    return torch.randn(shape, generator=generator) * powers * (torch.rand(shape, generator=generator) < 0.9)


def grid() -> Tensor:
    """A fine grid, all powers of two, seams, and what is tiny, huge, subnormal or no number."""
    seams = torch.tensor([5.1638283730, 7.9807181358, 87.336, 88.7, 103.9, math.pi / 2, math.pi, 2**0.5, 0.5**0.5])
    seams = torch.cat([seams, seams.nextafter(torch.tensor(0.0)), seams.nextafter(torch.tensor(999.0))])
    sizes = torch.cat(
        [seams, 2.0 ** torch.arange(-149.0, 128.0), torch.linspace(0, 20, 100_003), torch.linspace(0, 1e5, 50_001)]
    )
    special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 3e38, 1e-38])
    return torch.cat([sizes, -sizes, real(0, 120, 50_000), special])[None]


@pytest.mark.parametrize(
    ("op", "form", "fields"),
    [
        ("EXP", curves.exp, {}), ("LOG", curves.log, {}), ("SQRT", curves.sqrt, {}), ("RSQRT", curves.rsqrt, {}),
        ("SIN", curves.sin, {}), ("COS", curves.cos, {}), ("TANH", curves.tanh, {}), ("LOGISTIC", sigmoid, {}),
        ("GELU", curves.gelu, {"approximate": False}),
        ("GELU", lambda x: curves.gelu(x, "tanh"), {"approximate": True}),
    ],
)  # fmt: skip
def test_curves(op: str, form: Callable[[Tensor], Tensor], fields: dict[str, Any]) -> None:
    x = grid() if op not in ("SIN", "COS") else grid()[grid().abs() < 2.0**22][None]  # beyond, the angle is lost
    wanted = run(operator(op, **fields), [x], x.shape)
    assert differ(flushed(form(flushed(x))), wanted) == 0


@given(SEEDS, st.integers(1, 300), st.sampled_from((1.0, 4.0, 30.0, 90.0)), st.booleans())
@DRAWN
def test_softmax(seed: int, size: int, spread: float, masked: bool) -> None:
    """Exponentials down to those that vanish, and rows masked by the least float."""
    x = real(seed, 0, 1, 9, size) * spread
    if masked:
        x = torch.where(torch.rand(x.shape, generator=torch.Generator().manual_seed(seed)) < 0.3, LOWEST, x)
        x[0, 0], x[0, 1] = LOWEST, torch.linspace(-88.0, -86.0, size)
        x[0, 1, 0] = 0.0
    assert differ(rows.softmax(x, -1), run(operator("SOFTMAX"), [x], x.shape)) == 0


@given(SEEDS, st.lists(st.integers(1, 9), min_size=2, max_size=4), st.integers(0, 200), st.sampled_from(RANGES), st.data())
@DRAWN
def test_means(seed: int, shape: list[int], more: int, exponent: int, data: st.DataObject) -> None:
    """Of one axis and of several, of few entries and of many; sums that overflow and vanish."""
    axes = sorted(data.draw(st.sets(st.integers(1, len(shape) - 1), min_size=1)))
    shape = [1, *shape[1:]]
    shape[axes[0]] += more
    x = real(seed, exponent, *shape)
    wanted = [1 if i in axes else n for i, n in enumerate(shape)]
    found = rows.mean(x, axes, True)
    assert differ(found, run(operator("MEAN", np.array(axes), keepDims=True), [x], wanted)) == 0
    assert torch.equal(rows.mean(x, [a - len(shape) for a in axes]).flatten().nan_to_num(), found.flatten().nan_to_num())


@given(SEEDS, st.integers(1, 20), st.integers(1, 300), st.integers(1, 70), st.integers(1, 3), st.sampled_from(RANGES))
@DRAWN
def test_products(seed: int, m: int, k: int, n: int, heads: int, exponent: int) -> None:
    a, b = real(seed, exponent, 1, heads, m, k), real(seed + 1, exponent, 1, heads, k, n)
    assert differ(rows.product(a, b), run(operator("BATCH_MATMUL"), [a, b], (1, heads, m, n))) == 0


@given(SEEDS, st.integers(1, 20), st.integers(1, 300), st.integers(1, 70), st.booleans(), st.sampled_from(RANGES))
@DRAWN
def test_linear_layers_in_float(seed: int, m: int, k: int, n: int, biased: bool, exponent: int) -> None:
    x, weight = real(seed, exponent, m, k), real(seed + 1, exponent, n, k)
    bias = real(seed + 2, exponent, n) if biased else None
    constants = [weight.numpy(), *([bias.numpy()] if bias is not None else [])]
    wanted = run(operator("FULLY_CONNECTED", *constants, fusedActivationFunction="NONE"), [x], (m, n))
    assert differ(rows.linear(x, weight, bias), wanted) == 0


class Between(nn.Module):
    """An op of two tensors between layers, and a layer in float of its result."""

    def __init__(self, op: Any) -> None:
        super().__init__()
        self.first, self.second, self.last, self.op = nn.Linear(32, 64), nn.Linear(32, 64), nn.Linear(64, 3), op
        self.norm, self.affine, self.real = nn.RMSNorm(64, 1e-6), nn.LayerNorm(64), nn.Linear(64, 64)
        for parameter in (self.norm.weight, self.affine.weight, self.affine.bias):
            parameter.data += 0.2 * torch.randn(64)

    def forward(self, x: Tensor) -> Any:
        y = self.op(self, self.first(x), self.second(x))
        return self.last(y), self.real(y)


def attention(a: Tensor, b: Tensor, causal: bool) -> Tensor:
    """[N, T, 64] -> [N, T, 64], of four heads."""
    q, k, v = (t.view(t.shape[0], t.shape[1], 4, 16).transpose(1, 2) for t in (a, b, a + b))
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).reshape(a.shape)


OPS = {
    "rms norm": lambda m, a, b: m.norm(a * 8) + b,
    "layer norm": lambda m, a, b: m.affine(a * 8) * b,
    "layer norm without a weight": lambda m, a, b: F.layer_norm(a + b, (64,)),
    "attention": lambda m, a, b: attention(a, b, False),
    "causal attention": lambda m, a, b: attention(a, b, True),
    "gated": lambda m, a, b: F.silu(a) * b,
    "gated by GELU": lambda m, a, b: F.gelu(a) * b,
    "gated by GELU of tanh": lambda m, a, b: F.gelu(a, approximate="tanh") - b,
    "capped": lambda m, a, b: torch.tanh(a / 5.0) * 5.0 + b.sigmoid(),
    "turned": lambda m, a, b: a * (b * 9).cos() + torch.cat((-a[..., 32:], a[..., :32]), -1) * (b * 9).sin(),
    "exponential": lambda m, a, b: a.exp() / (b.abs() + 1.0).log().clamp(min=0.1),
    "roots": lambda m, a, b: a.abs().sqrt() - (b.abs() + 0.01).rsqrt(),
    "variance": lambda m, a, b: (a - a.mean(-1, keepdim=True)).square().mean(-1, keepdim=True) + b.relu(),
    "bounds": lambda m, a, b: torch.maximum(a, b) - torch.minimum(a, b * 0.5),
}


@pytest.mark.parametrize("name", sorted(OPS))
@given(SEEDS, st.integers(1, 4), st.sampled_from((1.0, 30.0)))
@settings(max_examples=6, deadline=None, phases=PHASES)
def test_networks(name: str, seed: int, tokens: int, spread: float) -> None:
    """Each op by its kernel: no unit is left to a bound."""
    target = edit.skip(edit.name("real"))(targets.executorch_8da4w())
    torch.manual_seed(seed)
    x = torch.randn(2, tokens, 32) * spread
    calibrated = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(Between(OPS[name]).eval()))
    report = qfunc.verify(target)(calibrated, [x, x.flip(0) * 0.5])
    assert (report.mismatches, report.float_units, report.disagreements) == (0, (), ())


def test_curves_of_constants_are_folded_as_xnnpack_computes_them() -> None:
    x = real(1, 3, 1, 1000).abs()
    for op, tflite in (("Exp", "EXP"), ("Log", "LOG"), ("Sqrt", "SQRT"), ("Sin", "SIN"), ("Cos", "COS"), ("Tanh", "TANH"),
                       ("Sigmoid", "LOGISTIC")):  # fmt: skip
        assert differ(torch.from_numpy(CURVES[op](x.numpy())), run(operator(tflite), [x], x.shape)) == 0
