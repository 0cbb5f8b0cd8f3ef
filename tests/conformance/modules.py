"""Small modules, one per op and variant, of distinct sizes: what the runtime runs on integers, and what in float."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Apply(nn.Module):
    """A function of the inputs and of parts: layers or constants."""

    def __init__(self, function: Callable[..., Any], *parts: nn.Module | Tensor) -> None:
        super().__init__()
        self.function = function
        self.count = len(parts)
        for index, part in enumerate(parts):
            if isinstance(part, nn.Module):
                self.add_module(f"part{index}", part)
            else:
                self.register_buffer(f"part{index}", part)

    def forward(self, x: Tensor) -> Any:
        """The function of x and the parts."""
        return self.function(x, *[getattr(self, f"part{index}") for index in range(self.count)])


IMAGE, ROW, WORDS, HEADS, SIGNAL, ODD = (2, 3, 11, 13), (5, 7), (2, 5, 12), (2, 3, 5, 7), (2, 3, 17), (2, 6, 7, 9)
Case = tuple[Callable[[], nn.Module], tuple[int, ...]]


def _f(function: Callable[..., Any], shape: tuple[int, ...] = IMAGE, *parts: Callable[[], Any]) -> Case:
    return lambda: Apply(function, *(p() for p in parts)), shape


def _m(make: Callable[[], nn.Module], shape: tuple[int, ...] = IMAGE) -> Case:
    return make, shape


def _after(function: Callable[..., Any], *parts: Callable[[], Any]) -> Case:
    # Behind a convolution and in front of one: inside the region that the runtime lays out channels last.
    def run(x: Tensor, first: nn.Module, last: nn.Module, *others: Any) -> Tensor:
        return last(function(first(x), *others))

    return lambda: Apply(run, nn.Conv2d(3, 6, 3), nn.Conv2d(6, 5, 1), *(p() for p in parts)), IMAGE


def _noise(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(shape, generator=torch.Generator().manual_seed(7))


def _se(x: Tensor, squeeze: nn.Module, excite: nn.Module) -> Tensor:
    s = F.adaptive_avg_pool2d(x, 1)
    return x * torch.sigmoid(excite(F.relu(squeeze(s))))


def _norm_and_residual(x: Tensor, first: nn.Module, norm: nn.Module, inner: nn.Module, last: nn.Module) -> Tensor:
    # Channels are last only for the norm: transposes that the runtime's own layout cancels.
    x = norm(first(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    return last(norm((inner(x) + x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2))


def _chunks(x: Tensor) -> Tensor:
    a, b = x.chunk(2, 1)
    return a + b


def _splits(x: Tensor) -> Tensor:
    a, b, c = torch.split(x, [1, 2, 3], 1)
    return torch.cat([c, a, b], 1)


def _attention(x: Tensor, qkv: nn.Module) -> Tensor:
    q, k, v = _three(qkv(x))
    w = torch.softmax(torch.matmul(q, k.transpose(-2, -1)), -1)
    return torch.matmul(w, v)


def _three(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    a, b, c = x.chunk(3, -1)
    return a, b, c


INTEGER: dict[str, Case] = {
    # convolutions
    "conv2d": _m(lambda: nn.Conv2d(3, 5, 3)),
    "conv2d no bias": _m(lambda: nn.Conv2d(3, 5, 3, bias=False)),
    "conv2d 1x1": _m(lambda: nn.Conv2d(3, 5, 1)),
    "conv2d strided": _m(lambda: nn.Conv2d(3, 5, 3, stride=(2, 3), padding=1)),
    "conv2d dilated": _m(lambda: nn.Conv2d(3, 5, 3, dilation=2, padding=(2, 1))),
    "conv2d grouped": _m(lambda: nn.Conv2d(6, 4, 3, groups=2, padding=1), ODD),
    "conv2d depthwise": _m(lambda: nn.Conv2d(6, 6, 3, groups=6, padding=1), ODD),
    "conv2d depthwise x2": _m(lambda: nn.Conv2d(6, 12, 5, groups=6, padding=2, stride=2), ODD),
    "conv2d same, even kernel": _m(lambda: nn.Conv2d(3, 5, (4, 2), padding="same")),
    "conv2d same, dilated": _m(lambda: nn.Conv2d(3, 5, (2, 3), padding="same", dilation=(3, 2))),
    "conv2d valid": _m(lambda: nn.Conv2d(3, 5, 3, padding="valid")),
    "conv1d": _m(lambda: nn.Conv1d(3, 5, 3, padding=1), SIGNAL),
    "conv1d depthwise": _m(lambda: nn.Conv1d(3, 3, 5, groups=3, stride=2), SIGNAL),
    "conv1d same": _m(lambda: nn.Conv1d(3, 4, 4, padding="same", dilation=2), SIGNAL),
    "conv3d": _m(lambda: nn.Conv3d(3, 4, (2, 3, 1), padding=(1, 0, 0)), (2, 3, 5, 6, 7)),
    "conv relu": _m(lambda: nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Conv2d(5, 4, 1))),
    "conv relu6": _m(lambda: nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU6(), nn.Conv2d(5, 4, 1))),
    "conv bn relu": _m(lambda: nn.Sequential(nn.Conv2d(3, 5, 3, bias=False), nn.BatchNorm2d(5), nn.ReLU())),
    "conv two readers": _f(lambda x, a, b: F.relu(a(x)) + b(a(x)), IMAGE, lambda: nn.Conv2d(3, 3, 1), lambda: nn.Conv2d(3, 3, 1)),
    "conv chain": _m(lambda: nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 5, 1))),
    "shared weight": _f(lambda x, a: a(F.relu(a(x))), IMAGE, lambda: nn.Conv2d(3, 3, 3, padding=1)),
    # linear and matmul
    "linear rank 2": _m(lambda: nn.Linear(7, 5), ROW),
    "linear rank 2 no bias": _m(lambda: nn.Linear(7, 5, bias=False), ROW),
    "linear rank 3": _m(lambda: nn.Linear(12, 5), WORDS),
    "linear rank 3 no bias": _m(lambda: nn.Linear(12, 5, bias=False), WORDS),
    "linear rank 4": _m(lambda: nn.Linear(7, 4), HEADS),
    "linear rank 3 relu": _m(lambda: nn.Sequential(nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, 5)), WORDS),
    "linear rank 4 relu6": _m(lambda: nn.Sequential(nn.Linear(7, 9), nn.ReLU6(), nn.Linear(9, 5)), HEADS),
    "mlp": _m(lambda: nn.Sequential(nn.Linear(7, 9), nn.ReLU(), nn.Linear(9, 5)), ROW),
    "matmul constant rank 2": _f(lambda x, w: x @ w, ROW, _noise(7, 5)),
    "matmul constant rank 3": _f(lambda x, w: x @ w, WORDS, _noise(12, 5)),
    "matmul constant rank 4": _f(lambda x, w: torch.matmul(x, w), HEADS, _noise(7, 5)),
    "matmul constant and bias": _f(lambda x, w, b: x @ w + b, WORDS, _noise(12, 5), _noise(5)),
    "matmul constant and bias, rank 2": _f(lambda x, w, b: x @ w + b, ROW, _noise(7, 5), _noise(5)),
    "matmul of two": _f(lambda x: x @ x.transpose(-2, -1), HEADS),
    "bmm": _f(lambda x: torch.bmm(x, x.transpose(1, 2)), WORDS),
    "matmul constant left": _f(lambda x, w: w @ x, WORDS, _noise(4, 5)),
    # add
    "add": _f(lambda x, a: x + a(x), IMAGE, lambda: nn.Conv2d(3, 3, 1)),
    "add itself": _f(lambda x: x + x),
    "add relu": _f(lambda x, a: F.relu(x + a(x)), IMAGE, lambda: nn.Conv2d(3, 3, 1)),
    "add relu6": _f(lambda x, a: F.relu6(x + a(x)), IMAGE, lambda: nn.Conv2d(3, 3, 1)),
    "add constant": _f(lambda x, c: x + c, IMAGE, _noise(3, 1, 1)),
    "add constant full": _f(lambda x, c: x + c, IMAGE, _noise(1, 3, 11, 13)),
    "add constant left": _f(lambda x, c: c + x, IMAGE, _noise(3, 1, 1)),
    "add constant last axis": _f(lambda x, c: x + c, WORDS, _noise(12)),
    "add positions": _f(lambda x, c: x + c, WORDS, _noise(1, 5, 12)),
    "add broadcast channel": _f(lambda x: x + F.adaptive_avg_pool2d(x, 1)),
    "add broadcast channel, swapped": _f(lambda x: F.adaptive_avg_pool2d(x, 1) + x),
    "add broadcast row": _f(lambda x: x + x[:, :, :1], IMAGE),
    "add broadcast column": _f(lambda x: x + x[..., :1], IMAGE),
    "add broadcast column, swapped": _f(lambda x: x[..., :1] + x, IMAGE),
    "add rank 3 column, swapped": _f(lambda x: x[..., :1] + x, WORDS),
    "add between convs, broadcast": _after(lambda x: x + F.adaptive_avg_pool2d(x, 1)),
    "add between convs, broadcast, swapped": _after(lambda x: F.adaptive_avg_pool2d(x, 1) + x),
    "add between convs, column": _after(lambda x: x[..., :1] + x),
    "add between convs, constant": _after(lambda x, c: x + c, _noise(6, 1, 1)),
    "add between convs, constant plane": _after(lambda x, c: c + x, _noise(1, 1, 9, 11)),
    # mul
    "mul itself": _f(lambda x: x * x),
    "mul constant": _f(lambda x, c: x * c, IMAGE, _noise(3, 1, 1)),
    "mul relu": _f(lambda x, a: F.relu(x * a(x)), IMAGE, lambda: nn.Conv2d(3, 3, 1)),
    "se block": _f(_se, (2, 6, 7, 9), lambda: nn.Conv2d(6, 4, 1), lambda: nn.Conv2d(4, 6, 1)),
    "se block between convs": _after(_se, lambda: nn.Conv2d(6, 4, 1), lambda: nn.Conv2d(4, 6, 1)),
    # pools
    "avg_pool": _m(lambda: nn.AvgPool2d(3)),
    "avg_pool padded": _m(lambda: nn.AvgPool2d(3, 2, padding=1)),
    "avg_pool no pad count": _m(lambda: nn.AvgPool2d((3, 2), 2, padding=1, count_include_pad=False)),
    "avg_pool ceil": _m(lambda: nn.AvgPool2d(3, 2, ceil_mode=True)),
    "avg_pool ceil padded": _m(lambda: nn.AvgPool2d(3, 2, padding=1, ceil_mode=True, count_include_pad=False)),
    "avg_pool whole": _m(lambda: nn.AvgPool2d((11, 13))),
    "avg_pool 1d": _m(lambda: nn.AvgPool1d(3, 2), SIGNAL),
    "avg_pool between convs": _after(lambda x: F.avg_pool2d(x, 2)),
    "avg_pool relu": _f(lambda x: F.relu(F.avg_pool2d(x, 2))),
    "adaptive to 1": _m(lambda: nn.AdaptiveAvgPool2d(1)),
    "adaptive to a divisor": _m(lambda: nn.AdaptiveAvgPool2d((3, 2)), (2, 3, 12, 14)),
    "mean keepdim": _f(lambda x: x.mean((2, 3), keepdim=True)),
    "mean": _f(lambda x: x.mean((2, 3))),
    "mean -2 -1": _f(lambda x: x.mean((-1, -2))),
    "mean between convs": _after(lambda x: x.mean((2, 3), keepdim=True)),
    "mean and linear": _f(lambda x, a: a(x.mean((2, 3))), IMAGE, lambda: nn.Linear(3, 4)),
    "adaptive, flatten, linear": _f(lambda x, a: a(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1)), IMAGE, lambda: nn.Linear(3, 4)),
    "max_pool between convs": _after(lambda x: F.max_pool2d(x, 3, 2, padding=1)),
    "max_pool ceil between convs": _after(lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True)),
    "max_pool dilated between convs": _after(lambda x: F.max_pool2d(x, 2, 1, dilation=2)),
    "max_pool first": _m(lambda: nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(3, 5, 1))),
    "max_pool last": _m(lambda: nn.Sequential(nn.Conv2d(3, 5, 1), nn.MaxPool2d(2))),
    "max_pool 1d": _m(lambda: nn.Sequential(nn.Conv1d(3, 5, 1), nn.MaxPool1d(2), nn.Conv1d(5, 2, 1)), SIGNAL),
    # concat
    "concat": _f(lambda x, a: torch.cat([x, a(x)], 1), IMAGE, lambda: nn.Conv2d(3, 4, 1)),
    "concat twice the same": _f(lambda x: torch.cat([x, x], 1)),
    "concat last axis": _f(lambda x, a: torch.cat([x, a(x)], -1), WORDS, lambda: nn.Linear(12, 5)),
    "concat three between convs": _after(lambda x, a, b: torch.cat([a(x), x, b(x)], 1)[:, :6], lambda: nn.Conv2d(6, 2, 1),
                                         lambda: nn.Conv2d(6, 3, 1)),
    "concat relu": _f(lambda x, a: F.relu(torch.cat([x, a(x)], 1)), IMAGE, lambda: nn.Conv2d(3, 4, 1)),
    # activations
    "sigmoid": _m(nn.Sigmoid),
    "sigmoid after conv": _m(lambda: nn.Sequential(nn.Conv2d(3, 5, 1), nn.Sigmoid(), nn.Conv2d(5, 4, 1))),
    "leaky_relu": _m(lambda: nn.LeakyReLU(0.1)),
    "leaky_relu after conv": _m(lambda: nn.Sequential(nn.Conv2d(3, 5, 1), nn.LeakyReLU(0.2), nn.Conv2d(5, 4, 1))),
    "leaky_relu rank 2": _m(lambda: nn.Sequential(nn.Linear(7, 5), nn.LeakyReLU(), nn.Linear(5, 3)), ROW),
    "softmax last": _m(lambda: nn.Softmax(-1), ROW),
    "softmax middle": _m(lambda: nn.Softmax(1)),
    "softmax 3 of 4": _m(lambda: nn.Softmax(2), HEADS),
    "softmax between convs": _after(lambda x: torch.softmax(x, 1)),
    "softmax after linear": _m(lambda: nn.Sequential(nn.Linear(7, 5), nn.Softmax(-1)), ROW),
    "silu by hand": _f(lambda x, a: a(x) * torch.sigmoid(a(x)), IMAGE, lambda: nn.Conv2d(3, 3, 1)),
    "silu by hand, one tensor": _f(lambda x: x * torch.sigmoid(x), IMAGE),
    "clip after conv": _m(lambda: nn.Sequential(nn.Conv2d(3, 4, 1), nn.Hardtanh(-0.3, 0.4), nn.Conv2d(4, 4, 1))),
    # moves
    "flatten": _m(lambda: nn.Sequential(nn.Conv2d(3, 5, 3), nn.Flatten(), nn.Linear(495, 4))),
    "flatten all but two": _m(lambda: nn.Sequential(nn.Conv2d(3, 5, 3), nn.Flatten(2), nn.Conv1d(5, 4, 1))),
    "reshape": _f(lambda x, a: a(x).reshape(-1, 5, 99), IMAGE, lambda: nn.Conv2d(3, 5, 3)),
    "reshape between": _f(lambda x, a, b: b(a(x).reshape(-1, 5, 99)), IMAGE, lambda: nn.Conv2d(3, 5, 3), lambda: nn.Linear(99, 4)),
    "transpose between": _f(lambda x, a, b: b(a(x).flatten(2).transpose(1, 2)), IMAGE, lambda: nn.Conv2d(3, 5, 3), lambda: nn.Linear(5, 4)),
    "permute between convs": _after(lambda x: x.permute(0, 1, 3, 2)),
    "permute and back": _after(lambda x: x.permute(0, 2, 3, 1).permute(0, 3, 1, 2)),
    "permute input": _f(lambda x, a: a(x.permute(0, 2, 3, 1)), IMAGE, lambda: nn.Linear(3, 4)),
    "squeeze unsqueeze": _f(lambda x, a: a(x).squeeze(2).unsqueeze(-1), (2, 3, 1, 7), lambda: nn.Conv2d(3, 5, 1)),
    "slice channels": _after(lambda x: torch.cat([x[:, :2], x[:, 2:]], 1)),
    "slice step": _after(lambda x: x[:, :, ::2, 1:-1]),
    "slice everything": _after(lambda x: x[:, :, :, :]),
    "slice number": _f(lambda x, a: a(x)[:, 1], IMAGE, lambda: nn.Conv2d(3, 5, 1)),
    "slice token": _f(lambda x, a, b: b(a(x)[:, 0]), WORDS, lambda: nn.Linear(12, 9), lambda: nn.Linear(9, 4)),
    "slice ellipsis none": _f(lambda x, a: a(x)[..., None, 1:4], WORDS, lambda: nn.Linear(12, 9)),
    "chunk": _after(lambda x: torch.cat([x.chunk(3, 1)[2], x.chunk(3, 1)[0], x[:, 2:4]], 1)),
    "chunk from the end": _after(lambda x: torch.cat([(p := x.chunk(3, 1))[-1], p[0], p[-2]], 1)),
    "chunk add": _f(lambda x, a: _chunks(a(x)), IMAGE, lambda: nn.Conv2d(3, 6, 1)),
    "split": _f(lambda x, a: _splits(a(x)), IMAGE, lambda: nn.Conv2d(3, 6, 1)),
    "shuffle": _after(lambda x: x.reshape(-1, 2, 3, 9, 11).transpose(1, 2).reshape(-1, 6, 9, 11)),
    "expand": _f(lambda x, a: a(x)[:, :, :1].expand(-1, -1, 4, -1), IMAGE,
                 lambda: nn.Conv2d(3, 5, 1)),
    "resize nearest between convs": _after(lambda x: F.interpolate(x, scale_factor=2)),
    "resize nearest to a size": _after(lambda x: F.interpolate(x, size=(13, 27))),
    "resize nearest x1": _after(lambda x: F.interpolate(x, scale_factor=1)),
    "attention": _f(_attention, WORDS, lambda: nn.Linear(12, 36)),
    "dropout": _m(lambda: nn.Sequential(nn.Conv2d(3, 4, 1), nn.Dropout(), nn.Conv2d(4, 4, 1))),
    "outputs two": _f(lambda x, a, b: (a(x), b(a(x))), IMAGE, lambda: nn.Conv2d(3, 3, 1), lambda: nn.Conv2d(3, 3, 1)),
    "output is the input": _f(lambda x, a: (x, a(x)), IMAGE, lambda: nn.Conv2d(3, 3, 1)),
    "output twice": _f(lambda x, a: (lambda y: (y, y))(a(x)), IMAGE, lambda: nn.Conv2d(3, 3, 1)),
}  # fmt: skip

EXACT: dict[str, Case] = {
    "add zero": _f(lambda x, a, b: b(a(x) + 0), IMAGE, lambda: nn.Conv2d(3, 3, 1), lambda: nn.Conv2d(3, 3, 1)),
    "mul one": _f(lambda x, a, b: b(a(x) * 1.0), IMAGE, lambda: nn.Conv2d(3, 3, 1), lambda: nn.Conv2d(3, 3, 1)),
    "concat with a constant": _f(lambda x, c: torch.cat([x, c.expand(2, 1, 11, 13)], 1), IMAGE, _noise(1, 1, 11, 13)),
    "silu after conv": _m(lambda: nn.Sequential(nn.Conv2d(3, 5, 1), nn.SiLU(), nn.Conv2d(5, 4, 1))),
    "relu first": _m(lambda: nn.Sequential(nn.ReLU(), nn.Conv2d(3, 4, 1))),
    "relu after relu": _m(lambda: nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.ReLU(), nn.Conv2d(4, 4, 1))),
    "relu after max_pool": _m(lambda: nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(4, 4, 1))),
    "relu of a tensor read twice": _f(lambda x, a, b: (lambda y: F.relu(y) + b(y))(a(x)), IMAGE, lambda: nn.Conv2d(3, 3, 1),
                                      lambda: nn.Conv2d(3, 3, 1)),
}  # fmt: skip

FLOAT: dict[str, Case] = {
    "silu": _m(lambda: nn.Sequential(nn.Conv2d(3, 5, 1), nn.SiLU())),
    "tanh": _m(lambda: nn.Sequential(nn.Conv2d(3, 5, 1), nn.Tanh(), nn.Conv2d(5, 4, 1))),
    "gelu": _m(lambda: nn.Sequential(nn.Linear(12, 9), nn.GELU(), nn.Linear(9, 4)), WORDS),
    "gelu tanh": _m(lambda: nn.Sequential(nn.Linear(7, 9), nn.GELU("tanh"), nn.Linear(9, 4)), ROW),
    "layer_norm": _m(lambda: nn.Sequential(nn.Linear(12, 9), nn.LayerNorm(9), nn.Linear(9, 4)), WORDS),
    "layer_norm first": _m(lambda: nn.Sequential(nn.LayerNorm(12), nn.Linear(12, 4)), WORDS),
    "layer_norm over channels": _f(_norm_and_residual, IMAGE, lambda: nn.Conv2d(3, 6, 3), lambda: nn.LayerNorm(6),
                                   lambda: nn.Conv2d(6, 6, 3, padding=1, groups=6), lambda: nn.Conv2d(6, 5, 1)),
    "group_norm": _m(lambda: nn.Sequential(nn.Conv2d(3, 6, 1), nn.GroupNorm(3, 6), nn.Conv2d(6, 4, 1))),
    "instance_norm": _m(lambda: nn.Sequential(nn.Conv2d(3, 6, 1), nn.InstanceNorm2d(6), nn.Conv2d(6, 4, 1))),
    "batch_norm alone": _m(lambda: nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 1))),
    "hardswish": _m(lambda: nn.Sequential(nn.Conv2d(3, 5, 1), nn.Hardswish(), nn.Conv2d(5, 4, 1))),
    "hardsigmoid": _m(lambda: nn.Sequential(nn.Conv2d(3, 5, 1), nn.Hardsigmoid(), nn.Conv2d(5, 4, 1))),
    "celu": _m(lambda: nn.Sequential(nn.Conv2d(3, 5, 1), nn.CELU(0.7), nn.Conv2d(5, 4, 1))),
    "elu": _m(lambda: nn.Sequential(nn.Conv2d(3, 5, 1), nn.ELU(), nn.Conv2d(5, 4, 1))),
    "mish": _m(lambda: nn.Sequential(nn.Conv2d(3, 5, 1), nn.Mish(), nn.Conv2d(5, 4, 1))),
    "softplus": _m(lambda: nn.Sequential(nn.Conv2d(3, 5, 1), nn.Softplus(), nn.Conv2d(5, 4, 1))),
    "prelu": _m(lambda: nn.Sequential(nn.Conv2d(3, 5, 1), nn.PReLU(5), nn.Conv2d(5, 4, 1))),
    "conv_transpose": _m(lambda: nn.Sequential(nn.Conv2d(3, 5, 1), nn.ConvTranspose2d(5, 4, 3, 2), nn.Conv2d(4, 4, 1))),
    "conv_transpose 1d": _m(lambda: nn.Sequential(nn.Conv1d(3, 5, 1), nn.ConvTranspose1d(5, 4, 3, 2, padding=1, output_padding=1)), SIGNAL),
    "pad zeros": _m(lambda: nn.Sequential(nn.Conv2d(3, 4, 1), nn.ZeroPad2d((1, 2, 0, 1)), nn.Conv2d(4, 4, 3))),
    "pad reflect": _m(lambda: nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReflectionPad2d(1), nn.Conv2d(4, 4, 3))),
    "pad replicate first": _m(lambda: nn.Sequential(nn.ReplicationPad2d(1), nn.Conv2d(3, 4, 3))),
    "pad constant": _m(lambda: nn.Sequential(nn.Conv2d(3, 4, 1), nn.ConstantPad2d(1, 0.7), nn.Conv2d(4, 4, 3))),
    "resize bilinear": _after(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear")),
    "resize bilinear corners": _after(lambda x: F.interpolate(x, size=(7, 21), mode="bilinear", align_corners=True)),
    "resize bicubic": _after(lambda x: F.interpolate(x, scale_factor=2, mode="bicubic")),
    "mean over one axis": _f(lambda x, a: a(x).mean(1), WORDS, lambda: nn.Linear(12, 5)),
    "sum": _f(lambda x, a: a(x).sum(1), WORDS, lambda: nn.Linear(12, 5)),
    "mean tokens, linear": _f(lambda x, a, b: b(a(x).mean(1)), WORDS, lambda: nn.Linear(12, 5), lambda: nn.Linear(5, 3)),
    "sub": _f(lambda x, a: a(x) - x, IMAGE, lambda: nn.Conv2d(3, 3, 1)),
    "div": _f(lambda x, a: a(x) / 3, IMAGE, lambda: nn.Conv2d(3, 3, 1)),
    "add a number": _f(lambda x, a, b: b(a(x) + 1.5), IMAGE, lambda: nn.Conv2d(3, 3, 1), lambda: nn.Conv2d(3, 3, 1)),
    "mul a number": _f(lambda x, a, b: b(a(x) * 0.25), IMAGE, lambda: nn.Conv2d(3, 3, 1), lambda: nn.Conv2d(3, 3, 1)),
    "exp": _f(lambda x, a: torch.exp(a(x)), IMAGE, lambda: nn.Conv2d(3, 3, 1)),
    "pow": _f(lambda x, a: a(x) ** 2, IMAGE, lambda: nn.Conv2d(3, 3, 1)),
    "minimum": _f(lambda x, a: torch.minimum(a(x), x), IMAGE, lambda: nn.Conv2d(3, 3, 1)),
    "sdpa": _f(lambda x, a: F.scaled_dot_product_attention(*_three(a(x))), WORDS, lambda: nn.Linear(12, 36)),
    "scaled attention": _f(lambda x, a: (lambda q, k, v: torch.softmax(q @ k.transpose(-2, -1) / 12**0.5, -1) @ v)(*_three(a(x))), WORDS,
                           lambda: nn.Linear(12, 36)),
    "log_softmax": _m(lambda: nn.Sequential(nn.Linear(7, 5), nn.LogSoftmax(-1)), ROW),
    "avg_pool divisor": _f(lambda x: F.avg_pool2d(x, 2, divisor_override=3)),
    "avg_pool divisor, padded": _f(lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False, divisor_override=3)),
    "avg_pool 3d": _m(lambda: nn.AvgPool3d(2), (2, 3, 4, 5, 6)),
    "matmul constants broadcast": _f(lambda x, w: x @ w, HEADS, _noise(3, 7, 5)),
}  # fmt: skip
