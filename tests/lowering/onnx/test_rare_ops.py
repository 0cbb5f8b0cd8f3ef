"""Ops that networks seldom have: ONNX Runtime against torch, on values at the ends of what each does otherwise."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.errors import DeployError

INF, NAN = math.inf, math.nan
WIDE = (0.0, 1.0, -1.0, 0.5, -0.5, 2.5, -2.5, 7.0, -7.0, 1e-30, -1e-30, 1e30, -1e30)
ENDS = (*WIDE, INF, -INF, NAN)
TIES = (*(k / 8 for k in range(-40, 41)), 125.0, -135.0, 145.0)
IMAGES = (3, 2, 6, 5)


def drawn(*shape: int) -> Tensor:
    """Normal values, the same in every run."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def pairs(values: tuple[float, ...]) -> tuple[Tensor, Tensor]:
    """Each with each, as two tensors of one shape."""
    grid = torch.cartesian_prod(torch.tensor(values), torch.tensor(values))
    return grid[:, 0].reshape(-1, len(values)), grid[:, 1].reshape(-1, len(values))


Case = tuple[Callable[..., Any], tuple[Tensor, ...]]
CASES: dict[str, Case] = {
    "sums and products of booleans": (lambda x: ((x > 0).sum(-1), (x > 0).sum(), (x > -2).prod(1)), (drawn(5, 6),)),
    "sums and products of int32": (
        lambda x: ((x * 3).to(torch.int32).sum(1), (x * 3).to(torch.int32).prod(-1)), (drawn(5, 6),)),
    "extremes of booleans": (lambda x: ((x > 0).amax(1), (x > 0).amin(-1), (x > 0).max(1)[0]), (drawn(5, 6),)),
    "max_pool, a window behind the image": (
        lambda x: F.max_pool2d(x, 2, 2, 1, ceil_mode=True).unsqueeze(1).expand(-1, 2, -1, -1, -1), (drawn(*IMAGES),)),
    "max_pool, dilated, a window behind the image": (
        lambda x: F.max_pool2d(x, 2, 3, 1, 2, ceil_mode=True).unsqueeze(1).expand(-1, 2, -1, -1, -1), (drawn(1, 2, 5, 8),)),
    "add, alpha": (lambda x, y: torch.add(x, y, alpha=-1.5), pairs(ENDS)),
    "sub, alpha": (lambda x, y: x.sub(y, alpha=2), pairs(ENDS)),
    "rsub, alpha": (lambda x, y: torch.rsub(x, y, alpha=3), pairs(ENDS)),
    "add, alpha, a number": (lambda x: torch.add(x, 3, alpha=2), (torch.tensor([ENDS]),)),
    "add, alpha, integers": (lambda x: torch.add(x.long(), 3, alpha=2), (torch.tensor([TIES]),)),
    "div, trunc": (lambda x, y: torch.div(x, y, rounding_mode="trunc"), pairs(ENDS)),
    "div, trunc, a number": (lambda x: x.div(-0.75, rounding_mode="trunc"), (torch.tensor([TIES]),)),
    "div, trunc, integers": (lambda x: torch.div(x.long(), -3, rounding_mode="trunc"), (torch.tensor([TIES]),)),
    "clamp": (lambda x, y: torch.clamp(x, y, y.abs()), pairs(ENDS)),
    "clamp, ends that cross": (lambda x, y: torch.clamp(x, y.abs(), -y.abs()), pairs(ENDS)),
    "clamp, one end": (lambda x, y: (x.clamp(min=y), x.clamp(max=y)), pairs(ENDS)),
    "clamp_max": (lambda x, y: x.clamp_max(y), pairs(ENDS)),
    "round, 0": (lambda x: x.round(decimals=0), (torch.tensor([TIES]),)),
    "round, 1": (lambda x: torch.round(x, decimals=1), (torch.tensor([TIES + ENDS]),)),
    "round, -1": (lambda x: torch.round(x, decimals=-1), (torch.tensor([(*TIES, INF, NAN)]),)),
    "nan_to_num": (lambda x: torch.nan_to_num(x), (torch.tensor([ENDS]),)),
    "nan_to_num, each": (lambda x: torch.nan_to_num(x, 2.0, posinf=INF, neginf=-5.0), (torch.tensor([ENDS]),)),
    "logaddexp": (torch.logaddexp, pairs(ENDS)),
    "hypot": (torch.hypot, pairs((*WIDE, INF, -INF))),
    "atan2": (torch.atan2, pairs((*WIDE, NAN))),
    "xlogy": (torch.xlogy, pairs(ENDS)),
    "xlogy, a number": (lambda x: torch.xlogy(x, 2.0), (torch.tensor([ENDS]),)),
    "var_mean": (lambda x: torch.var_mean(x, dim=(1, 3)), (drawn(*IMAGES),)),
    "var_mean, kept": (lambda x: torch.var_mean(x, (1, 2, 3), correction=0, keepdim=True), (drawn(*IMAGES),)),
    "std_mean": (lambda x: torch.std_mean(x, -1, unbiased=False, keepdim=True), (drawn(*IMAGES),)),
    "celu": (lambda x: (F.celu(x), F.celu(x, 0.3), F.celu(x, 7)), (torch.tensor([ENDS]),)),
    "unfold": (lambda x: F.unfold(x, (2, 3), dilation=2, padding=1, stride=(1, 2)), (drawn(*IMAGES),)),
    "unfold, a module": (nn.Unfold(3), (drawn(*IMAGES),)),
    "fold": (lambda x: F.fold(F.unfold(x, 2, stride=2), (6, 5), 2, stride=2), (drawn(*IMAGES),)),
    "fold, overlapping": (lambda x: F.fold(x, (5, 7), (2, 3), 2, 1, (1, 2)), (drawn(3, 12, 15),)),
    "fold, a module": (nn.Fold((4, 4), 2, padding=1), (drawn(3, 8, 25),)),
    "windows": (lambda x: x.unfold(2, 3, 1), (drawn(*IMAGES),)),
    "windows, twice": (lambda x: x.unfold(2, 3, 2).unfold(-2, 2, 3), (drawn(*IMAGES),)),
    "windows of truth values": (lambda x: (x > 0).unfold(1, 2, 1), (drawn(*IMAGES),)),
    "antialias": (lambda x: F.interpolate(x, (4, 3), mode="bilinear", antialias=True), (drawn(3, 2, 9, 7),)),
    "antialias, larger": (lambda x: F.interpolate(x, (7, 11), mode="bicubic", antialias=True, align_corners=False),
                          (drawn(*IMAGES),)),
    "antialias, corners": (lambda x: F.interpolate(x, (4, 3), None, "bilinear", True, None, True), (drawn(3, 2, 9, 7),)),
    "antialias, factors": (lambda x: F.interpolate(x, scale_factor=(0.6, 0.45), mode="bicubic", antialias=True),
                           (drawn(3, 2, 9, 7),)),
    "antialias, a factor": (lambda x: F.interpolate(x, scale_factor=0.6, mode="bilinear", antialias=True,
                                                    recompute_scale_factor=True), (drawn(3, 2, 9, 7),)),
    "lp_pool2d": (lambda x: F.lp_pool2d(x, 2, (2, 3)), (drawn(*IMAGES),)),
    "lp_pool2d, ceil": (lambda x: F.lp_pool2d(x, 2.0, 2, stride=2, ceil_mode=True), (drawn(3, 2, 7, 5),)),
    "lp_pool2d, odd": (lambda x: F.lp_pool2d(x.abs(), 3, 2), (drawn(*IMAGES),)),
    "lp_pool1d": (nn.LPPool1d(2, 3, 2), (drawn(3, 2, 9),)),
}  # fmt: skip
EXACT = ("div", "clamp", "round", "nan", "unfold", "windows")


