"""Every spelling of the ops on positions, masks and types; `test_capture_spellings` tries them."""

from __future__ import annotations

import operator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.ops.spellings import Group, copied, w


def written(x: Tensor, places, values) -> Tensor:
    """Return a copy with values at some places."""
    x = copied(x)
    x[places] = values
    return x


INDEX_GROUPS: dict[str, Group] = {
    "cast": Group(
        "cast",
        (2, 3),
        (
            lambda m, x: x.to(torch.float64),
            lambda m, x: x.double(),
            lambda m, x: x.long(),
            lambda m, x: x.bool(),
            lambda m, x: (x > 0).float(),
            lambda m, x: (x > 0).to(dtype=torch.int32),
            lambda m, x: x.type(torch.float64),
        ),
    ),
    "arange": Group(
        "arange",
        (3, 4),
        (
            lambda m, x: torch.arange(x.shape[1]),
            lambda m, x: torch.arange(1, x.shape[0], device=x.device),
            lambda m, x: torch.arange(1, x.shape[1] * 2, 3, dtype=torch.float32),
            lambda m, x: torch.arange(end=x.shape[1]),
            lambda m, x: torch.arange(x.size(0), 0, step=-1),
        ),
    ),
    "full": Group(
        "full",
        (3, 4),
        (
            lambda m, x: torch.ones((2, x.shape[1])),
            lambda m, x: torch.ones(x.shape[1], dtype=torch.bool),
            lambda m, x: torch.full((x.size(0), 3), 7),
            lambda m, x: torch.full((2, x.shape[1]), -1.5),
            lambda m, x: torch.full(size=(x.size(1),), fill_value=True),
            lambda m, x: x.new_zeros(3),
            lambda m, x: x.new_ones((2, 3), dtype=torch.int64),
            lambda m, x: x.new_full((2,), 3),
            lambda m, x: torch.zeros_like(x),
            lambda m, x: torch.ones_like(x, dtype=torch.bool),
            lambda m, x: torch.full_like(x, 2.5),
        ),
    ),
    "index": Group(
        "index",
        (3, 4),
        (
            lambda m, x: torch.index_select(x, 1, m.p),
            lambda m, x: x.index_select(0, index=m.p),
            lambda m, x: x.index_select(-1, m.p),
        ),
        lambda: {"p": nn.Buffer(torch.tensor([2, 0, 1, 1]))},
    ),
    "gather": Group(
        "gather",
        (3, 4),
        (lambda m, x: torch.gather(x, 1, m.p), lambda m, x: x.gather(dim=0, index=m.p)),
        lambda: {"p": nn.Buffer(torch.tensor([[2, 0], [1, 1]]))},
    ),
    "index_put": Group(
        "index_put",
        (3, 4),
        (
            lambda m, x: x.index_copy(1, m.p, m.w),
            lambda m, x: torch.index_copy(x, -1, index=m.p, source=m.w),
            lambda m, x: copied(x).index_copy_(1, m.p, m.w),
            lambda m, x: torch.index_put(x, (m.p,), m.w[:1, :1]),
            lambda m, x: copied(x).index_put_((m.p,), m.w[0, 0]),
            lambda m, x: written(x, (slice(None), m.p), m.w),
            lambda m, x: written(x, m.p, 2.5),
            lambda m, x: torch.scatter(x, 1, m.q, m.w),
            lambda m, x: x.scatter(dim=-1, index=m.q, src=m.w),
            lambda m, x: copied(x).scatter_(1, m.q, m.w),
        ),
        lambda: {
            "p": nn.Buffer(torch.tensor([2, 0])),
            "w": w(3, 2),
            "q": nn.Buffer(torch.tensor([[2, 0], [1, 3], [0, 2]])),
        },
    ),
    "where": Group(
        "where",
        (3, 4),
        (
            lambda m, x: torch.where(x > 0, x, 0.5),
            lambda m, x: torch.where(x > 0, m.w, x),
            lambda m, x: x.where(x > 0, m.w),
            lambda m, x: x.masked_fill(x > 0, float("-inf")),
            lambda m, x: torch.masked_fill(x, mask=x > 0, value=1.5),
            lambda m, x: copied(x).masked_fill_(x > 0, 0.5),
        ),
        lambda: {"w": w(3, 4)},
    ),
    "roll": Group(
        "roll",
        (3, 4),
        (lambda m, x: x.roll(1, 1), lambda m, x: torch.roll(x, shifts=(-1, 2), dims=(0, 1)), lambda m, x: torch.roll(x, 2, -1)),
    ),
    "cumsum": Group(
        "cumsum",
        (3, 4),
        (
            lambda m, x: torch.cumsum(x, 1),
            lambda m, x: x.cumsum(dim=-1),
            lambda m, x: (x > 0).cumsum(0),
            lambda m, x: (x > 0).cumsum(0, dtype=torch.float32),
        ),
    ),
    "difference": Group(
        "difference",
        (3, 4),
        (lambda m, x: torch.diff(x), lambda m, x: x.diff(dim=0), lambda m, x: torch.diff(x, 1, 1, prepend=x[:, :1])),
    ),
    "detach": Group("detach", (3, 4), (lambda m, x: x.detach(), lambda m, x: torch.detach(x))),
    "tril": Group("tril", (3, 4), (lambda m, x: x.tril(), lambda m, x: torch.tril(x, 1), lambda m, x: x.tril(diagonal=-1))),
    "triu": Group("triu", (3, 4), (lambda m, x: x.triu(), lambda m, x: torch.triu(x > 0, diagonal=1))),
    "repeat": Group(
        "repeat", (3, 4), (lambda m, x: x.repeat(1, 2), lambda m, x: x.repeat((2, 1, 3)), lambda m, x: x.repeat(2, x.shape[1]))
    ),
    "compare": Group(
        "compare",
        (3, 4),
        (
            lambda m, x: x > 0,
            lambda m, x: x >= m.w,
            lambda m, x: torch.lt(x, 0.5),
            lambda m, x: x.le(m.w),
            lambda m, x: x == 0,
            lambda m, x: torch.ne(x, other=0),
        ),
        lambda: {"w": w(3, 4)},
    ),
    "logic": Group(
        "logic",
        (3, 4),
        (
            lambda m, x: (x > 0) & (x < 1),
            lambda m, x: (x > 0) | m.b,
            lambda m, x: (x > 0) ^ m.b,
            lambda m, x: torch.logical_and(x > 0, m.b),
            lambda m, x: torch.logical_or(x > 0, m.b),
            lambda m, x: torch.bitwise_and(x > 0, m.b),
            lambda m, x: operator.iand(x > 0, m.b),
        ),
        lambda: {"b": nn.Buffer(torch.tensor([True, False, True, True]))},
    ),
    "not": Group(
        "not", (3, 4), (lambda m, x: ~(x > 0), lambda m, x: torch.logical_not(x > 0), lambda m, x: (x > 0).bitwise_not())
    ),
    "sin": Group("sin", (3, 4), (lambda m, x: x.sin(), lambda m, x: torch.sin(x))),
    "cos": Group("cos", (3, 4), (lambda m, x: x.cos(), lambda m, x: torch.cos(x))),
    "log": Group("log", (3, 4), (lambda m, x: x.log(), lambda m, x: torch.log(x))),
    "erf": Group("erf", (3, 4), (lambda m, x: x.erf(), lambda m, x: torch.erf(x))),
    "floor": Group("floor", (3, 4), (lambda m, x: x.floor(), lambda m, x: torch.floor(x))),
    "reciprocal": Group("reciprocal", (3, 4), (lambda m, x: x.reciprocal(), lambda m, x: torch.reciprocal(x))),
    "rms_norm": Group(
        "rms_norm",
        (3, 4),
        (lambda m, x: m.n(x), lambda m, x: F.rms_norm(x, (4,)), lambda m, x: F.rms_norm(x, [4], m.n.weight, eps=0.1)),
        lambda: {"n": nn.RMSNorm(4)},
    ),
    "dense": Group(
        "linear",
        (3, 4),
        (lambda m, x: torch.addmm(m.b, x, m.w), lambda m, x: torch.addmm(input=m.b, mat1=x, mat2=m.w)),
        lambda: {"w": w(4, 5), "b": w(5)},
    ),
}
