"""Sums along rows in float32, in XNNPACK's order: softmax, means, norms and products of two real tensors.

Results below 2^-126 are 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from qfunc.numerics.kernels.integer import fma
from qfunc.numerics.sums.dynamic import flushed
from qfunc.targets.executorch.elementary import rsqrt, sqrt
from qfunc.targets.executorch.logistic import exponentials


def softmax(input: Tensor, dim: int) -> Tensor:
    """Return e / sum(e) as e * (1 / sum(e)), e = exp(x - max(x)), 0 below e^-87.3.

    Of each 64 entries the first and third 16 are added to one register, the others to a second; then come the remaining 16 by
    16.  The sixteen lanes are added by halves.

    Source: XNNPACK, f32-raddstoreexpminusmax, avx512f_rr2_p5_u64_acc2; measured on executorch 1.5.1.

    >>> softmax(torch.tensor([[1.0, 1.0]]), -1).tolist()
    [[0.5, 0.5]]
    """
    return _softmax(input, dim, 16)


def softmax_in_eight_lanes(input: Tensor, dim: int) -> Tensor:
    """Return `softmax` with registers of 8 lanes, so that 32 entries are a round.

    Source: XNNPACK, f32-raddstoreexpminusmax, avx2_rr2_p5_u32_acc2; measured on executorch 1.5.1.

    >>> softmax_in_eight_lanes(torch.tensor([[1.0, 1.0]]), -1).tolist()
    [[0.5, 0.5]]
    """
    return _softmax(input, dim, 8)


def _softmax(input: Tensor, dim: int, count: int) -> Tensor:
    x = flushed(input.float()).movedim(dim, -1)
    e = exponentials(x - x.amax(-1, keepdim=True))
    size = e.shape[-1]
    whole = size // (4 * count) * 4 * count
    even = odd = torch.zeros_like(e[..., :1]).repeat_interleave(count, -1)
    for at in range(0, whole, 2 * count):
        even, odd = even + e[..., at : at + count], odd + e[..., at + count : at + 2 * count]
    lanes = even + odd
    for at in range(whole, size, count):
        part = e[..., at : at + count]
        n = part.shape[-1]
        lanes = torch.cat([lanes[..., :n] + part, lanes[..., n:]], -1)
    while lanes.shape[-1] > 1:
        lanes = lanes[..., : lanes.shape[-1] // 2] + lanes[..., lanes.shape[-1] // 2 :]
    return flushed(e * (1 / lanes)).movedim(-1, dim)


def mean(input: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
    """Return the sum over the axes, entry after entry, times float32(1 / n).

    Source: XNNPACK, f32-rdsum; measured on executorch 1.5.1.

    >>> mean(torch.tensor([[1.0, 2.0, 6.0]]), -1).tolist()
    [3.0]
    """
    given = range(input.ndim) if dim is None else (dim,) if isinstance(dim, int) else dim
    axes = [d % input.ndim for d in given]
    rest = [d for d in range(input.ndim) if d not in axes]
    entries = flushed(input.float()).permute(*axes, *rest).flatten(0, len(axes) - 1)
    total = torch.zeros_like(entries[0])
    for entry in entries:
        total = flushed(total + entry)
    total = flushed(total * torch.tensor(1 / len(entries), dtype=torch.float32))
    return total.reshape([1 if d in axes else n for d, n in enumerate(input.shape)]) if keepdim else total


def rms_norm(input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    """Return x / sqrt(mean(x^2) + eps) * weight over the last axes, each step rounded.

    Source: XNNPACK's nodes for these ops, and `sqrt`.

    >>> rms_norm(torch.tensor([[3.0, 3.0]]), (2,), eps=0.0).tolist()
    [[1.0, 1.0]]
    """
    x = flushed(input.float())
    epsilon = torch.tensor(torch.finfo(torch.float32).eps if eps is None else eps, dtype=torch.float32)
    root = sqrt(mean(flushed(x * x), _last(normalized_shape), True) + epsilon)
    y = flushed(x / root)
    return y if weight is None else y * weight.float()


def layer_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Return (x - m) * (1 / sqrt(mean((x - m)^2) + eps)) * weight + bias over the last axes, m = mean(x), each step rounded.

    Source: XNNPACK's nodes for these ops, and `rsqrt`.

    >>> layer_norm(torch.tensor([[1.0, 3.0]]), (2,), eps=0.0).tolist()
    [[-1.0, 1.0]]
    """
    x, axes = flushed(input.float()), _last(normalized_shape)
    centred = flushed(x - mean(x, axes, True))
    inverse = rsqrt(mean(flushed(centred * centred), axes, True) + torch.tensor(eps, dtype=torch.float32))
    y = flushed(centred * inverse)
    y = y if weight is None else flushed(y * weight.float())
    return y if bias is None else y + bias.float()


def _last(shape: Sequence[int]) -> list[int]:
    return list(range(-len(shape), 0))


def product(input: Tensor, other: Tensor) -> Tensor:
    """Return a b, of a [..., M, K] and b [..., K, N] whose leading axes broadcast, by fused multiply-adds along K, from 0 on.

    An axis that a tensor with one axis lacks is 1 meanwhile.

    Source: XNNPACK, f32-gemm, avx512f_broadcast; measured on executorch 1.5.1.

    >>> product(torch.ones(2, 3), torch.tensor([[1.0], [2.0], [4.0]])).tolist()
    [[7.0], [7.0]]
    """
    a, b = input.float(), other.float()
    y = _along(a[None] if a.ndim == 1 else a, b[:, None] if b.ndim == 1 else b, None)
    y = y.squeeze(-1) if b.ndim == 1 else y
    return y.squeeze(-1 if b.ndim == 1 else -2) if a.ndim == 1 else y


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x weight^T + bias by fused multiply-adds along K, from the bias on.

    Source: as that of `product`.

    >>> linear(torch.ones(1, 2), torch.tensor([[1.0, 2.0]]), torch.tensor([4.0])).tolist()
    [[7.0]]
    """
    return _along(input.float()[..., None, :], weight.float().T, bias).squeeze(-2)


def _along(a: Tensor, b: Tensor, start: Tensor | None) -> Tensor:
    a, b = flushed(a), flushed(b)
    total = torch.zeros((a[..., :1] * b[..., :1, :]).shape, device=a.device)
    total = total if start is None else total + flushed(start.float())
    for k in range(a.shape[-1]):
        total = flushed(fma(a[..., k, None], b[..., k, None, :], total))
    return total


FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "softmax": softmax, "mean": mean, "rms_norm": rms_norm, "layer_norm": layer_norm, "matmul": product, "linear": linear,
}  # fmt: skip
"""The function of each kind of op."""

FUNCTIONS_ON_AVX2: dict[str, Callable[..., Tensor]] = {"softmax": softmax_in_eight_lanes}
"""Those that are others without AVX-512."""
