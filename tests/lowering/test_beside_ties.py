"""Sums next to ties, beside large biases and between ratios next to powers of two: the emulation is what each runtime computes.

Random draws do not reach them: multipliers of float32, of 31 bits and exact ones give other codes within 2^-18 of a tie only.

    QFUNC_EXAMPLES=50 python -m pytest -n 0 -s tests/lowering/test_beside_ties.py

asks so many questions of each kind, others every time, and prints how many elements were compared.
"""

from __future__ import annotations

import math
import random
import warnings
from fractions import Fraction
from typing import Any

import pytest
import torch
from attrs import evolve
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.graph.sites import quantizer_nodes
from qfunc.specs import FixedPoint, Kernel, Op
from qfunc.targets.litert.target import BYTES
from qfunc.testing import check_target
from qfunc.testing.beside_ties import beside_powers, beside_ties
from qfunc.testing.large_sums import LargeSums, large_sums
from qfunc.testing.one_op import OnePair
from tests.conformance.modules import Apply
from tests.lowering.drawn_law import EXAMPLES
from tests.lowering.drawn_ops import Side

SHAPE = (4, 5, 7, 5)
NAMES = ("onnxruntime", "litert", "litert_reference", "litert_optimised", "executorch_xnnpack", "tosa", "openvino", "ncnn",
         "cmsis_nn", "cmsis_nn_16x8")  # fmt: skip
RUNTIMES = {name: getattr(targets, name) for name in NAMES}
LACKING = {
    "onnxruntime": ("conv_transpose", "sub", "curves", "mean"),
    "cmsis_nn_16x8": ("conv_transpose", "sub", "curves", "leaky_relu", "global_avg_pool", "mean", "matmul"),
}
"""Ops that a target computes in float, or has no form for."""
FLOAT = ("openvino", "ncnn")  # these compute all but products in float


def products(seed: int) -> list[nn.Module]:
    """Layers with one channel and with channels that vectors leave over; of large sums and of ordinary ones."""
    torch.manual_seed(seed)
    large = [LargeSums(kind, count, seed + count) for kind in ("linear", "conv") for count in (1, 3, 13, 17)]
    large += [LargeSums("linear", 1, seed + 20 + i) for i in range(8)]  # with one scale: for them, kernels differ
    return [
        *large,
        LargeSums("conv", 5, seed, depthwise=True),
        nn.Linear(5, 1),
        nn.Conv2d(5, 13, 3),
        nn.Conv2d(5, 5, 2, groups=5),
    ]


def others(name: str, seed: int) -> list[nn.Module]:
    """Transposed convolutions, sums and products of two tensors, means, pools, and curves."""
    torch.manual_seed(seed)
    made = {
        "conv_transpose": [LargeSums("conv_transpose", 3, seed), nn.ConvTranspose2d(5, 4, 2, 2)],
        "add": [Apply(_pair(torch.add), nn.Conv2d(5, 5, 1))],
        "sub": [Apply(_pair(torch.sub), nn.Conv2d(5, 5, 1))],
        "mul": [Apply(_pair(torch.mul), nn.Conv2d(5, 5, 1)), Apply(lambda x: x * x)],
        "leaky_relu": [nn.LeakyReLU(0.3)],
        "curves": [nn.PReLU(5), nn.Hardswish()],
        "global_avg_pool": [nn.AdaptiveAvgPool2d(1)],
        "mean": [Apply(lambda x: x.mean(1, keepdim=True))],
        "matmul": [Apply(lambda x, other: x @ other(x).transpose(2, 3), nn.Conv2d(5, 5, 1))],
        "avg_pool": [nn.AvgPool2d(2, 1)],
    }
    return [net for kind, nets in made.items() if kind not in LACKING.get(name, ()) for net in nets]


def _pair(op: Any) -> Any:
    return lambda x, other: op(x, other(x))


def calibrated(target: Any, net: nn.Module, *inputs: Tensor) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return qfunc.calibrate([inputs], progress=False)(qfunc.quantize(target)(net.eval()))


def require_runtime(target: Any) -> None:
    missing = getattr(target.runtime.runner, "missing", lambda: "")()
    if missing:
        pytest.skip(missing)


@pytest.mark.parametrize("name", RUNTIMES)
def test_they_are_the_runtime_s(name: str) -> None:
    target, elements = RUNTIMES[name], 0
    require_runtime(target)
    seeds = [random.randrange(10**6) for _ in range(EXAMPLES)] or [0]
    for seed in seeds:
        x = 2 * torch.rand(SHAPE, generator=torch.Generator().manual_seed(seed)) - 1
        net = Side([*products(seed), *([] if name in FLOAT else others(name, seed))])
        model = calibrated(target, net, x)
        for moved in (beside_ties(model, x, 2 * seed), beside_ties(model, x, 2 * seed + 1), beside_powers(model, seed)):
            report = qfunc.verify(target)(moved, [x])
            assert report.agreement.startswith("bit-exact"), (seed, report.verdict)
            elements += report.elements
    print(f"\n{name}: {elements:,} elements, 0 differ")


