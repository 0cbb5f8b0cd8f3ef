"""Hypothesis strategies for quantization: formats, schemes, qparams, and values near rounding ties.

Uniform random numbers almost never hit a tie; these strategies aim at ties, saturation, subnormals and the
extreme zero points.  Every argument is keyword-only and is a value, not a strategy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from attrs import evolve
from hypothesis import strategies as st
from torch import Tensor

from qfunc import specs
from qfunc.numerics import minifloat
from qfunc.numerics.qparams import Affine
from qfunc.specs import Float, Int, PerBlock, PerChannel, PerTensor, PerToken, Scheme, Target, ZeroPoint, edit, formats
from qfunc.specs.formats import READY
from qfunc.testing.one_op import networks_of
from qfunc.testing.oracle import MODES
from qfunc.testing.small_models import Block, SmallNet

LARGEST = float(np.finfo(np.float32).max)
TINIEST = 2.0**-149
SMALLEST_NORMAL = 2.0**-126


@st.composite
def int_formats(draw: st.DrawFn, *, max_bits: int = 8) -> Int:
    """Draw integer formats of 2 to `max_bits` bits: full range, symmetric, or narrowed at either end.

    Shrinks to an unsigned format of 2 bits.

    >>> int_formats(max_bits=4)
    int_formats(max_bits=4)
    """
    fmt = Int(draw(st.integers(2, max_bits)), draw(st.booleans()))
    cut = draw(st.sampled_from(("none", "symmetric", "ends")))
    if cut == "symmetric" and fmt.signed:
        return Int(fmt.bits, low=-fmt.qmax)
    if cut == "ends" and fmt.qmax - fmt.qmin > 3:
        return Int(fmt.bits, fmt.signed, low=fmt.qmin + draw(st.integers(0, 1)), high=fmt.qmax - draw(st.integers(0, 1)))
    return fmt


def scales(*, tiny: bool = True, huge: bool = True) -> st.SearchStrategy[float]:
    """Return a strategy of positive float32 scales: ordinary, powers of two, k/64, 2^-126 (`tiny`) and 2^100 (`huge`).

    Shrinks to 1.0.
    """
    ordinary = st.floats(2.0**-14, 4.0, width=32)
    powers = st.integers(-10, 3).map(lambda k: 2.0**k)
    kinds = [st.just(1.0), powers, ordinary, st.integers(1, 255).map(lambda k: k / 64)]
    kinds += [st.sampled_from((SMALLEST_NORMAL, float(np.float32(3e-38))))] if tiny else []
    kinds += [st.sampled_from((2.0**100, float(np.float32(1e30))))] if huge else []
    return st.one_of(kinds)


def zero_points(*, low: int, high: int) -> st.SearchStrategy[int]:
    """Return a strategy of codes in [low, high], often the ends and their neighbours; shrinks to `low`."""
    edges = sorted({low, high, min(low + 1, high), max(high - 1, low), min(max(0, low), high)})
    return st.one_of(st.sampled_from(edges), st.integers(low, high))


@st.composite
def schemes(
    draw: st.DrawFn,
    *,
    max_bits: int = 8,
    roundings: Sequence[str] = MODES,
    division: bool | None = None,
    affine: bool | None = None,
) -> Scheme:
    """Draw per-tensor schemes of an Int format, affine or symmetric, with a rounding in `roundings`.

    `division` and `affine` fix those properties; None draws them.
    """
    zero = ZeroPoint() if (draw(st.booleans()) if affine is None else affine) else None
    fmt = draw(int_formats(max_bits=max_bits).filter(lambda f: zero is not None or f.qmin <= 0 <= f.qmax))
    division = draw(st.booleans()) if division is None else division
    return Scheme(fmt, zero_point=zero, rounding=draw(st.sampled_from(list(roundings))), division=division)


def granularities(*, shape: tuple[int, ...]) -> st.SearchStrategy[Any]:
    """Return a strategy of every granularity for a tensor of this shape; shrinks to PerTensor()."""
    choices: list[Any] = [
        PerTensor(),
        *(PerChannel(axis) for axis in range(-1, len(shape)) if shape),
        *([PerToken()] if shape else []),
    ]
    for axis, length in enumerate(shape):
        choices += [PerBlock(axis, size, partial=length % size > 0) for size in range(1, length + 1)]
    return st.sampled_from(choices)


@st.composite
def qparams(draw: st.DrawFn, *, scheme: Scheme, tiny: bool = True, huge: bool = True) -> Affine:
    """Draw per-tensor qparams that the scheme allows: zero point 0 if symmetric, else any code."""
    fmt = scheme.format
    assert isinstance(fmt, Int)
    zero = 0 if scheme.symmetric else draw(zero_points(low=fmt.qmin, high=fmt.qmax))
    return Affine(torch.tensor(draw(scales(tiny=tiny, huge=huge))), torch.tensor(float(zero)))


@st.composite
def values_near_ties(draw: st.DrawFn, *, scheme: Scheme, qparams: Affine, infinities: bool = False) -> float:
    """Draw a finite float32: a point where R jumps or its neighbour by one ulp, an extreme, or a subnormal.

    These points are ties n + 1/2 (integers for floor and trunc) of codes in [qmin - 2, qmax + 2].  Shrinks to 0.0.
    `infinities` adds both infinities.
    """
    fmt = scheme.format
    assert isinstance(fmt, Int)
    scale, zero = np.float32(qparams.scale.item()), int(qparams.zero_point)
    kind = draw(st.sampled_from(("zero", "tie", "tie", "tie", "any", "extreme")))
    if kind == "zero":
        return 0.0
    if kind == "any":
        return draw(st.floats(width=32, allow_nan=False, allow_infinity=False))
    if kind == "extreme":
        ends = [0.0, -0.0, TINIEST, -TINIEST, SMALLEST_NORMAL, LARGEST, -LARGEST, 0.49999997, -0.49999997]
        return draw(st.sampled_from(ends + [float("inf"), float("-inf")] * infinities))
    half = 0.0 if scheme.rounding in ("floor", "trunc") else 0.5
    place = draw(st.integers(fmt.qmin - 2, fmt.qmax + 2)) - zero + half
    value = np.float32(np.clip(place * float(scale), -LARGEST, LARGEST))
    side = draw(st.sampled_from((0.0, LARGEST, -LARGEST)))
    return float(value) if side == 0.0 else float(np.nextafter(value, np.float32(side)))


@st.composite
def tensors(
    draw: st.DrawFn, *, shape: tuple[int, ...], low: float = -4.0, high: float = 4.0, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Draw finite tensors of this shape and dtype in [low, high]; shrinks towards 0."""
    count = int(np.prod(shape, dtype=int))
    element = st.floats(float(np.float32(low)), float(np.float32(high)), width=32)
    return torch.tensor(draw(st.lists(element, min_size=count, max_size=count)), dtype=dtype).reshape(shape)


