"""ONNX Runtime's float32 ops, with its order of summation and its approximations.

The kernels are those of MLAS for x86-64 with AVX-512; a fused multiply-add rounds once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from attrs import frozen
from torch import Tensor

from qfunc.numerics.kernels.activations import hard_swish_by_sixths
from qfunc.numerics.kernels.integer import fma, horner, logistic
from qfunc.specs._values import readable

_LANES, _WIDE, _BLOCK = 8, 16, 2**15
_ERF_EXP = (1.38319808e-3, 8.37550033e-3, 4.16689515e-2, 1.66664466e-1, 4.99999851e-1, 1.0, 1.0)
_ERF_NEAR = (-5.99104969e-4, 4.99339588e-3, -2.67667342e-2, 1.12818025e-1, -3.76124859e-1, 1.28379151e-1)
_ERF_FAR = (1.72948930e-5, -3.83208680e-4, 3.88393435e-3, -2.42545605e-2, 1.06777847e-1, 6.34846687e-1, 1.28717512e-1)
_EXP = tuple(float.fromhex(c) for c in ("0x1.694p-10", "0x1.125edcp-7", "0x1.555b5ap-5", "0x1.55545p-3", "0x1.fffff6p-2",
                                            "1.0", "1.0"))  # fmt: skip

_TANH_NUMERATOR = (
    -2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08, 1.48572235717979e-05,
    6.37261928875436e-04, 4.89352455891786e-03,
)  # fmt: skip
_TANH_DENOMINATOR = (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03)


def layer_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Return (x - m) * (1 / sqrt(v + eps)) * weight + bias, the last two steps fused; m and v over the last axes.

    m: a float64 sum, rounded to float32.  v: squares of x - m, summed in eight float32 lanes with fused multiply-adds,
    then the remaining entries.

    Source: ONNX Runtime mlas/lib/layernorm_kernel_avx2.cpp (rows of 8 and more) and layer_norm_impl.cc (shorter rows, by
    Welford's updates); measured on onnxruntime 1.31.

    >>> layer_norm(torch.tensor([[1.0, 3.0]]), (2,), eps=0.0).tolist()
    [[-1.0, 1.0]]
    """
    rows = input.float().reshape(*input.shape[: input.ndim - len(normalized_shape)], -1)
    size = rows.shape[-1]
    w = rows.new_ones(size) if weight is None else weight.float().flatten()
    b = None if bias is None else bias.float().flatten()
    epsilon = torch.tensor(eps, dtype=torch.float32)
    if size < _LANES:
        mean, squares = _welford(rows)
        value = (rows - mean) / _sqrt(squares / size + epsilon) * w
        return (value if b is None else value + b).reshape(input.shape)
    mean = (rows.double().sum(-1, keepdim=True) / size).float()
    deviations = rows - mean
    quotient = deviations * (1 / _sqrt(_sum_of_squares(deviations)[..., None] / size + epsilon))
    return (quotient * w if b is None else fma(quotient, w.expand_as(rows), b.expand_as(rows))).reshape(input.shape)


def _sqrt(x: Tensor) -> Tensor:
    # torch's float32 square root is not correctly rounded for one number in six; the rounded float64 root is.
    return x.double().sqrt().float()


def _welford(rows: Tensor) -> tuple[Tensor, Tensor]:
    mean = squares = torch.zeros_like(rows[..., :1])
    for at in range(rows.shape[-1]):
        delta = rows[..., at : at + 1] - mean
        mean = mean + delta / (at + 1)
        squares = squares + delta * (rows[..., at : at + 1] - mean)
    return mean, squares


