"""Ops that the channels-last formats compose of several operators: the runtime's values against those of PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.errors import EmulationError
from qfunc.graph.sites import quantizer_nodes
from qfunc.specs import Target
from tests.lowering.test_rare_forms import calibrated, runner_of

NHWC = (targets.litert, targets.litert_reference, targets.executorch_xnnpack)
MASK = torch.arange(30).reshape(6, 5) % 4 == 1
WEIGHT, BIAS = torch.linspace(-1, 2, 8), torch.linspace(1, -1, 8)
IN_FLOAT: dict[str, Callable[[Tensor], Tensor]] = {
    "group norm": lambda y: F.group_norm(y, 2, WEIGHT, BIAS, 1e-3),
    "instance norm": lambda y: F.instance_norm(y, weight=WEIGHT, bias=BIAS),
    "response norm": lambda y: F.local_response_norm(y, 3, 0.5, 0.75, 1.5),
    "selu": F.selu, "softplus": F.softplus, "mish": F.mish, "softsign": F.softsign,
    "softshrink": lambda y: F.softshrink(y, 0.3), "hardshrink": lambda y: F.hardshrink(y, 0.3), "erf": torch.erf,
    "reciprocal": lambda y: torch.reciprocal(torch.exp(y)), "power": lambda y: torch.exp(y) ** -0.5, "cube": lambda y: y**3,
    "real power": lambda y: torch.exp(y) ** 1.3, "log": lambda y: torch.log(torch.exp(y)),
    "maximum of an image": lambda y: F.adaptive_max_pool2d(y, 1), "amax": lambda y: y.amax(1), "amin": lambda y: y.amin((2, 3)),
    "length": lambda y: torch.linalg.vector_norm(y, 2, 1), "distance": lambda y: torch.linalg.vector_norm(y, 1, 3, True),
    "logsumexp": lambda y: y.logsumexp(2), "sum": lambda y: y.sum((1, 2)), "std": lambda y: y.std(1),
    "log_softmax": lambda y: torch.log_softmax(torch.exp(y) ** 3.0, 1),
}  # fmt: skip
MOVES: dict[str, Callable[[Tensor], Tensor]] = {
    "roll": lambda y: torch.roll(y, (1, 2), (2, 3)), "repeat": lambda y: y.repeat(1, 2, 1, 3),
    "pixel_shuffle": lambda y: F.pixel_shuffle(y, 2), "replicate": lambda y: F.pad(y, (2, 1, 0, 1), "replicate"),
    "circular": lambda y: F.pad(y, (2, 1, 1, 3), "circular"), "reflect": lambda y: F.pad(y, (2, 1, 3, 0), "reflect"),
    "index": lambda y: y[:, [0, 0, 5, 6]], "index of rows": lambda y: y[:, :, [3, 1]],
    "masked_fill": lambda y: y.masked_fill(MASK, -3.0), "where": lambda y: torch.where(MASK, y, y.square()),
    "nearest, size": lambda y: F.interpolate(y, (9, 7)), "nearest, factor": lambda y: F.interpolate(y, scale_factor=1.5),
    "nearest-exact": lambda y: F.interpolate(y, (8, 7), mode="nearest-exact"),
}  # fmt: skip
CALLS = IN_FLOAT | MOVES


class Beside(nn.Module):
    """A convolution, and functions of its output."""

    def __init__(self, calls: dict[str, Callable[[Tensor], Tensor]]) -> None:
        super().__init__()
        self.conv, self.calls = nn.Conv2d(3, 8, 1), calls

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return the convolution's output, then the functions' values."""
        y = self.conv(x)
        return (y, *(call(y) for call in self.calls.values()))


ON_CODES = {name: MOVES[name] for name in ("replicate", "circular", "reflect", "nearest, size", "nearest, factor")}


@pytest.mark.parametrize("target", [*NHWC, targets.tosa], ids=lambda t: t.name)
def test_composed_ops_are_those_of_torch(target: Target) -> None:
    runner, calls = runner_of(target), ON_CODES if target is targets.tosa else CALLS
    torch.manual_seed(0)
    model, batches = calibrated(Beside(calls), target, 3, 6, 5)
    artifact = qfunc.deploy(target)(model)
    for batch in batches:
        y, *found = (torch.as_tensor(v) for v in runner.run(artifact, [batch]))
        for (name, call), value in zip(calls.items(), found, strict=True):
            wanted = call(y)
            # A function has about ten float32 roundings, each of a number below the largest result or the input.
            error = float((value - wanted).abs().max()) / max(1.0, float(wanted.abs().max()))
            assert value.shape == wanted.shape, name
            assert error <= (0.0 if name in MOVES and name != "where" else 3e-6), (name, error)


