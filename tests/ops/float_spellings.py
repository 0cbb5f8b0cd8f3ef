"""Spellings of ops that compute in float or move blocks; `test_capture_spellings` tries them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.ops.spellings import Group, Spelling, copied, w

_UNARY = {
    "tan": (), "asin": ("arcsin",), "acos": ("arccos",), "atan": ("arctan",), "sinh": (), "cosh": (), "asinh": (), "acosh": (),
    "atanh": (), "ceil": (), "round": (), "sign": (), "log1p": (), "expm1": (), "log2": (), "log10": (), "exp2": (),
    "square": (), "trunc": ("fix",), "frac": (), "erfc": (), "isnan": (), "isinf": (),
}  # fmt: skip


def _both(name: str) -> tuple[Spelling, ...]:
    return (lambda m, x: getattr(torch, name)(x), lambda m, x: getattr(x, name)())


def _group(kind: str, *spellings: Spelling, shape: tuple[int, ...] = (3, 4)) -> Group:
    return Group(kind, shape, spellings)


FLOAT_GROUPS: dict[str, Group] = {
    **{k: _group(k, *(s for name in (k, *also) for s in _both(name))) for k, also in _UNARY.items()},
    "selu": _group("selu", lambda m, x: F.selu(x), lambda m, x: torch.selu(x)),
    "celu": Group("celu", (3, 4), (
        lambda m, x: F.celu(x, 0.5), lambda m, x: torch.celu(x), lambda m, x: torch.celu(x, alpha=0.7),
        lambda m, x: F.celu(copied(x), 2, True), lambda m, x: F.celu_(copied(x)), lambda m, x: torch.celu_(copied(x), 0.3),
        lambda m, x: m.a(x), lambda m, x: m.b(copied(x)),
    ), lambda: {"a": nn.CELU(0.7), "b": nn.CELU(inplace=True)}),
    "softshrink": _group("softshrink", lambda m, x: F.softshrink(x, 0.2)),
    "hardshrink": _group("hardshrink", lambda m, x: F.hardshrink(x, 0.2), lambda m, x: x.hardshrink()),
    "log_sigmoid": _group("log_sigmoid", lambda m, x: F.logsigmoid(x)),
    "threshold": _group("threshold", lambda m, x: F.threshold(x, 0.1, -2.0), lambda m, x: torch.threshold(x, 0.1, -2.0)),
    "glu": _group("glu", lambda m, x: F.glu(x), lambda m, x: F.glu(x, 1)),
    "argmax": _group("argmax", lambda m, x: x.argmax(), lambda m, x: x.argmax(1), lambda m, x: torch.argmax(x, 0, True)),
    "argmin": _group("argmin", lambda m, x: x.argmin(-1), lambda m, x: torch.argmin(x, dim=0)),
    "argsort": _group("argsort", lambda m, x: x.argsort(), lambda m, x: torch.argsort(x, 0, True)),
    "amax": _group("amax", lambda m, x: x.amax(1), lambda m, x: torch.amax(x, (0, 1), True), lambda m, x: x.max()),
    "amin": _group("amin", lambda m, x: x.amin(1), lambda m, x: torch.amin(x, 0), lambda m, x: torch.min(x)),
    "prod": _group("prod", lambda m, x: x.prod(1), lambda m, x: torch.prod(x, 0, True)),
    "any": _group("any", lambda m, x: (x > 0).any(1), lambda m, x: torch.any(x > 3)),
    "all": _group("all", lambda m, x: (x > 0).all(1), lambda m, x: torch.all(x < 9)),
    "logsumexp": _group("logsumexp", lambda m, x: x.logsumexp(1), lambda m, x: torch.logsumexp(x, (0, 1), True)),
    "var": _group("var", lambda m, x: x.var(1), lambda m, x: torch.var(x, 1, unbiased=False), lambda m, x: x.var(),
                  lambda m, x: x.var(dim=(0, 1), correction=0, keepdim=True), lambda m, x: x.var(1, True, True)),
    "std": _group("std", lambda m, x: x.std(1), lambda m, x: torch.std(x, 0, keepdim=True), lambda m, x: x.std(False)),
    "vector_norm": _group("vector_norm", lambda m, x: torch.linalg.vector_norm(x, dim=1)),
    "cosine_similarity": Group("cosine_similarity", (3, 4), (lambda m, x: F.cosine_similarity(x, m.w),),
                               lambda: {"w": w(3, 4)}),
    "pixel_shuffle": _group("pixel_shuffle", lambda m, x: F.pixel_shuffle(x, 2), shape=(2, 8, 3, 5)),
    "pixel_unshuffle": _group("pixel_unshuffle", lambda m, x: F.pixel_unshuffle(x, 2), shape=(2, 3, 4, 6)),
    "channel_shuffle": _group("channel_shuffle", lambda m, x: F.channel_shuffle(x, 2), shape=(2, 6, 3, 5)),
    "grid_sample": Group("grid_sample", (2, 3, 4, 5), (
        lambda m, x: F.grid_sample(x, m.w, align_corners=False),
        lambda m, x: F.grid_sample(x, m.w, "nearest", "border", True),
    ), lambda: {"w": w(2, 3, 7, 2)}),
    "flip": _group("flip", lambda m, x: x.flip(0), lambda m, x: x.flip(0, 1), lambda m, x: torch.flip(x, (1,))),
    "repeat_interleave": _group("repeat_interleave", lambda m, x: x.repeat_interleave(2, 1),
                                lambda m, x: torch.repeat_interleave(x, 3, dim=0)),
    "tile": _group("tile", lambda m, x: x.tile(2, 1), lambda m, x: torch.tile(x, (2,))),
    "remainder": _group("remainder", lambda m, x: x % 0.7, lambda m, x: torch.remainder(x, 0.7), lambda m, x: x.remainder(2)),
    "floor_divide": _group("floor_divide", lambda m, x: x // 0.7, lambda m, x: torch.floor_divide(x, 0.7),
                           lambda m, x: torch.div(x, 0.7, rounding_mode="floor"),
                           lambda m, x: x.div(0.7, rounding_mode="floor")),
    "fmod": _group("fmod", lambda m, x: x.fmod(0.7), lambda m, x: torch.fmod(x, 0.7)),
    "addcmul": _group("addcmul", lambda m, x: torch.addcmul(x, x, x, value=0.5), lambda m, x: x.addcmul(x, x)),
    "addcdiv": _group("addcdiv", lambda m, x: torch.addcdiv(x, x, x.exp(), value=0.5)),
    "scaled_add": _group("scaled_add", lambda m, x: torch.add(x, x.exp(), alpha=2), lambda m, x: x.sub(x.exp(), alpha=0.5),
                         lambda m, x: torch.rsub(x, x.exp(), alpha=3), lambda m, x: x.clone().add_(x.exp(), alpha=-2)),
    "trunc_divide": _group("trunc_divide", lambda m, x: torch.div(x, 0.7, rounding_mode="trunc"),
                           lambda m, x: x.div(x.exp(), rounding_mode="trunc")),
    "bound": _group("bound", lambda m, x: torch.clamp(x, x.sin(), x.exp()), lambda m, x: x.clamp(min=x.sin()),
                    lambda m, x: x.clamp_max(x.sin()), lambda m, x: x.clamp(max=x.sin())),
    "round_decimals": _group("round_decimals", lambda m, x: torch.round(x, decimals=1), lambda m, x: x.round(decimals=-1)),
    "nan_to_num": _group("nan_to_num", lambda m, x: torch.nan_to_num(x, 1.0), lambda m, x: x.nan_to_num(posinf=3.0)),
    **{k: _group(k, lambda m, x, k=k: getattr(torch, k)(x, x.exp())) for k in ("logaddexp", "hypot", "atan2", "xlogy")},
    "im2col": _group("im2col", lambda m, x: F.unfold(x, 2), lambda m, x: F.unfold(x, (2, 1), 1, (1, 0), 2),
                     lambda m, x: F.unfold(x, kernel_size=2, stride=(1, 2)), shape=(2, 3, 5, 4)),
    "col2im": _group("col2im", lambda m, x: F.fold(x, (4, 3), 2), lambda m, x: F.fold(x, output_size=(4, 3), kernel_size=2),
                     shape=(2, 8, 6)),
    "windows": _group("windows", lambda m, x: x.unfold(1, 2, 1), lambda m, x: x.unfold(dimension=-1, size=3, step=2)),
    "antialias": _group("antialias", lambda m, x: F.interpolate(x, (3, 2), mode="bilinear", antialias=True),
                        lambda m, x: F.interpolate(x, None, 0.5, "bicubic", False, None, True), shape=(2, 3, 6, 5)),
    "lerp": _group("lerp", lambda m, x: torch.lerp(x, x.exp(), 0.3), lambda m, x: x.lerp(x.exp(), 0.3)),
    "outer": Group("outer", (3,), (lambda m, x: torch.outer(x, m.w), lambda m, x: x.outer(m.w)), lambda: {"w": w(4)}),
    "one_hot": _group("one_hot", lambda m, x: F.one_hot(x.argmax(1), 4)),
    "einsum": _group("einsum", lambda m, x: torch.einsum("ab,cb->ac", x, x), lambda m, x: torch.einsum("a b -> b a", x)),
    "stack": _group("stack", lambda m, x: torch.stack([x, x.exp()], 1), lambda m, x: torch.stack((x, x))),
    "unflatten": _group("reshape", lambda m, x: x.unflatten(1, (2, 2)), lambda m, x: torch.unflatten(x, -1, (2, 2))),
    "movedim": _group("transpose", lambda m, x: x.movedim(0, 1), lambda m, x: torch.moveaxis(x, (0, 1), (1, 2)),
                      shape=(2, 3, 4)),
    "squeeze": _group("squeeze", lambda m, x: x.squeeze(), lambda m, x: torch.squeeze(x), shape=(2, 1, 3)),
    "cast to another's": _group("cast", lambda m, x: (x > 0).type_as(x), lambda m, x: (x > 0).to(x.dtype)),
}  # fmt: skip

ELSEWHERE = {
    "lstm", "gru", "rnn", "topk", "sort", "max", "min", "scale", "mask", "masked_softmax", "left_out", "guard",
    "repeat_heads", "normalize", "softsign", "tanhshrink", "softmin", "local_response_norm", "adaptive_max_pool", "take",
    "var_mean", "std_mean", "lp_pool", "cached_attention",
}  # fmt: skip
"""Kinds with several results, of attention, or that torch.export spells in other ops: tests/networks deploys them."""
