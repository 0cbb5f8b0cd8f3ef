"""Ops with drawn shapes, parameters, scales and zero points: what kernels of runtimes are held against."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn

from qfunc.graph.sites import quantizer_nodes
from qfunc.specs import FixedQParams
from tests.conformance.modules import Apply

Shape = tuple[int, ...]
Drawn = tuple[str, nn.Module]


class Side(nn.Module):
    """One image through several ops, side by side."""

    def __init__(self, ops: list[nn.Module]) -> None:
        super().__init__()
        self.ops = nn.ModuleList(ops)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """One tensor an op."""
        return tuple(op(x) for op in self.ops)


class Trial(NamedTuple):
    """What is drawn: the ops by name, the image's shape, and a seed for weights, qparams and codes."""

    names: list[str]
    ops: list[nn.Module]
    shape: Shape
    seed: int
    spread: float


def codes(shape: Shape, seed: int, kind: str) -> Tensor:
    """Weights whose scale is a power of two in each channel, of random codes, or of one sign and near the end of them."""
    g = torch.Generator().manual_seed(seed)
    low = {"random": -127, "positive": 100, "sparse": -3}[kind]
    q = torch.randint(low, {"sparse": 4}.get(kind, 128), shape, generator=g).float()
    q.flatten(1)[:, 0] = 127
    power = torch.randint(-12, -3, (shape[0], *[1] * (len(shape) - 1)), generator=g)
    return q * 2.0**power


@st.composite
def weighted(draw: Any, make: Callable[..., nn.Module], *sizes: Any, **fields: Any) -> nn.Module:
    """A layer, with codes for weights or with random ones, and a bias of either size or none."""
    kind, seed = draw(st.sampled_from(("random", "positive", "sparse", "generic"))), draw(st.integers(0, 10**6))
    torch.manual_seed(seed)
    layer: Any = make(*sizes, **fields, bias=draw(st.booleans()))
    if kind != "generic":
        layer.weight.data = codes(tuple(layer.weight.shape), seed, kind)
    if layer.bias is not None:
        layer.bias.data *= draw(st.sampled_from((1.0, 30.0, 1000.0)))
    return layer


@st.composite
def convolution(draw: Any, shape: Shape) -> Drawn:
    """Dense, grouped or depthwise, with any padding, stride, dilation and activation."""
    c, (kind, activation) = shape[1], draw(st.tuples(st.sampled_from(("conv", "grouped", "depthwise")), ACTIVATIONS))
    many = draw(st.sampled_from([g for g in range(2, c) if c % g == 0] or [1]))
    groups = {"conv": 1, "grouped": many, "depthwise": c}[kind]
    kernel, dilation = draw(st.tuples(st.integers(1, 3), st.integers(1, 3))), draw(st.integers(1, 2))
    conv = draw(weighted(
        nn.Conv2d, c, groups * draw(st.integers(1, 3)), kernel, stride=draw(st.integers(1, 2)), dilation=dilation,
        padding=draw(st.integers(0, 2)), groups=groups,
    ))  # fmt: skip
    return kind if groups > 1 else "conv", nn.Sequential(conv, activation)


@st.composite
def transposed(draw: Any, shape: Shape, dilations: int = 1) -> Drawn:
    """Of any padding, stride and size of output, and of dilations up to this one."""
    stride, kernel = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    layer = draw(weighted(
        nn.ConvTranspose2d, shape[1], draw(st.integers(1, 10)), kernel, stride=stride, padding=draw(st.integers(0, kernel - 1)),
        output_padding=draw(st.integers(0, stride - 1)), dilation=draw(st.integers(1, dilations)),
    ))  # fmt: skip
    return "transposed", nn.Sequential(layer, draw(ACTIVATIONS))


@st.composite
def linear(draw: Any, shape: Shape) -> Drawn:
    """On the last axis, or on the flattened image; or a product with a constant matrix."""
    kind, activation = draw(st.tuples(st.sampled_from(("linear", "flattened", "matrix")), ACTIVATIONS))
    if kind == "matrix":
        return kind, Apply(torch.matmul, codes((shape[-1], draw(st.integers(1, 9))), draw(st.integers(0, 99)), "random"))
    size = shape[-1] if kind == "linear" else math.prod(shape[1:])
    layer = draw(weighted(nn.Linear, size, draw(st.integers(1, 9))))
    return kind, nn.Sequential(*([nn.Flatten()] if kind == "flattened" else []), layer, activation)