POOLS = {
    "border": nn.AvgPool2d(3, 2, 1, count_include_pad=False), "ceil": nn.AvgPool2d(3, 2, 1, ceil_mode=True),
    "ceil, inside": nn.AvgPool2d(2, 2, ceil_mode=True, count_include_pad=False),
    "depthwise": nn.ConvTranspose2d(8, 8, 4, 2, 1, groups=8), "grouped": nn.ConvTranspose2d(8, 6, 3, groups=2),
    "elu": nn.ELU(0.7), "one axis": nn.AdaptiveAvgPool2d((None, 4)),
}  # fmt: skip


class Pools(nn.Module):
    """Pools and transposed convolutions, side by side."""

    def __init__(self, without: str = "") -> None:
        super().__init__()
        self.conv, self.parts = nn.Conv2d(3, 8, 1), nn.ModuleList(part for name, part in POOLS.items() if name != without)

    def forward(self, x: Tensor) -> list[Tensor]:
        """Return each value."""
        y = self.conv(x)
        return [part(y) for part in self.parts]


class Attention(nn.Module):
    """Causal attention."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        """Return the attended values."""
        q, k, v = self.qkv(x).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


@pytest.mark.parametrize("target", [*NHWC, targets.litert_optimised], ids=lambda t: t.name)
def test_pools_with_borders_and_grouped_transposed_convolutions_are_exact(target: Target) -> None:
    runner_of(target)
    without = "ceil" if target is targets.executorch_xnnpack else ""
    report = qfunc.verify(target)(*calibrated(Pools(without), target, 3, 7, 8))
    assert report.agreement.startswith("bit-exact"), report
    assert {name for name, _ in report.float_units} <= {"parts.5"}  # ELU of LiteRT


@pytest.mark.parametrize("target", NHWC, ids=lambda t: t.name)
def test_a_causal_mask_is_infinite_and_its_softmax_is_in_float(target: Target) -> None:
    runner = runner_of(target)
    model, batches = calibrated(Attention(), target, 5, 8)
    report = qfunc.verify(target)(model, batches)
    assert report.agreement.startswith("bit-exact"), report
    artifact = qfunc.deploy(target)(model)
    later = batches[0].clone()
    later[:, 3:] = 7.0  # the first rows read no later tokens
    first, second = (torch.as_tensor(runner.run(artifact, [b])[0]) for b in (batches[0], later))
    assert torch.equal(first[:, :3], second[:, :3])
    assert not math.isnan(float(first.sum()))


@pytest.mark.parametrize("pool", [nn.AvgPool2d((2, 3)), nn.AdaptiveAvgPool2d((2, 3)), nn.AdaptiveAvgPool2d((None, 3))], ids=str)
@pytest.mark.parametrize("target", NHWC, ids=lambda t: t.name)
def test_a_pool_of_an_image_without_a_batch_is_refused(target: Target, pool: nn.Module) -> None:
    model, batches = calibrated(pool, target, 4, 9)
    with pytest.raises(EmulationError) as caught:
        qfunc.emulate(target)(model)(batches[0])
    kernel = (1, 3) if getattr(pool, "output_size", ())[:1] == (None,) else (2, 3)
    assert str(caught.value) == (
        f"emulate, a pool by {kernel}: found a tensor of rank 3, wanted a batch of images, of rank 4. "
        "Use x.unsqueeze(1) before it."
    )


@pytest.mark.parametrize("target", [*NHWC, targets.tosa], ids=lambda t: t.name)
@pytest.mark.parametrize(("zero", "low", "high"), [(3, -0.125, 0.8), (4, -0.125, 0.875), (-5, -0.375, 0.625)])
def test_a_bound_between_two_codes_is_rounded_as_the_kernel_rounds_it(
    target: Target, zero: int, low: float, high: float
) -> None:
    runner = runner_of(target)
    model, _ = calibrated(nn.Hardtanh(low, high), target, 1, 16, 16)
    for seat in quantizer_nodes(model):
        seat.module.scale.fill_(0.25)
        seat.module.zero_point.fill_(zero)
    x = (torch.arange(-128.0, 128.0) - zero).reshape(1, 1, 16, 16) * 0.25
    (found,) = runner.run(qfunc.deploy(target)(model), [x])
    assert torch.equal(torch.as_tensor(found), qfunc.emulate(target)(model)(x))
