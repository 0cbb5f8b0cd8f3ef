"""Every op with a weight, beside every norm that folds, against the float model in float64.

Folding rounds w' and b' once each: relative error u = 2^-24 in float32.  Run in float64, the folded model and the
model then differ by at most u * (sum |w'||x| + |b'|) an output, plus what float64 itself rounds, some 1e-16 a term
of the sums before and after folding; 1e-3 of u covers those.  w' and b' are this file's own.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qfunc.frontend.capture import capture
from qfunc.graph.record import record_of
from qfunc.ops.node import kind_of
from qfunc.passes.fold_batch_norm import fold_batch_norms
from tests.passes.user_norms import CalledNorm, FrozenBatchNorm2d, TorchCalledNorm, WrittenOut

U = 2.0**-24
IN, OUT = 4, 6
SIZES = {0: (), 1: (7,), 2: (7, 6), 3: (4, 5, 3)}
KERNELS = {1: (3,), 2: (3, 5), 3: (2, 3, 1)}
CONVS: dict[tuple[str, int], Any] = {
    ("conv", 1): nn.Conv1d, ("conv", 2): nn.Conv2d, ("conv", 3): nn.Conv3d, ("conv_transpose", 1): nn.ConvTranspose1d,
    ("conv_transpose", 2): nn.ConvTranspose2d, ("conv_transpose", 3): nn.ConvTranspose3d,
}  # fmt: skip
BATCH_NORMS: dict[int, Any] = {0: nn.BatchNorm1d, 1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
NORMS: dict[str, Callable[[int, int], nn.Module]] = {
    "BatchNorm": lambda c, n: BATCH_NORMS[n](c),
    "BatchNorm, not affine": lambda c, n: BATCH_NORMS[n](c, affine=False, eps=0.25),
    "SyncBatchNorm": lambda c, n: nn.SyncBatchNorm(c),
    "frozen, arithmetic": lambda c, n: FrozenBatchNorm2d(c, rank=n + 2),
    "frozen, F.batch_norm": lambda c, n: CalledNorm(c, eps=1e-3),
    "frozen, torch.batch_norm": lambda c, n: TorchCalledNorm(c, eps=1e-3),
    "written out": lambda c, n: WrittenOut(c, rank=n + 2),
}
OPS = [(kind, n, groups, bias) for (kind, n), groups, bias in itertools.product(CONVS, (1, 2, IN), (True, False))]
OPS += [("linear", 0, 1, True), ("linear", 0, 1, False)]


def op_of(kind: str, n: int, groups: int, bias: bool, **more: Any) -> Any:
    if kind == "linear":
        return nn.Linear(IN, OUT, bias=bias)
    outputs = 2 * groups if groups == IN else OUT  # depthwise with a multiplier
    return CONVS[kind, n](IN, outputs, KERNELS[n], groups=groups, bias=bias, **more)


def outputs_of(op: Any) -> int:
    return int(getattr(op, "out_channels", 0) or op.out_features)


def settled(norm: Any) -> Any:
    """Statistics as training leaves them; a gamma of 0, negative ones, a variance far below eps, a huge one."""
    g = torch.Generator().manual_seed(3)
    count = norm.running_mean.numel()
    norm.running_mean.copy_(torch.randn(count, generator=g))
    norm.running_var.copy_(torch.rand(count, generator=g) + 0.1)
    norm.running_var[:2] = torch.tensor([1e-12, 1e4])
    if norm.weight is not None:
        norm.weight.data.copy_(torch.randn(count, generator=g))
        norm.weight.data[2] = 0.0
        norm.bias.data.copy_(torch.randn(count, generator=g))
    return norm


def affine(norm: Any) -> tuple[Tensor, Tensor]:
    one, zero = torch.ones_like(norm.running_mean), torch.zeros_like(norm.running_mean)
    gamma, beta = (one, zero) if norm.weight is None else (norm.weight, norm.bias)
    factor = gamma.double() / (norm.running_var.double() + norm.eps).sqrt()
    return factor.detach(), (beta.double() - norm.running_mean.double() * factor).detach()


def run(op: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if isinstance(op, nn.Linear):
        return F.linear(x, weight, bias)
    n = weight.ndim - 2
    if op.transposed:
        return getattr(F, f"conv_transpose{n}d")(
            x, weight, bias, op.stride, op.padding, op.output_padding, op.groups, op.dilation
        )
    return getattr(F, f"conv{n}d")(x, weight, bias, op.stride, op.padding, op.dilation, op.groups)


def spread(op: Any, numbers: Tensor, inputs: bool) -> Tensor:
    """One number a channel as a tensor that multiplies the weight as torch stores it, loop by loop."""
    weight = op.weight
    made = torch.zeros_like(weight, dtype=torch.float64)
    groups, transposed = getattr(op, "groups", 1), getattr(op, "transposed", False)
    for a, b in itertools.product(range(weight.shape[0]), range(weight.shape[1])):
        group = a // (weight.shape[0] // groups)
        across = group * weight.shape[1] + b  # the channel that the second axis means
        made[a, b] = numbers[a if transposed == inputs else across]
    return made


def bound_behind(op: Any, norm: Any, x: Tensor) -> Tensor:
    factor, shift = affine(norm)
    weight = op.weight.detach().double() * spread(op, factor, inputs=False)
    bias = shift if op.bias is None else shift + op.bias.detach().double() * factor
    return run(op, x.abs(), weight.abs(), bias.abs())


def close(folded: Any, model: nn.Module, x: Tensor, bound: Tensor) -> bool:
    with torch.no_grad():
        found, wanted = copy.deepcopy(folded).double()(x), copy.deepcopy(model).double()(x)
    assert found.shape == wanted.shape
    return bool(((found - wanted).abs() <= 1.001 * U * bound).all())


def calls(folded: Any) -> list[str]:
    return [kind_of(n) for n in folded.graph.nodes if n.op.startswith("call")]


def sample(n: int, channels: int = IN) -> Tensor:
    return torch.randn((3, channels, *SIZES[n]), generator=torch.Generator().manual_seed(n), dtype=torch.float64)


class Branches(nn.Module):
    """Many small models side by side; each reads the input of its own rank."""

    def __init__(self, parts: list[nn.Module], ranks: list[int]) -> None:
        super().__init__()
        self.parts, self.ranks = nn.ModuleList(parts), tuple(ranks)

    def forward(self, a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> tuple[Tensor, ...]:
        return tuple(part((a, b, c, d)[rank]) for part, rank in zip(self.parts, self.ranks, strict=True))


def check_side_by_side(made: list[tuple[str, int, Any, nn.Module]], bound: Callable[[Any, Any, Tensor], Tensor]) -> None:
    """Folds (kind, rank, op, norm and op in order) side by side in one model; nothing but the ops is left."""
    inputs = [sample(n) for n in range(4)]
    model = Branches([part for *_, part in made], [n for _, n, _, _ in made]).eval()
    folded = fold_batch_norms(capture()(model))
    assert calls(folded) == [kind for kind, *_ in made]
    assert all(p.dtype == torch.float32 for p in folded.parameters())
    record = record_of(folded)
    assert record is not None
    assert record.unfolded == ()
    with torch.no_grad():
        found, wanted = copy.deepcopy(folded).double()(*inputs), copy.deepcopy(model).double()(*inputs)
    for y, z, (_, n, op, part) in zip(found, wanted, made, strict=True):
        norm = next(m for m in part if m is not op)
        assert y.shape == z.shape
        assert ((y - z).abs() <= 1.001 * U * bound(op, norm, inputs[n])).all(), part


@pytest.mark.parametrize("norm_name", NORMS)
def test_a_norm_behind_an_op(norm_name: str) -> None:
    torch.manual_seed(1)
    made: list[tuple[str, int, Any, nn.Module]] = []
    for kind, n, groups, bias in OPS:
        more = {"linear": {}, "conv": {"stride": 2, "padding": 1}, "conv_transpose": {"stride": 2, "padding": 1, "dilation": 2}}
        op = op_of(kind, n, groups, bias, **more[kind])
        made.append((kind, n, op, nn.Sequential(op, settled(NORMS[norm_name](outputs_of(op), n)))))
    check_side_by_side(made, bound_behind)


def bound_before(op: Any, norm: Any, x: Tensor) -> Tensor:
    factor, shift = affine(norm)
    double = op.weight.detach().double()
    weight = double * spread(op, factor, inputs=True)
    # What the constant shift adds to every output: the op's value on it, without its bias.
    constant = run(op, shift.reshape(1, -1, *[1] * (x.ndim - 2)).expand_as(x), double, None)
    bias = constant if op.bias is None else constant + op.bias.detach().double().reshape(-1, *[1] * (x.ndim - 2))
    return run(op, x.abs(), weight.abs(), None) + bias.abs()


@pytest.mark.parametrize("norm_name", ["BatchNorm", "BatchNorm, not affine", "SyncBatchNorm", "frozen, F.batch_norm"])
def test_a_norm_before_an_op(norm_name: str) -> None:
    torch.manual_seed(2)
    made: list[tuple[str, int, Any, nn.Module]] = []
    for kind, n, groups, bias in OPS:
        if kind != "conv_transpose":
            op = op_of(kind, n, groups, bias, **({} if kind == "linear" else {"stride": 2}))
            made.append((kind, n, op, nn.Sequential(settled(NORMS[norm_name](IN, n)), op)))
    check_side_by_side(made, bound_before)


@pytest.mark.parametrize(("kind", "padding"), [("conv", 1), ("conv", "same"), ("conv_transpose", 0), ("conv_transpose", 1)])
def test_a_norm_that_only_scales_folds_before_any_op(kind: str, padding: Any) -> None:
    # 0 stays 0, so that padding is what it was; a shift would reach the inner outputs alone.
    for groups in (1, 2, IN):
        op = op_of(kind, 2, groups, True, padding=padding)
        norm = settled(nn.BatchNorm2d(IN))
        norm.bias.data.zero_()
        norm.running_mean.zero_()
        model = nn.Sequential(norm, op).eval()
        folded = fold_batch_norms(capture()(model))
        assert calls(folded) == [kind]
        assert close(folded, model, sample(2), bound_before(op, norm, sample(2)))


@pytest.mark.parametrize(("kind", "padding"), [("conv", (0, 1)), ("conv", "same"), ("conv_transpose", 0)])
def test_a_norm_that_shifts_does_not_fold_before_padding(kind: str, padding: Any) -> None:
    model = nn.Sequential(settled(nn.BatchNorm2d(IN)), op_of(kind, 2, 2, True, padding=padding)).eval()
    folded = fold_batch_norms(capture()(model))
    assert calls(folded) == ["conv", kind]
    record = record_of(folded)
    assert record is not None
    assert record.unfolded == (("1", "0", "the op reads padding, which the norm before it does not shift"),)


def test_both_sides_fold_the_norm_behind_first() -> None:
    model = nn.Sequential(*(settled(nn.BatchNorm2d(c)) for c in (4, 4)), nn.Conv2d(4, 6, 2), settled(nn.BatchNorm2d(6)))
    folded = fold_batch_norms(capture()(model.eval()))
    assert calls(folded) == ["conv"]
    # Two roundings of w' and b', one a fold; the magnitudes are those of absolute values all along.
    x, (first, second, op, last) = sample(2), model
    bound = x.abs()
    for norm in (first, second):
        factor, shift = affine(norm)
        bound = bound * factor.abs().reshape(-1, 1, 1) + shift.abs().reshape(-1, 1, 1)
    factor, shift = affine(last)
    bound = F.conv2d(bound, op.weight.double().abs(), op.bias.double().abs()) * factor.abs().reshape(-1, 1, 1)
    assert close(folded, model, x, 4 * (bound + shift.abs().reshape(-1, 1, 1)))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("norm_name", NORMS)
def test_the_export_road(norm_name: str) -> None:
    torch.manual_seed(1)
    for kind, groups in (("conv", 2), ("conv_transpose", 2), ("linear", 1)):
        n = 0 if kind == "linear" else 2
        op = op_of(kind, n, groups, False)
        norm = settled(NORMS[norm_name](outputs_of(op), n))
        model = nn.Sequential(op, norm).eval()
        if norm_name == "SyncBatchNorm":
            continue  # torch.export runs it, which needs a process group
        folded = fold_batch_norms(capture((sample(n).float(),))(model))
        assert calls(folded) == [kind]
        assert close(folded, model, sample(n), bound_behind(op, norm, sample(n)))