BLOCKS = ("conv", "conv", "depthwise", "grouped", "add", "mul", "concat", "max_pool", "avg_pool")
"""The blocks of `small_models`; a repeated one is drawn more often."""
ACTS = (None, "relu", "relu6")
"""The activations of `small_models`."""
TAILS = ("adaptive", "mean")
"""The global pools of `small_models`."""


@st.composite
def small_models(draw: st.DrawFn, *, max_blocks: int = 4) -> tuple[SmallNet, Tensor]:
    """Draw (network, example input [2, 3, 11, 13]): 1 to `max_blocks` random blocks, a global pool and a linear layer.

    Blocks: convolutions (dense, grouped, depthwise, dilated, strided) with batch norm and relu or relu6,
    residual add and mul, concat, max and average pools.  Evaluation mode; shrinks to one 1x1 convolution.
    """
    return draw(chains(max_blocks=max_blocks))


@st.composite
def chains(
    draw: st.DrawFn, *, blocks: Sequence[str] = BLOCKS, acts: Sequence[str | None] = ACTS, tails: Sequence[str] = TAILS,
    max_blocks: int = 4,
) -> tuple[SmallNet, Tensor]:  # fmt: skip
    """Draw (network, example input [2, 3, 11, 13]) as `small_models`, of some of its blocks, activations and global pools.

    Without global pools, the networks end with their last block.
    """
    channels, steps = 3, list[Block]()
    for _ in range(draw(st.integers(1, max_blocks))):
        step, channels = draw(_steps(channels, tuple(blocks), tuple(acts)))
        steps.append(step)
    if tails:
        steps += [Block(draw(st.sampled_from(tails))), Block("linear", channels, draw(st.sampled_from((5, 10))))]
    net = SmallNet(tuple(steps), draw(st.integers(0, 2**16)))
    generator = torch.Generator().manual_seed(net.seed + 1)
    return net, torch.randn((2, 3, 11, 13), generator=generator)


