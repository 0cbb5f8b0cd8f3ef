"""Some hundred ops in one graph, with weights, scales and codes for which halves are frequent.

Scales are powers of two and weights few steps, so that the sum of an output is often halfway between two codes, on either
side of zero, and often at an end of the codes.  A third of the tensors has other scales.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qfunc.graph.sites import quantizer_nodes
from qfunc.specs import FixedQParams
from tests.conformance.modules import Apply

SHAPE = (2, 10, 5, 7)
Named = tuple[str, nn.Module]


def few_steps(layer: Any, seed: int) -> Any:
    """The layer, with weights of -3 to 3 steps of 1/8, and a bias of multiples of 1/64 or none for every third seed."""
    g = torch.Generator().manual_seed(seed)
    layer.weight.data = torch.randint(-3, 4, layer.weight.shape, generator=g) / 8
    if seed % 3 == 0:
        layer.bias = None
    elif layer.bias is not None:
        layer.bias.data = torch.randint(-99, 100, layer.bias.shape, generator=g) / 64
    return layer


def activations() -> list[nn.Module]:
    """What may be fused: nothing, and bounds on either side."""
    return [nn.Identity(), nn.ReLU(), nn.Identity(), nn.ReLU6(), nn.Hardtanh(-1.0, 1.0)]


def products() -> Iterator[Named]:
    """Every kind of product with constant weights; numbers of channels differ, and are no multiples of vectors."""
    makes = {
        "conv": lambda: nn.Conv2d(10, 5, (1, 3), padding=(0, 1)),
        "strided": lambda: nn.Conv2d(10, 9, 2, stride=2, dilation=2, padding=1),
        "grouped": lambda: nn.Conv2d(10, 15, 3, padding=1, groups=5),
        "depthwise": lambda: nn.Conv2d(10, 20, 2, groups=10),
        "transposed": lambda: nn.ConvTranspose2d(10, 4, 3, stride=2, padding=1, output_padding=1),
        "wide": lambda: nn.ConvTranspose2d(10, 18, 2),
        "linear": lambda: nn.Linear(7, 5),
        "flattened": lambda: nn.Linear(350, 6),
    }
    seed = 0
    for name, make in makes.items():
        for activation in activations():
            seed += 1
            front = [nn.Flatten()] if name == "flattened" else []
            yield name, nn.Sequential(*front, few_steps(make(), seed), activation)
    many = [few_steps(nn.Conv2d(10, 17, 1), 50), few_steps(nn.Conv2d(17, 17, 2, groups=17), 51)]
    yield "depthwise of 17", nn.Sequential(*many)
    g = torch.Generator().manual_seed(52)
    yield "matrix", Apply(torch.matmul, torch.randint(-3, 4, (7, 5), generator=g) / 8)


def pairs(kinds: tuple[str, ...] = ("add", "sub", "mul")) -> Iterator[Named]:
    """Sums, differences and products of two tensors: of other scales, broadcast, or the same."""
    calls = {"add": torch.add, "sub": torch.sub, "mul": torch.mul}
    bounds, seed = itertools.cycle(activations()), 60
    for kind in kinds:
        others = {
            "convolved": few_steps(nn.Conv2d(10, 10, 1), seed), "coarse": few_steps(nn.Conv2d(10, 10, 1), seed + 1),
            "itself": nn.Identity(), "column": Apply(_column),
            "other column": nn.Sequential(few_steps(nn.Conv2d(10, 10, 1), seed + 7), Apply(_column)),
            "averaged": nn.AdaptiveAvgPool2d(1), "curved": nn.Tanh(),
        }  # fmt: skip
        for name, other in others.items():
            for swapped in (False, True)[: 1 + (kind == "sub")]:
                yield f"{kind} {name}", nn.Sequential(Apply(_both(calls[kind], swapped), other), next(bounds))
        seed += 2


def _column(x: Tensor) -> Tensor:
    return x[..., :1]


def _both(call: Any, swapped: bool) -> Any:
    return lambda x, other: call(other(x), x) if swapped else call(x, other(x))


def pools() -> Iterator[Named]:
    """Averages over windows of powers of two and of other sizes, with padding that counts and that does not; maxima."""
    for kernel, stride, padding, counts in (
        (2, 1, 0, True), (2, 2, 1, True), (3, 1, 1, True), (3, 1, 1, False), ((1, 4), 1, 0, True), ((4, 2), 1, 0, True),
    ):  # fmt: skip
        yield "avg_pool", nn.AvgPool2d(kernel, stride, padding, count_include_pad=counts)
    yield "bounded avg_pool", nn.Sequential(nn.AvgPool2d(2, 1), nn.ReLU6())
    yield "adaptive", nn.AdaptiveAvgPool2d(1)
    yield "adaptive", nn.AdaptiveAvgPool2d((5, 1))
    yield "avg_pool of other scale", nn.Sequential(few_steps(nn.Conv2d(10, 10, 1), 79), nn.AvgPool2d(3, 1, 1))
    yield "max_pool", nn.Sequential(few_steps(nn.Conv2d(10, 10, 1), 80), nn.MaxPool2d(3, 1, 1))


def means() -> Iterator[Named]:
    """Means over axes, of all entries and of powers of two."""
    for dims in ((3,), (2, 3), (1,), (1, 2, 3), (2,)):
        yield "mean", Apply(_mean(dims))
        yield "mean of four", Apply(_mean_of_four(dims))


def _mean(dims: tuple[int, ...]) -> Any:
    return lambda x: x.mean(dims, keepdim=len(dims) != 2)


def _mean_of_four(dims: tuple[int, ...]) -> Any:
    return lambda x: x[:, :4, :4, :4].mean(dims, keepdim=len(dims) != 2)


def resized() -> Iterator[Named]:
    """Bilinear sizes with halves, and others."""
    for size, corners in (((10, 14), False), ((9, 13), True), ((3, 4), False), ((7, 9), False), ((6, 11), True)):
        yield "bilinear", Apply(_resize(size, corners))
    yield "nearest", nn.Sequential(few_steps(nn.Conv2d(10, 10, 1), 81), nn.Upsample(scale_factor=2))


def _resize(size: tuple[int, int], corners: bool) -> Any:
    return lambda x: F.interpolate(x, size, mode="bilinear", align_corners=corners)


def joined() -> Iterator[Named]:
    """Tensors of other ranges, joined; a product of two tensors."""
    for dim in (1, 3):
        yield "concat", Apply(_join(dim), few_steps(nn.Conv2d(10, 10, 1), 82 + dim))
    yield "matmul", Apply(lambda x: x @ x.transpose(2, 3))
    yield "matmul", Apply(lambda x, other: other(x) @ x.transpose(2, 3), few_steps(nn.Conv2d(10, 10, 1), 86))


def _join(dim: int) -> Any:
    return lambda x, other: torch.cat([x, other(x)], dim)


def curves(*names: str) -> Iterator[Named]:
    """Functions of one entry: of the image, and of what a convolution makes."""
    prelu = nn.PReLU(10)
    prelu.weight.data = torch.tensor([0.25, -0.5, 0.125, 0.75, 1.0, -0.25, 0.5, -1.0, 0.375, 0.1])
    made = {
        "sigmoid": nn.Sigmoid(), "tanh": nn.Tanh(), "hardswish": nn.Hardswish(), "leaky": nn.LeakyReLU(0.25),
        "steep": nn.LeakyReLU(0.5), "generic leaky": nn.LeakyReLU(0.3), "prelu": prelu, "gelu": nn.GELU(),
        "gelu, tanh": nn.GELU("tanh"), "elu": nn.ELU(), "hardsigmoid": nn.Hardsigmoid(), "silu": nn.SiLU(),
        "softplus": nn.Softplus(), "mish": nn.Mish(), "relu": nn.ReLU(), "relu6": nn.ReLU6(), "clip": nn.Hardtanh(-0.25, 0.8),
        "softmax": nn.Softmax(-1), "softmax of channels": nn.Softmax(1),
    }  # fmt: skip
    for i, name in enumerate(names):
        yield name, made[name]
        yield name, nn.Sequential(few_steps(nn.Conv2d(10, 10, 1), 90 + i), made[name])


def every(*names: str) -> list[Named]:
    """All of these, with the curves of these names."""
    return [*products(), *pairs(), *pools(), *means(), *resized(), *joined(), *curves(*names)]


def image(seed: int, low: int, high: int, halves: bool = True) -> Tensor:
    """One example of few steps, and one of any code and beyond; both also between codes, where rounding has its ties.

    A step is 1/32.
    """
    g = torch.Generator().manual_seed(seed)
    x = torch.cat([torch.randint(first, last, (1, *SHAPE[1:]), generator=g) for first, last in ((-5, 6), (low - 3, high + 4))])
    x = x + 0.5 * torch.randint(0, 2, SHAPE, generator=g) * halves
    if halves:
        x.view(-1)[-4:] = torch.tensor([0.5, -0.5, 2.5, -2.5])  # vectors of 8 leave these over
    return x / 32


def set_scales(model: Any, seed: int, ties: bool = True) -> None:
    """Scales and zero points for ties and for the ends of the codes; tied tensors share theirs.

    Every second tensor of both signs has a scale of a power of two and a zero point in the middle.  Without `ties` all
    scales are others, for arithmetics whose steps round in float32.
    """
    g, done = torch.Generator().manual_seed(seed), set[int]()
    signed, bounded = itertools.count(), itertools.count()
    for seat in quantizer_nodes(model):
        module, site = seat.module, seat.module.site
        if site.slot == "bias" or isinstance(site.value, FixedQParams) or module.scale.data_ptr() in done:
            continue
        done.add(module.scale.data_ptr())
        fmt, old, zero = site.scheme.format, float(module.scale.flatten()[0]), int(module.zero_point.flatten()[0])
        middle, power = (fmt.qmin + fmt.qmax + 1) // 2, 2.0 ** math.floor(math.log2(old))
        other = old * float(0.4 + torch.rand((), generator=g))
        if site.slot == "weight":
            scale, zero = 1 / 8, 0
        elif seat.tensor == "x":
            scale, zero = 1 / 32, middle + 3
        elif site.scheme.zero_point and zero in (fmt.qmin, fmt.qmax):
            n = next(bounded)
            scale = other if n % 4 == 1 else power * 2.0 ** (1 - n % 3)
            zero = (zero, zero, middle, zero + (7 if zero == fmt.qmin else -7))[n % 4]
            if n % 4 == 3 and fmt.qmin < 0 and round(255 * old, 3) == 6:
                scale = 6 / 25.5  # the bound is halfway between two codes
        elif (n := next(signed)) % 2:
            beside = power * (1 - 2.0**-20)  # sums are beside halves, which a multiplier of fewer bits takes for halves
            scale, zero = ((power / 2, fmt.qmax), (other, middle - 1), (beside, middle), (power, fmt.qmin))[n // 2 % 4]
        else:
            scale, zero = power * 2.0 ** (1 - n // 2 % 4), middle + (0, 37, -1)[n // 2 % 3]
        module.scale.fill_(scale if ties else other)
        module.zero_point.fill_(zero if site.scheme.zero_point else 0)


__all__ = [
    "SHAPE", "activations", "curves", "every", "few_steps", "image", "joined", "means", "pairs", "pools", "products", "resized",
    "set_scales",
]  # fmt: skip
