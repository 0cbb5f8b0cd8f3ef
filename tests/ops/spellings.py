"""Every op of the vocabulary in every spelling: one module a group, one output a spelling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from attrs import frozen
from torch import Tensor, nn

Spelling = Callable[[Any, Tensor], Tensor]


class Spellings(nn.Module):
    """Returns the value of each spelling; `self` holds the weights and modules that they use."""

    def __init__(self, parts: dict[str, Any], spellings: tuple[Spelling, ...]) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.spellings = spellings

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(spelling(self, x) for spelling in self.spellings)


@frozen
class Group:
    """Spellings of one kind, and the input they are tried on."""

    kind: str
    shape: tuple[int, ...]
    spellings: tuple[Spelling, ...]
    parts: Callable[[], dict[str, Any]] = dict

    def model(self) -> Spellings:
        torch.manual_seed(5)
        return Spellings(self.parts(), self.spellings).eval()

    def input(self) -> Tensor:
        return torch.randn(self.shape, generator=torch.Generator().manual_seed(7))


def w(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape))


def copied(x: Tensor) -> Tensor:
    return x * 1.0


GROUPS: dict[str, Group] = {
    "conv1d": Group(
        "conv",
        (2, 4, 9),
        (
            lambda m, x: m.a(x),
            lambda m, x: m.b(x),
            lambda m, x: m.c(x),
            lambda m, x: F.conv1d(x, m.w, stride=2),
            lambda m, x: torch.conv1d(input=x, weight=m.w, padding=(1,)),
        ),
        lambda: {
            "a": nn.Conv1d(4, 6, 3),
            "b": nn.Conv1d(4, 6, 3, padding="same", bias=False),
            "c": nn.Conv1d(4, 4, 3, groups=2, dilation=2),
            "w": w(6, 4, 3),
        },
    ),
    "conv2d": Group(
        "conv",
        (2, 4, 9, 7),
        (
            lambda m, x: m.a(x),
            lambda m, x: m.b(x),
            lambda m, x: m.c(x),
            lambda m, x: m.d(x),
            lambda m, x: m.e(x),
            lambda m, x: m.f(x),
            lambda m, x: F.conv2d(x, m.w),
            lambda m, x: F.conv2d(x, m.w, m.v, 2, 1),
            lambda m, x: F.conv2d(input=x, weight=m.w, bias=m.v),
            lambda m, x: torch.conv2d(x, m.w, None, (1, 2), (1, 0), 1, 1),
            lambda m, x: F.conv2d(x, m.w, padding="valid"),
            lambda m, x: torch.conv2d(x, bias=m.v, weight=m.w, dilation=2),
            lambda m, x: F.conv2d(x, m.a.weight, m.a.bias),
        ),
        lambda: {
            "a": nn.Conv2d(4, 6, 3),
            "b": nn.Conv2d(4, 6, (3, 2), (2, 1), padding=(1, 0)),
            "c": nn.Conv2d(4, 8, 3, groups=4),
            "d": nn.Conv2d(4, 6, 3, padding="same"),
            "e": nn.Conv2d(4, 6, 3, padding="valid"),
            "f": nn.Conv2d(4, 6, 3, padding=2, padding_mode="reflect"),
            "w": w(6, 4, 3, 3),
            "v": w(6),
        },
    ),
    "conv3d": Group(
        "conv",
        (2, 2, 5, 5, 5),
        (
            lambda m, x: m.a(x),
            lambda m, x: F.conv3d(x, m.a.weight, m.a.bias, padding=1),
            lambda m, x: torch.conv3d(x, weight=m.a.weight),
        ),
        lambda: {"a": nn.Conv3d(2, 3, 3)},
    ),
    "conv_transpose1d": Group(
        "conv_transpose",
        (2, 4, 7),
        (
            lambda m, x: m.a(x),
            lambda m, x: F.conv_transpose1d(x, m.w),
            lambda m, x: torch.conv_transpose1d(x, m.w, stride=2),
        ),
        lambda: {"a": nn.ConvTranspose1d(4, 6, 3, 2, groups=2, output_padding=1), "w": w(4, 3, 3)},
    ),
    "conv_transpose2d": Group(
        "conv_transpose",
        (2, 4, 5, 5),
        (
            lambda m, x: m.a(x),
            lambda m, x: m.b(x),
            lambda m, x: F.conv_transpose2d(x, m.w, None, 2, 1, 1),
            lambda m, x: torch.conv_transpose2d(input=x, weight=m.w, dilation=2),
        ),
        lambda: {
            "a": nn.ConvTranspose2d(4, 6, 3, 2, 1, output_padding=1, groups=2),
            "b": nn.ConvTranspose2d(4, 6, 3, bias=False),
            "w": w(4, 3, 3, 3),
        },
    ),
    "conv_transpose3d": Group(
        "conv_transpose",
        (1, 2, 3, 3, 3),
        (
            lambda m, x: m.a(x),
            lambda m, x: F.conv_transpose3d(x, m.a.weight),
        ),
        lambda: {"a": nn.ConvTranspose3d(2, 2, 3, groups=2)},
    ),
    "linear": Group(
        "linear",
        (2, 5, 7),
        (
            lambda m, x: m.a(x),
            lambda m, x: m.b(x),
            lambda m, x: F.linear(x, m.a.weight),
            lambda m, x: F.linear(x, m.a.weight, m.a.bias),
            lambda m, x: F.linear(input=x, weight=m.a.weight, bias=None),
        ),
        lambda: {"a": nn.Linear(7, 3), "b": nn.Linear(7, 3, bias=False)},
    ),
    "matmul": Group(
        "matmul",
        (2, 5, 7),
        (
            lambda m, x: x @ m.w,
            lambda m, x: torch.matmul(x, m.w),
            lambda m, x: x.matmul(other=m.w),
            lambda m, x: torch.bmm(x, m.v),
            lambda m, x: x.bmm(m.v),
            lambda m, x: torch.matmul(x, x.transpose(1, 2)),
            lambda m, x: x[0].mm(m.w),
            lambda m, x: torch.mm(x[0], mat2=m.w),
            lambda m, x: m.u @ x,
        ),
        lambda: {"w": w(7, 3), "v": w(2, 7, 3), "u": w(4, 5)},
    ),
    "add": Group(
        "add",
        (2, 3),
        (
            lambda m, x: x + m.w,
            lambda m, x: m.w + x,
            lambda m, x: torch.add(x, m.w),
            lambda m, x: x.add(m.w),
            lambda m, x: x + 1,
            lambda m, x: 1 + x,
            lambda m, x: torch.add(input=x, other=2.5),
            lambda m, x: x.add(other=m.w),
            lambda m, x: copied(x).add_(m.w),
            lambda m, x: iadded(copied(x), m.w),
            lambda m, x: torch.add(x, m.w, alpha=1),
            lambda m, x: x.__add__(m.w),
        ),
        lambda: {"w": w(2, 3)},
    ),
    "sub": Group(
        "sub",
        (2, 3),
        (
            lambda m, x: x - m.w,
            lambda m, x: torch.sub(x, m.w),
            lambda m, x: x.sub(m.w),
            lambda m, x: x - 1,
            lambda m, x: copied(x).sub_(1),
            lambda m, x: torch.subtract(x, other=m.w),
            lambda m, x: isubbed(copied(x), m.w),
        ),
        lambda: {"w": w(2, 3)},
    ),
    "rsub": Group(
        "sub", (2, 3), (lambda m, x: 1 - x, lambda m, x: torch.rsub(x, 3), lambda m, x: m.w - x), lambda: {"w": w(2, 3)}
    ),
    "mul": Group(
        "mul",
        (2, 3),
        (
            lambda m, x: x * m.w,
            lambda m, x: torch.mul(x, m.w),
            lambda m, x: x.mul(m.w),
            lambda m, x: 2 * x,
            lambda m, x: copied(x).mul_(3),
            lambda m, x: torch.multiply(x, m.w),
            lambda m, x: imulled(copied(x), m.w),
            lambda m, x: x.multiply(other=2),
        ),
        lambda: {"w": w(2, 3)},
    ),
    "div": Group(
        "div",
        (2, 3),
        (
            lambda m, x: x / m.w,
            lambda m, x: torch.div(x, m.w),
            lambda m, x: x.div(2),
            lambda m, x: x / 3,
            lambda m, x: copied(x).div_(3),
            lambda m, x: torch.true_divide(x, m.w),
            lambda m, x: idivided(copied(x), m.w),
            lambda m, x: x.divide(other=2),
        ),
        lambda: {"w": w(2, 3)},
    ),
    "pow": Group(
        "pow",
        (2, 3),
        (
            lambda m, x: x**2,
            lambda m, x: torch.pow(x, 2),
            lambda m, x: x.pow(exponent=3),
            lambda m, x: copied(x).pow_(2),
        ),
    ),
    "concat": Group(
        "concat",
        (2, 3),
        (
            lambda m, x: torch.cat([x, x], 1),
            lambda m, x: torch.cat((x, m.w)),
            lambda m, x: torch.cat(tensors=[x, m.w], dim=-1),
            lambda m, x: torch.concat([x, x], dim=1),
            lambda m, x: torch.concatenate([x, x], axis=1),
            lambda m, x: torch.cat([x, x], axis=0),
        ),
        lambda: {"w": w(2, 3)},
    ),
    "stack": Group("stack", (2, 3), (lambda m, x: torch.stack([x, x], 1), lambda m, x: torch.stack(tensors=(x, x)))),
    "max_pool": Group(
        "max_pool",
        (2, 3, 9, 9),
        (
            lambda m, x: m.a(x),
            lambda m, x: F.max_pool2d(x, 2),
            lambda m, x: F.max_pool2d(x, kernel_size=(3, 2), stride=2, padding=1),
            lambda m, x: torch.max_pool2d(x, 3),
            lambda m, x: F.max_pool2d(x, 2, ceil_mode=True),
            lambda m, x: F.max_pool2d(x, 2, 1, 0, 2),
        ),
        lambda: {"a": nn.MaxPool2d(3, 2, 1)},
    ),
    "max_pool1d": Group(
        "max_pool",
        (2, 3, 9),
        (
            lambda m, x: m.a(x),
            lambda m, x: F.max_pool1d(x, 2),
            lambda m, x: torch.max_pool1d(x, 2, stride=1),
        ),
        lambda: {"a": nn.MaxPool1d(3, 2, 1)},
    ),
    "max_pool3d": Group(
        "max_pool", (2, 3, 5, 5, 5), (lambda m, x: m.a(x), lambda m, x: F.max_pool3d(x, 2)), lambda: {"a": nn.MaxPool3d(2)}
    ),
    "avg_pool": Group(
        "avg_pool",
        (2, 3, 9, 9),
        (
            lambda m, x: m.a(x),
            lambda m, x: F.avg_pool2d(x, 2),
            lambda m, x: F.avg_pool2d(x, kernel_size=(3, 2), stride=2, padding=1),
            lambda m, x: F.avg_pool2d(x, 2, ceil_mode=True),
            lambda m, x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
            lambda m, x: F.avg_pool2d(x, 2, divisor_override=3),
        ),
        lambda: {"a": nn.AvgPool2d(3, 2, 1)},
    ),
    "avg_pool1d": Group(
        "avg_pool", (2, 3, 9), (lambda m, x: m.a(x), lambda m, x: F.avg_pool1d(x, 2)), lambda: {"a": nn.AvgPool1d(3, 2)}
    ),
    "avg_pool3d": Group(
        "avg_pool", (2, 3, 5, 5, 5), (lambda m, x: m.a(x), lambda m, x: F.avg_pool3d(x, 2)), lambda: {"a": nn.AvgPool3d(2)}
    ),
    "global_avg_pool": Group(
        "global_avg_pool",
        (2, 3, 5, 7),
        (
            lambda m, x: m.a(x),
            lambda m, x: m.b(x),
            lambda m, x: F.adaptive_avg_pool2d(x, 1),
            lambda m, x: F.adaptive_avg_pool2d(x, (1, 1)),
            lambda m, x: x.mean((2, 3)),
            lambda m, x: x.mean([2, 3], keepdim=True),
            lambda m, x: x.mean(dim=(-2, -1)),
            lambda m, x: torch.mean(x, (3, 2), True),
            lambda m, x: torch.mean(x, dim=[-1, -2], keepdim=False),
            lambda m, x: x.mean([-1, -2], True),
        ),
        lambda: {"a": nn.AdaptiveAvgPool2d(1), "b": nn.AdaptiveAvgPool2d((1, 1))},
    ),
    "adaptive_avg_pool": Group(
        "adaptive_avg_pool",
        (2, 3, 9, 7),
        (
            lambda m, x: m.a(x),
            lambda m, x: F.adaptive_avg_pool2d(x, (3, 1)),
            lambda m, x: F.adaptive_avg_pool2d(x, output_size=2),
            lambda m, x: F.adaptive_avg_pool2d(x, (None, 1)),
        ),
        lambda: {"a": nn.AdaptiveAvgPool2d((3, 2))},
    ),
    "adaptive_avg_pool1d": Group(
        "adaptive_avg_pool",
        (2, 3, 9),
        (lambda m, x: m.a(x), lambda m, x: F.adaptive_avg_pool1d(x, 1)),
        lambda: {"a": nn.AdaptiveAvgPool1d(3)},
    ),
    "relu": Group(
        "relu",
        (2, 3),
        (
            lambda m, x: m.a(x),
            lambda m, x: m.b(copied(x)),
            lambda m, x: F.relu(x),
            lambda m, x: torch.relu(x),
            lambda m, x: x.relu(),
            lambda m, x: copied(x).relu_(),
            lambda m, x: F.relu(copied(x), True),
            lambda m, x: F.relu(copied(x), inplace=True),
            lambda m, x: F.relu(input=x),
            lambda m, x: F.relu_(copied(x)),
            lambda m, x: torch.relu_(copied(x)),
            lambda m, x: x.clamp(min=0),
            lambda m, x: x.clamp_min(0),
            lambda m, x: torch.clamp(x, 0),
            lambda m, x: x.clip(min=0.0),
        ),
        lambda: {"a": nn.ReLU(), "b": nn.ReLU(inplace=True)},
    ),
    "clip": Group(
        "clip",
        (2, 30),
        (
            lambda m, x: m.a(3 * x),
            lambda m, x: m.b(copied(x)),
            lambda m, x: m.c(x),
            lambda m, x: F.relu6(x * 9),
            lambda m, x: F.hardtanh(x, -2, 2),
            lambda m, x: F.hardtanh(copied(x), -2.0, 2.0, True),
            lambda m, x: x.clamp(-1, 1),
            lambda m, x: torch.clamp(x, min=-1.0, max=0.5),
            lambda m, x: x.clamp(max=0.5),
            lambda m, x: x.clamp_(0, 6),
            lambda m, x: torch.clip(x, -1, 1),
            lambda m, x: x.clamp_max(0.3),
            lambda m, x: F.hardtanh(x),
            lambda m, x: F.hardtanh_(copied(x), min_val=-0.5),
            lambda m, x: F.hardtanh(x, max_val=3.0),
        ),
        lambda: {"a": nn.ReLU6(), "b": nn.ReLU6(inplace=True), "c": nn.Hardtanh(-0.5, 0.5)},
    ),
    "leaky_relu": Group(
        "leaky_relu",
        (2, 30),
        (
            lambda m, x: m.a(x),
            lambda m, x: F.leaky_relu(x),
            lambda m, x: F.leaky_relu(x, 0.3),
            lambda m, x: F.leaky_relu(copied(x), 0.3, True),
            lambda m, x: F.leaky_relu(x, negative_slope=0.2),
            lambda m, x: F.leaky_relu_(copied(x), 0.2),
        ),
        lambda: {"a": nn.LeakyReLU(0.2, inplace=False)},
    ),
    "prelu": Group(
        "prelu",
        (2, 3, 4),
        (lambda m, x: m.a(x), lambda m, x: F.prelu(x, m.w), lambda m, x: torch.prelu(x, m.w), lambda m, x: x.prelu(m.w)),
        lambda: {"a": nn.PReLU(), "w": w(3)},
    ),
    "sigmoid": Group(
        "sigmoid",
        (2, 3),
        (
            lambda m, x: m.a(x),
            lambda m, x: torch.sigmoid(x),
            lambda m, x: x.sigmoid(),
            lambda m, x: F.sigmoid(x),
            lambda m, x: copied(x).sigmoid_(),
            lambda m, x: torch.sigmoid_(copied(x)),
        ),
        lambda: {"a": nn.Sigmoid()},
    ),
    "tanh": Group(
        "tanh",
        (2, 3),
        (
            lambda m, x: m.a(x),
            lambda m, x: torch.tanh(x),
            lambda m, x: x.tanh(),
            lambda m, x: F.tanh(x),
            lambda m, x: copied(x).tanh_(),
        ),
        lambda: {"a": nn.Tanh()},
    ),
    "gelu": Group(
        "gelu",
        (2, 3),
        (lambda m, x: m.a(x), lambda m, x: m.b(x), lambda m, x: F.gelu(x), lambda m, x: F.gelu(x, approximate="tanh")),
        lambda: {"a": nn.GELU(), "b": nn.GELU("tanh")},
    ),
    "silu": Group(
        "silu",
        (2, 3),
        (
            lambda m, x: m.a(x),
            lambda m, x: m.b(copied(x)),
            lambda m, x: F.silu(x),
            lambda m, x: F.silu(copied(x), inplace=True),
        ),
        lambda: {"a": nn.SiLU(), "b": nn.SiLU(inplace=True)},
    ),
    "hardswish": Group(
        "hardswish",
        (2, 30),
        (
            lambda m, x: m.a(x),
            lambda m, x: m.b(copied(x)),
            lambda m, x: F.hardswish(x),
            lambda m, x: F.hardswish(copied(x), True),
        ),
        lambda: {"a": nn.Hardswish(), "b": nn.Hardswish(inplace=True)},
    ),
    "hardsigmoid": Group(
        "hardsigmoid",
        (2, 30),
        (lambda m, x: m.a(x), lambda m, x: m.b(copied(x)), lambda m, x: F.hardsigmoid(x)),
        lambda: {"a": nn.Hardsigmoid(), "b": nn.Hardsigmoid(inplace=True)},
    ),
    "elu": Group(
        "elu",
        (2, 30),
        (
            lambda m, x: m.a(x),
            lambda m, x: F.elu(x),
            lambda m, x: F.elu(copied(x), 0.5, True),
            lambda m, x: F.elu(x, alpha=2.0),
            lambda m, x: F.elu_(copied(x)),
        ),
        lambda: {"a": nn.ELU(0.7)},
    ),
    "softplus": Group(
        "softplus",
        (2, 30),
        (lambda m, x: m.a(x), lambda m, x: F.softplus(x), lambda m, x: F.softplus(x, 2, threshold=1)),
        lambda: {"a": nn.Softplus(2.0, 10.0)},
    ),
    "mish": Group(
        "mish",
        (2, 30),
        (lambda m, x: m.a(x), lambda m, x: F.mish(x), lambda m, x: F.mish(copied(x), inplace=True)),
        lambda: {"a": nn.Mish()},
    ),
    "softmax": Group(
        "softmax",
        (2, 30),
        (
            lambda m, x: m.a(x),
            lambda m, x: F.softmax(x, 1),
            lambda m, x: F.softmax(x, dim=-1),
            lambda m, x: torch.softmax(x, 1),
            lambda m, x: x.softmax(-1),
            lambda m, x: x.softmax(dim=0),
        ),
        lambda: {"a": nn.Softmax(dim=1)},
    ),
    "log_softmax": Group(
        "log_softmax",
        (2, 30),
        (
            lambda m, x: m.a(x),
            lambda m, x: F.log_softmax(x, 1),
            lambda m, x: torch.log_softmax(x, dim=1),
            lambda m, x: x.log_softmax(1),
        ),
        lambda: {"a": nn.LogSoftmax(dim=1)},
    ),
    "layer_norm": Group(
        "layer_norm",
        (2, 3, 8),
        (
            lambda m, x: m.a(x),
            lambda m, x: m.b(x),
            lambda m, x: F.layer_norm(x, (8,)),
            lambda m, x: F.layer_norm(x, [3, 8], eps=0.1),
            lambda m, x: F.layer_norm(x, (8,), m.a.weight, bias=m.a.bias),
            lambda m, x: torch.layer_norm(x, (8,), m.a.weight),
        ),
        lambda: {"a": nn.LayerNorm(8), "b": nn.LayerNorm((3, 8), eps=1e-3, elementwise_affine=False)},
    ),
    "group_norm": Group(
        "group_norm",
        (2, 4, 5),
        (
            lambda m, x: m.a(x),
            lambda m, x: F.group_norm(x, 2),
            lambda m, x: F.group_norm(x, 2, m.a.weight, m.a.bias, 1e-3),
            lambda m, x: torch.group_norm(x, num_groups=4),
        ),
        lambda: {"a": nn.GroupNorm(2, 4)},
    ),
    "batch_norm": Group(
        "batch_norm",
        (2, 4, 5, 5),
        (lambda m, x: m.a(x), lambda m, x: m.b(x)),
        lambda: {"a": nn.BatchNorm2d(4), "b": nn.BatchNorm2d(4, affine=False, eps=0.1)},
    ),
    "batch_norm1d": Group(
        "batch_norm",
        (2, 4, 5),
        (lambda m, x: m.a(x), lambda m, x: m.b(x[:, :, 0])),
        lambda: {"a": nn.BatchNorm1d(4), "b": nn.BatchNorm1d(4)},
    ),
    "instance_norm": Group(
        "instance_norm",
        (2, 4, 5, 5),
        (lambda m, x: m.a(x), lambda m, x: m.b(x)),
        lambda: {"a": nn.InstanceNorm2d(4), "b": nn.InstanceNorm2d(4, affine=True, track_running_stats=True)},
    ),
    "embedding": Group(
        "embedding",
        (2, 4),
        (
            lambda m, x: m.a((x > 0).long()),
            lambda m, x: F.embedding((x > 0).long(), m.a.weight),
            lambda m, x: m.b((x > 0).long()),
            lambda m, x: m.a(m.positions),
        ),
        lambda: {
            "a": nn.Embedding(3, 4),
            "b": nn.Embedding(3, 4, padding_idx=0),
            "positions": nn.Buffer(torch.tensor([[2, 0, 1]])),
        },
    ),
    "sdpa": Group(
        "sdpa",
        (2, 2, 4, 8),
        (
            lambda m, x: F.scaled_dot_product_attention(x, x, x),
            lambda m, x: F.scaled_dot_product_attention(x, key=x, value=x, is_causal=True),
            lambda m, x: F.scaled_dot_product_attention(x, x, x, m.mask),
            lambda m, x: F.scaled_dot_product_attention(x, x, x, scale=0.5),
        ),
        lambda: {"mask": nn.Buffer(torch.ones(4, 4))},
    ),
    "reshape": Group(
        "reshape",
        (2, 4, 6),
        (
            lambda m, x: x.view(2, -1),
            lambda m, x: x.reshape((2, 24)),
            lambda m, x: torch.reshape(x, (-1, 6)),
            lambda m, x: x.view(x.size(0), -1),
            lambda m, x: x.reshape(x.shape[0], 4, 2, 3),
            lambda m, x: x.view((-1,)),
            lambda m, x: torch.reshape(x, shape=[2, 24]),
            lambda m, x: x.view([x.shape[0], 24]),
            lambda m, x: x.view(size=(2, 24)),
            lambda m, x: x.flatten(1).view(x.shape),
            lambda m, x: x.reshape(x.size()[:1] + (24,)),  # noqa: RUF005  (as people write it: a proxy is no sequence)
            lambda m, x: x.view(size=x.shape[:1] + (-1,)),  # noqa: RUF005
            lambda m, x: x.view((2,) + (24,) * (x.dim() - 2)),
            lambda m, x: x.view([-1] * (x.ndim - 2) + [24]),
        ),
    ),
    "flatten": Group(
        "flatten",
        (2, 4, 6),
        (
            lambda m, x: x.flatten(1),
            lambda m, x: torch.flatten(x, 1),
            lambda m, x: m.a(x),
            lambda m, x: torch.flatten(x, start_dim=1, end_dim=2),
            lambda m, x: x.flatten(),
        ),
        lambda: {"a": nn.Flatten()},
    ),
    "transpose": Group(
        "transpose",
        (2, 4, 6),
        (
            lambda m, x: x.permute(0, 2, 1),
            lambda m, x: torch.permute(x, (2, 1, 0)),
            lambda m, x: x.transpose(1, 2),
            lambda m, x: x.permute([0, 2, 1]),
            lambda m, x: torch.transpose(x, dim0=0, dim1=-1),
            lambda m, x: x.swapaxes(0, 1),
            lambda m, x: x[0].t(),
            lambda m, x: x[0].T,
            lambda m, x: x.mT,
            lambda m, x: x.permute(dims=(0, 2, 1)),
        ),
    ),
    "squeeze": Group(
        "squeeze", (2, 1, 6, 1), (lambda m, x: x.squeeze(1), lambda m, x: torch.squeeze(x, dim=3), lambda m, x: x.squeeze(-1))
    ),
    "unsqueeze": Group("unsqueeze", (2, 6), (lambda m, x: x.unsqueeze(1), lambda m, x: torch.unsqueeze(x, dim=-1))),
    "slice": Group(
        "slice",
        (2, 6, 5),
        (
            lambda m, x: x[:, 0],
            lambda m, x: x[:, 1:3],
            lambda m, x: x[..., 0],
            lambda m, x: x[:, ::2],
            lambda m, x: x[0],
            lambda m, x: x[:, -1],
            lambda m, x: torch.chunk(x, 2, 1)[0],
            lambda m, x: x.chunk(2, dim=1)[1],
            lambda m, x: x.split(2, 1)[2],
            lambda m, x: torch.split(x, [2, 4], dim=1)[1],
            lambda m, x: x.unbind(1)[2],
            lambda m, x: x.select(1, 2),
            lambda m, x: x.narrow(1, 2, 3),
        ),
    ),
    "expand": Group(
        "expand",
        (2, 1, 5),
        (lambda m, x: x.expand(2, 3, 5), lambda m, x: x.expand((-1, 4, -1)), lambda m, x: x.expand(x.size(0), 3, 5)),
    ),
    "pad": Group(
        "pad",
        (2, 3, 6, 6),
        (
            lambda m, x: F.pad(x, (1, 1)),
            lambda m, x: F.pad(x, (1, 2, 1, 1), value=0.5),
            lambda m, x: F.pad(x, [1, 1, 1, 1], mode="reflect"),
            lambda m, x: m.a(x),
            lambda m, x: m.b(x),
            lambda m, x: F.pad(input=x, pad=(0, 1, 0, 0), mode="replicate"),
            lambda m, x: m.c(x),
            lambda m, x: F.pad(x, (1, 1, 1, 1), "circular"),
        ),
        lambda: {"a": nn.ZeroPad2d(1), "b": nn.ReflectionPad2d(2), "c": nn.ConstantPad2d((1, 0, 0, 1), -1.0)},
    ),
    "resize": Group(
        "resize",
        (2, 3, 4, 6),
        (
            lambda m, x: m.a(x),
            lambda m, x: m.b(x),
            lambda m, x: F.interpolate(x, scale_factor=2),
            lambda m, x: F.interpolate(x, (8, 9)),
            lambda m, x: F.interpolate(x, size=(7, 5), mode="bilinear", align_corners=True),
            lambda m, x: m.c(x),
            lambda m, x: F.interpolate(x, scale_factor=(2.0, 1.5), mode="bilinear", align_corners=False),
            lambda m, x: F.interpolate(x, 8),
            lambda m, x: F.interpolate(x, scale_factor=0.5, mode="nearest-exact"),
            lambda m, x: F.interpolate(x, size=(5, 5), mode="bicubic"),
        ),
        lambda: {
            "a": nn.Upsample(scale_factor=2),
            "b": nn.Upsample(size=(9, 9), mode="bilinear"),
            "c": nn.UpsamplingBilinear2d(scale_factor=2),
        },
    ),
    "mean": Group(
        "mean",
        (2, 3, 4, 5),
        (
            lambda m, x: x.mean(1),
            lambda m, x: torch.mean(x, dim=1, keepdim=True),
            lambda m, x: x.mean((1, 2)),
            lambda m, x: x.mean(dim=-1),
            lambda m, x: x.mean((0, 1, 2)),
        ),
    ),
    "sum": Group(
        "sum",
        (2, 3, 4),
        (lambda m, x: x.sum(1), lambda m, x: torch.sum(x, dim=(1, 2), keepdim=True), lambda m, x: x.sum(dim=-1)),
    ),
    "exp": Group("exp", (2, 3), (lambda m, x: x.exp(), lambda m, x: torch.exp(x), lambda m, x: copied(x).exp_())),
    "sqrt": Group("sqrt", (2, 3), (lambda m, x: x.sqrt(), lambda m, x: torch.sqrt(input=x), lambda m, x: copied(x).sqrt_())),
    "rsqrt": Group("rsqrt", (2, 3), (lambda m, x: x.rsqrt(), lambda m, x: torch.rsqrt(x))),
    "neg": Group(
        "neg",
        (2, 3),
        (
            lambda m, x: -x,
            lambda m, x: torch.neg(x),
            lambda m, x: x.neg(),
            lambda m, x: copied(x).neg_(),
            lambda m, x: x.negative(),
        ),
    ),
    "abs": Group(
        "abs", (2, 3), (lambda m, x: abs(x), lambda m, x: torch.abs(x), lambda m, x: x.abs(), lambda m, x: x.absolute())
    ),
    "minimum": Group(
        "minimum",
        (2, 3),
        (lambda m, x: torch.minimum(x, m.w), lambda m, x: x.minimum(m.w), lambda m, x: torch.min(x, m.w)),
        lambda: {"w": w(2, 3)},
    ),
    "maximum": Group(
        "maximum",
        (2, 3),
        (lambda m, x: torch.maximum(x, m.w), lambda m, x: x.maximum(m.w), lambda m, x: torch.max(x, m.w)),
        lambda: {"w": w(2, 3)},
    ),
    "unknown": Group(
        "unknown",
        (2, 3, 4),
        (
            lambda m, x: m.a(x, x),
            lambda m, x: torch.special.i0(x),
            lambda m, x: torch.cdist(x, x),
        ),
        lambda: {"a": nn.Bilinear(4, 4, 3)},
    ),
}


def iadded(a: Tensor, b: Tensor) -> Tensor:
    a += b
    return a


def isubbed(a: Tensor, b: Tensor) -> Tensor:
    a -= b
    return a


def imulled(a: Tensor, b: Tensor) -> Tensor:
    a *= b
    return a


def idivided(a: Tensor, b: Tensor) -> Tensor:
    a /= b
    return a


class Asserts(nn.Module):
    """Stands here because pytest rewrites the asserts of test files."""

    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[1] == 3
        torch._assert(x.dim() == 2, "two axes")
        return x + 1