def _sum_of_squares(deviations: Tensor) -> Tensor:
    # The sum of squares: eight lanes, reduced by halves, then the remainder of less than eight entries.
    whole = deviations.shape[-1] // _LANES * _LANES
    lanes = torch.zeros_like(deviations[..., :_LANES])
    for at in range(0, whole, _LANES):
        lanes = fma(deviations[..., at : at + _LANES], deviations[..., at : at + _LANES], lanes)
    while lanes.shape[-1] > 1:
        lanes = lanes[..., : lanes.shape[-1] // 2] + lanes[..., lanes.shape[-1] // 2 :]
    total = lanes[..., 0]
    rest = deviations[..., whole:]
    for at in range(rest.shape[-1] // 4 * 4):
        total = total + rest[..., at] * rest[..., at]
    for at in range(rest.shape[-1] // 4 * 4, rest.shape[-1]):
        total = fma(rest[..., at], rest[..., at], total)
    return total


def erf(x: Tensor) -> Tensor:
    """Return the error function: x + x p(x^2) up to 0.921875, sign(x) (1 - exp(-(|x| + |x| q(|x|)))) beyond.

    Source: ONNX Runtime mlas/lib/erf.cpp.

    >>> erf(torch.tensor([0.0, -9.0])).tolist()
    [0.0, -1.0]
    """
    size = x.float().abs().clamp(max=3.925)
    near = fma(horner(_ERF_NEAR, size * size), size, size)
    far = 1 - _exp(-fma(horner(_ERF_FAR, size), size, size), _ERF_EXP, -88.3762626647949)
    return torch.copysign(torch.where(size > 0.921875, far, near), x)


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """Return (x / 2) (1 + erf(x * float32(sqrt(1/2)))), or the approximation by tanh.

    The latter is (x / 2) (1 + tanh(x (c x x + b))) with b = sqrt(2/pi) and c = 0.044715 b.

    Source: ONNX Runtime mlas/lib/gelu.cpp.

    >>> gelu(torch.tensor([0.0, 10.0])).tolist()
    [0.0, 10.0]
    """
    curve = _tanh_curve if approximate == "tanh" else _erf_curve
    return _apply_by_blocks(lambda x: 0.5 * x * (curve(x) + 1), input.float(), 0)


def _erf_curve(x: Tensor) -> Tensor:
    return erf(x * torch.tensor(math.sqrt(0.5), dtype=torch.float32))


def _tanh_curve(x: Tensor) -> Tensor:
    b, c = torch.tensor([0.7978845608028654, 0.035677408136300125])
    return tanh(x * (c * x * x + b))


def tanh(input: Tensor, fused: bool = True) -> Tensor:
    """Return tanh(x) as x times a rational function of x^2 on [-9, 9], with FMA where it is `fused`.

    Source: ONNX Runtime mlas/lib/tanh.cpp (coefficients of Eigen).

    >>> tanh(torch.tensor([0.0, 20.0])).tolist()
    [0.0, 1.0]
    """
    x = input.float().clamp(-9.0, 9.0)
    return x * horner(_TANH_NUMERATOR, x * x, fused) / horner(_TANH_DENOMINATOR, x * x, fused)


def silu(input: Tensor) -> Tensor:
    """Return x times its logistic, each as MLAS computes it.

    Source: ONNX Runtime contrib_ops/cpu/activations.h, QuickGelu.

    >>> silu(torch.tensor([0.0, 30.0])).tolist()
    [0.0, 30.0]
    """
    return input.float() * logistic(input)


def hard_sigmoid(input: Tensor) -> Tensor:
    """Return clamp(x * float32(1/6) + 1/2, 0, 1), each step rounded.

    Source: ONNX Runtime providers/cpu/activation/activations.h.

    >>> hard_sigmoid(torch.tensor([-4.0, 0.0, 4.0])).tolist()
    [0.0, 0.5, 1.0]
    """
    return (input.float() * torch.tensor(1 / 6, dtype=torch.float32) + 0.5).clamp(0, 1)


def softmax(input: Tensor, dim: int) -> Tensor:
    """Return e / sum(e) as e * (1 / sum(e)), e = exp(x - max(x)); sixteen lanes are summed by halves, then in pairs.

    Source: ONNX Runtime mlas/lib/x86_64/TransKernelAvx512F.S and compute.cpp.

    >>> softmax(torch.tensor([[1.0, 1.0]]), -1).tolist()
    [[0.5, 0.5]]
    """
    return _apply_by_blocks(_softmax, input.float().movedim(dim, -1), 1).movedim(-1, dim)


def softmax_of_seen(scores: Tensor, seen: Tensor) -> Tensor:
    """Return the softmax of the scores along the last axis where `seen` is True, as if they were alone, and 0 elsewhere.

    >>> softmax_of_seen(torch.tensor([1.0, 1.0, 9.0]), torch.tensor([True, True, False])).tolist()
    [0.5, 0.5, 0.0]
    """
    x = torch.where(seen, scores.float(), -torch.inf)
    return _shares(torch.where(seen, _exponentials(x), 0.0))


def _softmax(x: Tensor) -> Tensor:
    return _shares(_exponentials(x))


def _exponentials(x: Tensor) -> Tensor:
    return _exp(x - x.amax(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).min), _EXP, -103.9720840454)


def _shares(e: Tensor) -> Tensor:
    lanes = torch.zeros_like(e[..., :1]).repeat_interleave(_WIDE, -1)
    for at in range(0, e.shape[-1], _WIDE):
        part = e[..., at : at + _WIDE]
        n = part.shape[-1]
        lanes = torch.cat([lanes[..., :n] + part, lanes[..., n:]], -1)
    eight = lanes[..., _LANES:] + lanes[..., :_LANES]
    pairs = eight[..., ::2] + eight[..., 1::2]
    fours = pairs[..., ::2] + pairs[..., 1::2]
    return e * (1 / (fours[..., :1] + fours[..., 1:]))


def _apply_by_blocks(function: Callable[[Tensor], Tensor], x: Tensor, axes: int) -> Tensor:
    # Apply a function of the last axes to parts of the tensor that fit into the cache.
    flat = x.reshape(-1, *x.shape[x.ndim - axes :])
    rows = max(1, _BLOCK // max(1, math.prod(flat.shape[1:])))
    return torch.cat([function(flat[at : at + rows]) for at in range(0, max(1, len(flat)), rows)]).reshape(x.shape)


def _exp(x: Tensor, coefficients: tuple[float, ...], low: float) -> Tensor:
    # 2^m p(x - m ln 2) for low <= x <= 0; adding and subtracting 1.5 * 2^23 rounds x / ln 2 to the integer m.
    x = x.clamp(min=low)
    log2_e, high, rest, round_shift = torch.tensor([math.log2(math.e), -6.93145752e-1, -1.42860677e-6, 12582912.0])
    m = fma(x, log2_e, round_shift) - round_shift
    power = horner(coefficients, fma(m, rest, fma(m, high, x)))
    return (power.double() * torch.exp2(m.double())).float()  # rounds a subnormal result only once


FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "layer_norm": layer_norm, "gelu": gelu, "softmax": softmax, "erf": erf,
    "tanh": tanh, "sigmoid": logistic,
    "silu": silu, "hardsigmoid": hard_sigmoid, "hardswish": hard_swish_by_sixths,
}  # fmt: skip
"""The function of each kind of op."""


@readable
@frozen
class Mlas:
    """Norms, softmax and curves, with vector lanes and fused multiply-adds.

    >>> Mlas().form("gelu").__name__
    'gelu'
    """

    def form(self, kind: str) -> Callable[..., Tensor] | None:
        """Return the function of a kind of op, or None."""
        return FUNCTIONS.get(kind)


@readable
@frozen
class MlasLogistic:
    """The sigmoid as a rational polynomial.

    >>> MlasLogistic().form("gelu") is None
    True
    """

    def form(self, kind: str) -> Callable[..., Tensor] | None:
        """Return the function of a kind of op, or None."""
        return logistic if kind == "sigmoid" else None