class Both(nn.Module):
    """The op, and a layer that is quantized."""

    def __init__(self, op: Callable[..., Any]) -> None:
        super().__init__()
        self.op, self.layer = op, nn.Linear(2, 2)

    def forward(self, z: Tensor, *given: Tensor) -> Any:
        made = self.op(*given)
        return self.layer(z), *(made if isinstance(made, tuple) else (made,))


def net(op: Callable[..., Any], count: int) -> nn.Module:
    """A forward with that many inputs, by name."""

    class One(Both):
        def forward(self, z: Tensor, x: Tensor) -> Any:
            return super().forward(z, x)

    class Two(Both):
        def forward(self, z: Tensor, x: Tensor, y: Tensor) -> Any:
            return super().forward(z, x, y)

    return (One if count == 1 else Two)(op).eval()


ROADS = [(name, road) for name in CASES for road in ("fx", "export") if road == "fx" or not name.startswith("lp_pool")]


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "road"), ROADS)  # torch.export opens F.lp_pool2d
@pytest.mark.filterwarnings("ignore")  # torch.export warns of its own use of deprecated names
def test_the_runtime_computes_what_torch_does(name: str, road: str) -> None:
    op, given = CASES[name]
    model, z = net(op, len(given)), drawn(len(given[0]), 2)
    tame = tuple(v.nan_to_num(1.0, 3.0, -3.0) for v in given)
    quantized = qfunc.quantize(targets.onnxruntime, (z, *tame) if road == "export" else None)(model)
    done = qfunc.calibrate([(z, *tame)], progress=False)(quantized)
    artifact = qfunc.deploy(targets.onnxruntime)(done)
    runner: Any = targets.onnxruntime.runtime.runner
    for values in (given, tame):
        found, wanted = runner.run(artifact, [z, *values])[1:], model(z, *values)[1:]
        assert len(found) == len(wanted)
        for a, b in zip(found, wanted, strict=True):
            if name.startswith(EXACT):
                np.testing.assert_array_equal(a, b.detach().numpy())
            else:  # a few roundings to float32 in another order
                np.testing.assert_allclose(a, b.detach().numpy(), rtol=3e-6, atol=3e-7)


def test_unfold_needs_a_batch() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(2, 3, 1)

        def forward(self, x: Tensor) -> Tensor:
            return F.unfold(self.layer(x), 2)

    done = qfunc.calibrate([drawn(2, 5, 4)], progress=False)(qfunc.quantize(targets.onnxruntime)(Net()))
    with pytest.raises(DeployError) as caught:
        qfunc.deploy(targets.onnxruntime)(done)
    assert str(caught.value) == "op 'unfold': found rank 3, wanted rank 4. Add a batch axis."


@pytest.mark.parametrize("op", [lambda x: F.unfold(x, 2), lambda x: x.unfold(2, 3, 1)], ids=["im2col", "windows"])
def test_the_runtime_moves_no_codes_where_float_is_predicted(op: Callable[..., Any]) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(2, 3, 1)

        def forward(self, x: Tensor) -> Any:
            return op(self.layer(x)) * 2

    done = qfunc.calibrate([drawn(*IMAGES)], progress=False)(qfunc.quantize(targets.onnxruntime)(Net()))
    assert not qfunc.verify(targets.onnxruntime)(done, [drawn(*IMAGES)]).disagreements