@st.composite
def pair(draw: Any, shape: Shape, curved: Callable[[], nn.Module] = nn.Tanh) -> Drawn:
    """A sum, difference or product of two tensors that broadcast; one may be a function of the other."""
    kind, activation = draw(st.tuples(st.sampled_from(("add", "sub", "mul")), ACTIVATIONS))
    other = {
        "convolved": draw(weighted(nn.Conv2d, shape[1], shape[1], 1)), "itself": nn.Identity(), "column": Apply(_column),
        "averaged": nn.AdaptiveAvgPool2d(1), "curved": curved(),
    }[draw(st.sampled_from(("convolved", "itself", "column", "averaged", "curved")))]  # fmt: skip
    call = {"add": _add, "sub": _sub, "mul": _mul}[kind]
    return kind, nn.Sequential(Apply(call, other), activation)


def _column(x: Tensor) -> Tensor:
    return x[..., :1]


def _add(x: Tensor, other: nn.Module) -> Tensor:
    return x + other(x)


def _sub(x: Tensor, other: nn.Module) -> Tensor:
    return other(x) - x


def _mul(x: Tensor, other: nn.Module) -> Tensor:
    return x * other(x)


@st.composite
def pool(draw: Any, shape: Shape, dilations: int = 1) -> Drawn:
    """Averages and maxima over windows, these dilated up to a number, and to one entry."""
    kind, kernel = draw(st.sampled_from(("avg_pool", "max_pool", "adaptive"))), draw(st.integers(1, 3))
    if kind == "adaptive":
        return kind, nn.AdaptiveAvgPool2d(1)
    fields = {"kernel_size": kernel, "stride": draw(st.integers(1, 2)), "padding": draw(st.integers(0, kernel // 2))}
    if kind == "max_pool":  # of codes: what only moves values takes no quantizer of its own
        fields["dilation"] = draw(st.integers(1, dilations))
        return kind, nn.Sequential(draw(weighted(nn.Conv2d, shape[1], shape[1], 1)), nn.MaxPool2d(**fields))
    return kind, nn.Sequential(nn.AvgPool2d(**fields), draw(ACTIVATIONS))


@st.composite
def mean(draw: Any, shape: Shape) -> Drawn:
    """A mean over some axes."""
    dims = tuple(sorted(draw(st.sets(st.integers(1, 3), min_size=1))))
    return "mean", Apply(lambda x, keep=draw(st.booleans()): x.mean(dims, keepdim=keep))


@st.composite
def concat(draw: Any, shape: Shape) -> Drawn:
    """Tensors of other ranges, joined along any axis."""
    layer, dim = draw(weighted(nn.Conv2d, shape[1], shape[1], 1)), draw(st.integers(1, 3))
    return "concat", Apply(lambda x, other: torch.cat([x, other(x), x], dim), layer)


@st.composite
def resized(draw: Any, shape: Shape) -> Drawn:
    """Nearest, or bilinear with either kind of corners."""
    mode, size = draw(st.sampled_from(("nearest", "bilinear"))), draw(st.tuples(st.integers(1, 13), st.integers(1, 13)))
    if mode == "nearest":  # TFLite and PyTorch round positions otherwise for sizes that are no multiples
        size = (shape[2] * draw(st.integers(1, 3)), shape[3] * draw(st.integers(1, 3)))
        layer = draw(weighted(nn.Conv2d, shape[1], shape[1], 1))
        return mode, nn.Sequential(layer, nn.Upsample(size))
    corners = draw(st.booleans())
    return mode, Apply(lambda x: F.interpolate(x, size, mode="bilinear", align_corners=corners))


@st.composite
def curve(draw: Any, shape: Shape, without: tuple[str, ...] = ("elu",)) -> Drawn:
    """A function of each entry, but for some."""
    slope, seed = draw(st.sampled_from((0.01, 0.125, 0.3, 0.9))), draw(st.integers(0, 99))
    prelu = nn.PReLU(shape[1])
    prelu.weight.data = torch.randn(shape[1], generator=torch.Generator().manual_seed(seed))
    made = {
        "sigmoid": nn.Sigmoid(), "tanh": nn.Tanh(), "hardswish": nn.Hardswish(), "leaky_relu": nn.LeakyReLU(slope),
        "prelu": prelu, "gelu": nn.GELU(), "gelu, tanh": nn.GELU("tanh"), "elu": nn.ELU(),
        "relu": nn.ReLU(), "relu6": nn.ReLU6(), "clip": nn.Hardtanh(-slope, 0.8),
    }  # fmt: skip
    kind = draw(st.sampled_from(sorted({*made} - {*without})))
    return kind, made[kind]


@st.composite
def softmax(draw: Any, shape: Shape) -> Drawn:
    """Softmax along any axis."""
    return "softmax", nn.Softmax(draw(st.sampled_from((1, 2, 3, -1))))


def product(shape: Shape) -> st.SearchStrategy[Drawn]:
    """A product of two tensors, both codes."""
    return st.builds(lambda: ("matmul", Apply(lambda x: x @ x.transpose(2, 3))))


ACTIVATIONS = st.sampled_from((nn.Identity(), nn.Identity(), nn.ReLU(), nn.ReLU6(), nn.Hardtanh(-1.0, 1.0)))
KINDS = (convolution, convolution, transposed, linear, pair, pair, pool, mean, concat, resized, curve, softmax, product)


@st.composite
def trials(draw: Any, kinds: Any = KINDS) -> Trial:
    """One to eight ops on one image."""
    shape = (draw(st.integers(1, 3)), draw(st.sampled_from((1, 3, 4, 6, 8, 9, 16, 17))), *draw(
        st.tuples(st.integers(5, 9), st.integers(5, 9))))  # fmt: skip
    drawn = [draw(draw(st.sampled_from(kinds))(shape)) for _ in range(draw(st.integers(1, 8)))]
    return Trial([d[0] for d in drawn], [d[1] for d in drawn], shape, draw(st.integers(0, 10**6)),
                 draw(st.sampled_from((0.0, 0.7, 2.0))))  # fmt: skip


def move(model: Any, seed: int, spread: float = 0.7) -> None:
    """Other scales, powers of two among them, and zero points at the ends; tensors that shared theirs still do."""
    g, new = torch.Generator().manual_seed(seed), dict[tuple[float, int], tuple[float, int]]()
    for seat in quantizer_nodes(model):
        module = seat.module
        if module.site.constant or isinstance(module.site.value, FixedQParams):
            continue
        old = float(module.scale), int(module.zero_point)
        if old not in new:
            u, exact, any_zero = torch.rand(3, generator=g).tolist()
            scale = old[0] * math.exp(spread * (2 * u - 1))
            scale = 2.0 ** round(math.log2(scale)) if exact < 0.5 else scale
            low, high = module.site.scheme.format.qmin, module.site.scheme.format.qmax
            middle = (low + high + 1) // 2
            ends = (low, high, middle, middle - 1, int(torch.randint(low, high + 1, (), generator=g)))
            new[old] = float(torch.tensor(scale)), ends[int(5 * any_zero)] if module.site.scheme.zero_point else 0
        scale, zero = new[old]
        module.scale.fill_(scale)
        module.zero_point.fill_(zero)


def image(model: Any, shape: Shape, seed: int) -> Tensor:
    """Values on every code of the input, between them where rounding has its ties, and beyond the ends."""
    (module,) = (s.module for s in quantizer_nodes(model) if s.tensor == "x" and s.module.site.slot == "input")
    g = torch.Generator().manual_seed(seed)
    low, high = module.site.scheme.format.qmin - 3, module.site.scheme.format.qmax + 4
    q = torch.randint(low, high, shape, generator=g) + 0.5 * torch.randint(0, 2, shape, generator=g)
    return (q - module.zero_point) * module.scale


__all__ = [
    "ACTIVATIONS", "KINDS", "Drawn", "Shape", "Side", "Trial", "convolution", "curve", "image", "linear", "move",
    "pair", "pool", "softmax", "transposed", "trials", "weighted",
]  # fmt: skip