@st.composite
def _steps(draw: st.DrawFn, channels: int, blocks: tuple[str, ...], acts: tuple[str | None, ...]) -> tuple[Block, int]:
    kind, act = draw(st.sampled_from(blocks)), draw(st.sampled_from(acts))
    if kind in ("max_pool", "avg_pool"):
        return Block(kind, kernel=draw(st.sampled_from((2, 3))), stride=1), channels
    norm, bias = draw(st.booleans()), draw(st.booleans())
    if kind in ("add", "mul", "concat"):
        out = 4 if kind == "concat" else channels
        return Block(kind, channels, out, 3, act=act, norm=norm, bias=bias), channels + (4 if kind == "concat" else 0)
    out = draw(st.sampled_from((5, 6, 7, 8)))
    groups = 1
    if kind == "depthwise":
        out, groups = channels * draw(st.sampled_from((1, 2))), channels
    elif kind == "grouped" and channels % 2 == 0:
        out, groups = 2 * (out // 2), 2
    kernel, stride, dilation = (draw(st.sampled_from(v)) for v in ((1, 3), (1, 2), (1, 2)))
    return Block("conv", channels, out, kernel, stride, dilation, groups, act, norm, bias), out


@st.composite
def targets(draw: st.DrawFn, *, base: Target) -> Target:
    """Draw `base` with zero to three edits: weight bits, activation symmetry or rounding, float softmax, the estimator."""
    edits = (
        edit.weights(bits=4),
        edit.activations(symmetric=True),
        edit.activations(rounding="half_away"),
        edit.skip(edit.op("softmax")),
        _weights_estimator_everywhere,
    )
    return edit.pipe(base, *draw(st.lists(st.sampled_from(edits), max_size=3, unique=True)))


def _weights_estimator_everywhere(target: Target) -> Target:
    return edit.activations(estimator=target.weight.estimator)(target)


FLOATS = (
    formats.E4M3FN, formats.E5M2, formats.E4M3FNUZ, formats.E5M2FNUZ, formats.E3M2, formats.E2M3, formats.E2M1, specs.FLOAT16,
    specs.BFLOAT16, specs.FLOAT32, formats.E8M0,
)  # fmt: skip
"""The named small floats."""


@st.composite
def float_formats(draw: st.DrawFn, *, max_bits: int = 8) -> Float:
    """Draw small floats: named ones, or any of 3 to `max_bits` bits: IEEE, FNUZ or without infinity, saturating or not.

    Shrinks to E4M3FN.
    """
    if draw(st.booleans()):
        return evolve(draw(st.sampled_from(FLOATS)), saturate=draw(st.booleans()))
    exponent = draw(st.integers(1, max_bits - 2))
    mantissa = draw(st.integers(1, max_bits - 1 - exponent))
    bias = draw(st.integers(-3, 12)) + (1 << exponent - 1)
    kind = draw(st.sampled_from(("ieee", "all", "all but NaN", "fnuz") if exponent > 1 else ("all", "all but NaN", "fnuz")))
    lost = 2 if kind == "all but NaN" else 1  # the highest binade loses the pattern of NaN
    top = None if kind == "ieee" else (2 - lost * 2.0**-mantissa) * 2.0 ** ((1 << exponent) - 1 - bias)
    more = {"saturate": draw(st.booleans()), "negative_zero": kind != "fnuz", "signed": kind == "fnuz" or draw(st.booleans())}
    return Float(exponent, mantissa, bias=bias, max=top, **more)


@st.composite
def floats_near_ties(draw: st.DrawFn, *, fmt: Float) -> float:
    """Draw a float32: mostly a value of the format, a midpoint of two, or a neighbour by one ulp; else any."""
    if draw(st.integers(0, 3)) == 0:
        return draw(st.floats(width=32, allow_nan=False))
    low, high = minifloat.smallest_exponent(fmt) - 1, int(np.log2(minifloat.largest(fmt))) + 1
    exponent = draw(st.integers(max(low, -126), min(high, 127)))
    place = draw(st.integers(0, 2 << min(fmt.mantissa + 1, 23))) * 2.0 ** (exponent - min(fmt.mantissa + 1, 23))
    value = np.float32(draw(st.sampled_from((1.0, -1.0))) * min(place, LARGEST))
    side = draw(st.sampled_from((0.0, LARGEST, -LARGEST)))
    return float(value) if side == 0.0 else float(np.nextafter(value, np.float32(side)))


@st.composite
def block_schemes(draw: st.DrawFn, *, shape: tuple[int, ...]) -> Scheme:
    """Draw the predefined schemes of `specs.formats`, and log and codebook formats, with a granularity for the shape.

    Shrinks to MXFP8_E4M3 per tensor.
    """
    more = (Scheme(specs.Log()), Scheme(specs.Levels((-1.0, -0.25, 0.0, 0.125, 0.5))))
    scheme = draw(st.sampled_from(READY + more))
    chosen: Scheme = evolve(scheme, scale=evolve(scheme.scale, shared=draw(granularities(shape=shape))))
    return chosen


__all__ = [
    "FLOATS", "LARGEST", "SMALLEST_NORMAL", "TINIEST", "block_schemes", "float_formats", "floats_near_ties",
    "granularities", "int_formats", "networks_of", "qparams", "scales", "schemes", "small_models", "targets", "tensors",
    "values_near_ties", "zero_points",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)