def test_reference_linear_layers_round_the_exact_value() -> None:
    """Float64 is exact enough for each sum here, which 31 bits are not."""
    net, far = LargeSums("linear", 13, 3), 0
    x = net.example()
    model = beside_ties(calibrated(targets.litert_reference, net, x), x)
    seats = {s.module.site.slot: s.module for s in quantizer_nodes(model)}
    weight, bias = (seats[slot].export(getattr(model.layer, slot))[0].long() for slot in ("weight", "bias"))
    s_x, s_y = (seats[slot].qparams() for slot in ("input", "output"))
    zero, z_y = int(s_x.zero_point), int(s_y.zero_point)
    scales = seats["weight"].scales().flatten().tolist()
    ratios = [Fraction(float(s_x.scale)) * Fraction(s) / Fraction(float(s_y.scale)) for s in scales]
    codes = torch.floor(x.double() / s_x.scale.double() + 0.5).long().clamp(-128 - zero, 127 - zero)
    found = torch.round(qfunc.emulate(targets.litert_reference)(model)(x).double() / s_y.scale.double()).long() + z_y
    for row, code in zip((codes @ weight.T + bias).tolist(), found.tolist(), strict=True):
        for acc, ratio, y in zip(row, ratios, code, strict=True):
            real = acc * ratio
            nearest = int(abs(real) + Fraction(1, 2)) * (1 if real > 0 else -1)
            assert y == min(max(nearest + z_y, -128), 127)
            far += abs(abs(real) % 1 - Fraction(1, 2)) < Fraction(1, 2**24)
    assert far >= 8  # nearly each channel has a sum so near to a tie


def test_products_of_16_bits_keep_every_bit() -> None:
    """2^30 and more, of which float32 has 24 bits: next to ties, their last bits decide."""
    target, x = targets.cmsis_nn_16x8, 2 * torch.rand(SHAPE, generator=torch.Generator().manual_seed(2)) - 1
    large = 0
    for seed in range(4):
        model = beside_ties(calibrated(target, Apply(lambda x: x * x), x), x, seed)
        seats = {s.module.site.slot: s.module.qparams() for s in quantizer_nodes(model)}
        s_x, s_y = float(seats["input"].scale), float(seats["output"].scale)
        mantissa, exponent = math.frexp(s_x * s_x / s_y)
        codes = torch.round(x.double() / s_x).long().clamp(-32768, 32767).flatten().tolist()
        found = torch.round(qfunc.emulate(target)(model)(x).double() / s_y).long().flatten().tolist()
        for code, y in zip(codes, found, strict=True):
            high = (code * code * round(mantissa * 2**31) + 2**30) >> 31
            assert y == min((high + 2 ** (-exponent - 1)) >> -exponent, 32767)
            large += code * code >= 2**24
    assert large > 1000


class Product(nn.Module):
    """A product of two matrices."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """[..., n, k], [..., k, m] -> [..., n, m]."""
        return x @ y


def test_the_layers_with_large_sums() -> None:
    found = [str(net) for net, _ in large_sums(targets.tosa)]
    of_linear = [f"LargeSums('linear', {n}, seed={i})" for i, n in enumerate((1, 3, 13, 17))]
    assert found[:5] == [*of_linear, "LargeSums('conv', 1, seed=0)"]
    assert len(found) == 14
    assert large_sums(targets.ncnn, ("conv_transpose",)) == []  # in float


WRONG = {
    "linear": (FixedPoint("half_away"), []), "mul": (FixedPoint(), OnePair("mul")), "matmul": (FixedPoint(), Product()),
}  # fmt: skip


@pytest.mark.parametrize("op", WRONG)
def test_check_target_finds_multipliers_of_other_types(op: str) -> None:
    """31 bits in place of float64, and float64 in place of float32."""
    target, (arithmetic, net) = targets.litert_reference, WRONG[op]
    require_runtime(target)
    planted = evolve(target, kernels=(Kernel(Op(op), arithmetic, formats=BYTES), *target.kernels))
    generators = [torch.Generator().manual_seed(seed) for seed in range(6)]
    drawn = [(net, tuple(torch.randn(2, 3, 9, 9, generator=g) for _ in range(2))) for g in generators if net]
    with pytest.raises(AssertionError, match=r"law 'emulation_matches_the_runtime': emulation and runtime disagree"):
        check_target(planted, models=drawn or large_sums(planted, ("linear",)))
