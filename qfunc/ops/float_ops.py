"""Canonical ops that compute in float or move whole blocks, and need an ONNX spelling only: one row each."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def scaled(input: Tensor, like: Tensor, factor: float | None) -> Tensor:
    """Attention's scores: input * factor, or divided by the square root of the width of `like`.

    >>> scaled(torch.ones(1), torch.ones(2, 4), None)
    tensor([0.5000])
    """
    return input * (like.shape[-1] ** -0.5 if factor is None else factor)


def masked(input: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    """Attention's scores [..., L, S]; -infinity where a mask of booleans is False, or behind the diagonal; else their sum.

    >>> masked(torch.zeros(1, 2), torch.tensor([True, False]), False)
    tensor([[0., -inf]])
    >>> masked(torch.zeros(2, 2), None, True)
    tensor([[0., -inf],
            [0., 0.]])
    """
    if causal:
        return input.masked_fill(torch.ones_like(input, dtype=torch.bool).triu(1), float("-inf"))
    if mask is None:
        return input
    return input.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else input + mask


def guarded(input: Tensor, least: float) -> Tensor:
    """input + least, for an input that is not negative.

    >>> guarded(torch.zeros(1), 0.5)
    tensor([0.5000])
    """
    return input + least


def at_least(input: Tensor, least: float) -> Tensor:
    """max(input, least).

    >>> at_least(torch.tensor([0.0, 2.0]), 0.5)
    tensor([0.5000, 2.0000])
    """
    return input.clamp_min(least)


def left_out(mask: Tensor) -> Tensor:
    """A mask of nn.MultiheadAttention as one of scaled_dot_product_attention: booleans the other way round.

    >>> left_out(torch.tensor([True, False]))
    tensor([False,  True])
    """
    return ~mask if mask.dtype == torch.bool else mask


def repeat_heads(input: Tensor, like: Tensor) -> Tensor:
    """Grouped queries: each head of keys or values [..., h, S, E] once for each of its queries in `like` [..., H, L, E].

    >>> repeat_heads(torch.tensor([[[1.0]], [[2.0]]]), torch.zeros(4, 1, 1)).flatten()
    tensor([1., 1., 2., 2.])
    """
    return input.repeat_interleave(like.shape[-3] // input.shape[-3], -3)


def squeeze_all(input: Tensor) -> Tensor:
    """`torch.squeeze` of every axis of length 1.

    >>> squeeze_all(torch.ones(1, 2, 1)).shape
    torch.Size([2])
    """
    return torch.squeeze(input)


def variance(input: Tensor, dim: Sequence[int] | None, correction: float, keepdim: bool) -> Tensor:
    """`torch.var` with every argument by position.

    >>> variance(torch.tensor([1.0, 3.0]), None, 1, False)
    tensor(2.)
    """
    return torch.var(input, dim if dim is None else list(dim), correction=correction, keepdim=keepdim)


def deviation(input: Tensor, dim: Sequence[int] | None, correction: float, keepdim: bool) -> Tensor:
    """`torch.std` with every argument by position.

    >>> deviation(torch.tensor([1.0, 3.0]), None, 0, False)
    tensor(1.)
    """
    return torch.std(input, dim if dim is None else list(dim), correction=correction, keepdim=keepdim)


def addcmul(input: Tensor, tensor1: Tensor, tensor2: Tensor, value: float) -> Tensor:
    """input + value * tensor1 * tensor2.

    >>> addcmul(torch.ones(1), torch.ones(1), torch.ones(1), 2)
    tensor([3.])
    """
    return torch.addcmul(input, tensor1, tensor2, value=value)


def addcdiv(input: Tensor, tensor1: Tensor, tensor2: Tensor, value: float) -> Tensor:
    """input + value * tensor1 / tensor2.

    >>> addcdiv(torch.ones(1), torch.ones(1), torch.ones(1), 2)
    tensor([3.])
    """
    return torch.addcdiv(input, tensor1, tensor2, value=value)


def take(input: Tensor, dim: int, places: Sequence[int]) -> Tensor:
    """The entries at some places of an axis, x[:, [0, 2]].

    >>> take(torch.tensor([[1, 2, 3]]), 1, (0, 2))
    tensor([[1, 3]])
    """
    return input.index_select(dim, torch.tensor(places, device=input.device))


def sorted_by(input: Tensor, dim: int, descending: bool) -> tuple[Tensor, Tensor]:
    """`torch.sort`, as (values, indices).

    >>> sorted_by(torch.tensor([3, 1]), 0, False)[1]
    tensor([1, 0])
    """
    values, indices = torch.sort(input, dim=dim, descending=descending, stable=True)
    return values, indices


def topk(input: Tensor, k: int, dim: int, largest: bool, sorted: bool) -> tuple[Tensor, Tensor]:
    """`torch.topk`, as (values, indices); equal values, of which codes have many, come in order of their places.

    >>> topk(torch.tensor([1, 2, 2]), 2, 0, True, True)[1]
    tensor([1, 2])
    """
    values, indices = torch.sort(input, dim=dim, descending=largest, stable=True)
    return values.narrow(dim, 0, k), indices.narrow(dim, 0, k)


_UNARY = ("tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "ceil", "round", "sign", "log1p", "expm1",
          "log2", "log10", "exp2", "square", "trunc", "frac", "erfc", "isnan", "isinf")  # fmt: skip
_ALSO = {"asin": ("arcsin",), "acos": ("arccos",), "atan": ("arctan",), "trunc": ("fix",), "sign": ("sgn",)}

FLOAT_OPS = (
    ("scale", scaled, "input like factor"),
    ("mask", masked, "input mask causal"),
    ("left_out", left_out, "mask"),
    ("guard", guarded, "input least"),
    ("guard", at_least, "input least"),
    ("repeat_heads", repeat_heads, "input like"),
    *((name, getattr(torch, name), "input", name, *_ALSO.get(name, ())) for name in _UNARY),
    ("selu", F.selu, "input", "selu"),
    ("celu", F.celu, "input alpha=1.0", "celu"),
    ("softsign", F.softsign, "input", "softsign"),
    ("softshrink", F.softshrink, "input lambd=0.5", "softshrink"),
    ("hardshrink", F.hardshrink, "input lambd=0.5", "hardshrink"),
    ("tanhshrink", F.tanhshrink, "input", "tanhshrink"),
    ("log_sigmoid", F.logsigmoid, "input", "logsigmoid", "log_sigmoid"),
    ("threshold", F.threshold, "input threshold value", "threshold", "_threshold"),
    ("glu", F.glu, "input dim=-1", "glu"),
    ("softmin", F.softmin, "input dim", "softmin"),
    ("topk", topk, "input k dim=-1 largest=True sorted=True", "topk"),
    ("sort", sorted_by, "input dim=-1 descending=False", "sort"),
    ("argsort", torch.argsort, "input dim=-1 descending=False", "argsort"),
    ("argmax", torch.argmax, "input dim=None keepdim=False", "argmax"),
    ("argmin", torch.argmin, "input dim=None keepdim=False", "argmin"),
    ("amax", torch.amax, "input dim=() keepdim=False", "amax"),
    ("amin", torch.amin, "input dim=() keepdim=False", "amin"),
    ("max", torch.max, "input dim keepdim=False"),
    ("min", torch.min, "input dim keepdim=False"),
    ("prod", torch.prod, "input dim keepdim=False", "prod"),
    ("any", torch.any, "input dim=None keepdim=False", "any"),
    ("all", torch.all, "input dim=None keepdim=False", "all"),
    ("logsumexp", torch.logsumexp, "input dim keepdim=False", "logsumexp"),
    ("var", variance, "input dim correction keepdim"),
    ("std", deviation, "input dim correction keepdim"),
    ("vector_norm", torch.linalg.vector_norm, "input ord=2 dim=None keepdim=False", "vector_norm", "linalg_vector_norm"),
    ("normalize", F.normalize, "input p=2.0 dim=1 eps=1e-12", "normalize"),
    ("cosine_similarity", F.cosine_similarity, "x1 x2 dim=1 eps=1e-08", "cosine_similarity"),
    ("einsum", torch.einsum, "equation operands"),
    ("pixel_shuffle", torch.pixel_shuffle, "input upscale_factor", "pixel_shuffle"),
    ("pixel_unshuffle", torch.pixel_unshuffle, "input downscale_factor", "pixel_unshuffle"),
    ("channel_shuffle", torch.channel_shuffle, "input groups", "channel_shuffle", "native_channel_shuffle"),
    ("grid_sample", F.grid_sample, "input grid mode='bilinear' padding_mode='zeros' align_corners=None", "grid_sample"),
    ("flip", torch.flip, "input dims", "flip"),
    ("repeat_interleave", torch.repeat_interleave, "input repeats dim=None", "repeat_interleave"),
    ("tile", torch.tile, "input dims", "tile"),
    ("addcmul", addcmul, "input tensor1 tensor2 value"),
    ("addcdiv", addcdiv, "input tensor1 tensor2 value"),
    ("lerp", torch.lerp, "input end weight", "lerp"),
    ("outer", torch.outer, "input vec2", "outer", "ger"),
    ("take", take, "input dim places"),
    ("remainder", torch.remainder, "input other", "remainder", "mod", "imod"),
    ("floor_divide", torch.floor_divide, "input other", "floor_divide", "floordiv", "ifloordiv"),
    ("fmod", torch.fmod, "input other", "fmod"),
    ("one_hot", F.one_hot, "indices num_classes", "one_hot"),
    ("local_response_norm", F.local_response_norm, "input size alpha=0.0001 beta=0.75 k=1.0", "local_response_norm"),
    ("adaptive_max_pool", F.adaptive_max_pool1d, "input output_size"),
    ("adaptive_max_pool", F.adaptive_max_pool2d, "input output_size"),
    ("instance_norm", F.instance_norm,
     "input running_mean=None running_var=None weight=None bias=None use_input_stats=True momentum=0.1 eps=1e-05",
     "instance_norm"),
)  # fmt: skip
"""(kind, callable, parameters, names that spell it)."""

MOVES = (
    ("reshape", torch.unflatten, "input dim sizes", "unflatten"),
    ("transpose", torch.movedim, "input source destination", "movedim", "moveaxis"),
    ("squeeze", squeeze_all, "input"),
    ("reshape", torch.Tensor.view_as, "input like", "view_as", "reshape_as"),
    ("expand", torch.Tensor.expand_as, "input like", "expand_as"),
    ("windows", torch.Tensor.unfold, "input dimension size step", "unfold"),
)
"""As FLOAT_OPS, for ops that only move codes and may share storage."""
