"""ggml's float32 ops on x86-64 with AVX-512: norms, rotations and curves, with its order of sums and its approximations."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from qfunc.numerics.kernels.integer import fma
from qfunc.numerics.libm import cosf, sinf

_LOG2_E, _HIGH, _LOW, _SHIFT = (float.fromhex(c) for c in ("0x1.715476p+0", "0x1.62e4p-1", "0x1.7f7d1cp-20", "0x1.8p23"))
_EXP = tuple(float.fromhex(c) for c in ("0x1.0e4020p-7", "0x1.573e2ep-5", "0x1.555e66p-3", "0x1.fffdb6p-2", "0x1.ffffecp-1"))
_LARGEST = 192


def exp(x: Tensor) -> Tensor:
    """Return e^x as 2^n p(x - n ln 2), n the integer nearest to x / ln 2; 0 or infinity where |n| > 192.

    p(b) = ((c_0 b + c_1) b^2 + (c_2 b + c_3)) b^2 + (c_4 b + 1), by fused multiply-adds.

    Source: ggml, src/ggml-cpu/vec.h, ggml_v_expf for AVX-512.

    >>> exp(torch.tensor([0.0, -torch.inf])).tolist()
    [1.0, 0.0]
    """
    finite = x.clamp(-1e4, 1e4)
    log2_e, high, low, shift = (torch.tensor(c) for c in (_LOG2_E, -_HIGH, -_LOW, _SHIFT))
    n = fma(finite, log2_e, shift) - shift
    b = fma(n, low, fma(n, high, finite))
    c0, c1, c2, c3, c4 = (torch.tensor(c) for c in _EXP)
    square = b * b
    upper = fma(fma(c0, b, c1), square, fma(c2, b, c3))
    power = fma(upper, square, fma(c4, b, torch.tensor(1.0)))
    found = (power.double() * torch.exp2(n.double().clamp(-_LARGEST, _LARGEST))).float()
    return torch.where(n.abs() > _LARGEST, torch.where(n > 0, torch.inf, 0.0), found)


def silu(x: Tensor) -> Tensor:
    """Return x / (1 + e^-x); for rows of which 16 divides the length.

    Source: ggml, src/ggml-cpu/vec.h, ggml_v_silu for AVX-512.

    >>> silu(torch.tensor([0.0])).tolist()
    [0.0]
    """
    return x / (1 + exp(-x))


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return x s w with s = 1 / sqrt(m + eps), m the mean of float32(x^2) over the last axis, summed in float64.

    Source: ggml, src/ggml-cpu/ops.cpp, ggml_compute_forward_rms_norm_f32.

    >>> rms_norm(torch.tensor([[3.0, 3.0]]), torch.ones(2), 0.0).tolist()
    [[1.0, 1.0]]
    """
    mean = ((x * x).double().sum(-1, keepdim=True) / x.shape[-1]).float()
    return x * (1 / (mean + torch.tensor(eps)).double().sqrt().float()) * weight


def angles(positions: Tensor, size: int, base: float) -> tuple[Tensor, Tensor]:
    """Return the cosines and sines of theta_i = float32(theta_(i-1) c), theta_0 the position, c = base^(-2 / size).

    Args:
        positions: Integers [T].
        size: Entries that are rotated; the results are [T, size / 2].
        base: The base of the frequencies.
    Source: ggml, src/ggml-cpu/ops.cpp, ggml_rope_cache_init.

    >>> [t.tolist() for t in angles(torch.tensor([0]), 4, 1e4)]
    [[[1.0, 1.0]], [[0.0, 0.0]]]
    """
    factor = torch.tensor(torch.tensor(base).item() ** torch.tensor(-2.0 / size).item())
    theta = [positions.float()]
    for _ in range(size // 2 - 1):
        theta.append(theta[-1] * factor)
    stacked = torch.stack(theta, -1)
    return cosf(stacked), sinf(stacked)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return pairs (a, b) = (x_i, x_i+size/2) as (a cos - b sin, a sin + b cos), each with one fused product.

    Args:
        x: [..., T, size].
        cos, sin: [T, size / 2], of each pair.
    Source: ggml, src/ggml-cpu/ops.cpp, rotate_pairs; measured.

    >>> rotate(torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0]]), torch.tensor([[1.0]])).tolist()
    [[-2.0, 1.0]]
    """
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    cos, sin = cos.expand_as(a), sin.expand_as(a)
    return torch.cat([fma(a, cos, -(b * sin)), fma(a, sin, b * cos)], -1)


def gated(gate: Tensor, up: Tensor) -> Tensor:
    """Return silu(gate) up.

    Source: ggml, src/ggml-cpu/vec.cpp, ggml_vec_swiglu_f32.

    >>> gated(torch.tensor([0.0]), torch.tensor([2.0])).tolist()
    [0.0]
    """
    return silu(gate) * up


def halves(lanes: Tensor) -> Tensor:
    """Return the sum over the last axis, of a power of two: n to n / 2 by v_i + v_(i + n/2) until one is left.

    >>> halves(torch.tensor([1.0, 2.0, 3.0, 4.0])).item()
    10.0
    """
    for _ in range(int(math.log2(lanes.shape[-1]))):
        half = lanes.shape[-1] // 2
        lanes = lanes[..., :half] + lanes[..., half:]
    return lanes[..., 0]
