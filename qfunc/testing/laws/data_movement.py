"""The law of commuting ops: Q(op(x)) = op(Q(x)), bit for bit, for each kind that a target lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from qfunc.numerics.affine import fake_quantize
from qfunc.numerics.qparams import from_range
from qfunc.ops.float_ops import repeat_heads
from qfunc.specs import Cases, Int, PerTensor, Scheme, Target

ONE_OF_EACH: dict[str, Callable[[Tensor], Any]] = {
    "conv": lambda x: F.conv2d(x, torch.full((2, 3, 1, 1), 0.3)),
    "conv_transpose": lambda x: F.conv_transpose2d(x, torch.full((3, 2, 1, 1), 0.3)),
    "linear": lambda x: F.linear(x, torch.full((5, 6), 0.3)),
    "matmul": lambda x: x @ torch.full((6, 5), 0.3),
    "add": lambda x: x + 0.37 * x.flip(0),
    "sub": lambda x: x - 0.37 * x.flip(0),
    "mul": lambda x: x * x.flip(0),
    "div": lambda x: x / 3.0,
    "pow": lambda x: x**2,
    "concat": lambda x: torch.cat([x, x.flip(1)], 1),
    "stack": lambda x: torch.stack([x, x.flip(1)]),
    "max_pool": lambda x: F.max_pool2d(x, 2, 1, 1),
    "avg_pool": lambda x: F.avg_pool2d(x, 3),
    "global_avg_pool": lambda x: x.mean((2, 3)),
    "adaptive_avg_pool": lambda x: F.adaptive_avg_pool2d(x, 2),
    "relu": F.relu,
    "clip": lambda x: x.clamp(-0.77, 1.1),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.3),
    "prelu": lambda x: torch.prelu(x, torch.tensor([0.3])),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "gelu": F.gelu,
    "silu": F.silu,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "elu": F.elu,
    "softplus": F.softplus,
    "mish": F.mish,
    "softmax": lambda x: torch.softmax(x, 1),
    "log_softmax": lambda x: torch.log_softmax(x, 1),
    "layer_norm": lambda x: F.layer_norm(x, (6,)),
    "group_norm": lambda x: F.group_norm(x, 1),
    "batch_norm": lambda x: F.batch_norm(x, torch.full((3,), 0.2), torch.full((3,), 0.7)),
    "instance_norm": F.instance_norm,
    "sdpa": lambda x: F.scaled_dot_product_attention(x, x, x),
    "reshape": lambda x: x.reshape(2, -1, 6),
    "flatten": lambda x: x.flatten(1),
    "transpose": lambda x: x.permute(0, 3, 1, 2),
    "squeeze": lambda x: x[:, :1].squeeze(1),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "slice": lambda x: x[:, 1:, ::2],
    "split": lambda x: torch.cat(torch.split(x, 4, 2)[:1]),
    "chunk": lambda x: torch.cat(torch.chunk(x, 3, 3)),
    "expand": lambda x: x[:, :1].expand(-1, 4, -1, -1),
    "pad": lambda x: F.pad(x, (1, 2, 0, 1)),
    "resize": lambda x: F.interpolate(x, scale_factor=2.0, mode="nearest"),
    "mean": lambda x: x.mean(1),
    "sum": lambda x: x.sum(1),
    "exp": torch.exp,
    "sqrt": lambda x: x.abs().sqrt(),
    "rsqrt": lambda x: (x.abs() + 0.1).rsqrt(),
    "neg": torch.neg,
    "abs": torch.abs,
    "unbind": lambda x: torch.stack(x.unbind(1)),
    "minimum": lambda x: torch.minimum(x, x.flip(1)),
    "maximum": lambda x: torch.maximum(x, x.flip(1)),
    "repeat_heads": lambda x: repeat_heads(x, torch.zeros(6, 1, 1)),
    "repeat": lambda x: x.repeat(1, 2, 1, 1),
    "tile": lambda x: x.tile((2, 1)),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 1),
    "take": lambda x: x[:, torch.tensor([2, 0])],
    "flip": lambda x: x.flip(2),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x[:, :1].expand(-1, 4, -1, -1), 2),
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(x[:, :, :4], 2),
    "channel_shuffle": lambda x: F.channel_shuffle(x, 3),
}
"""One op of each kind, on a tensor of shape [2, 3, 5, 6]."""


def commuting_ops_commute(target: Target) -> None:
    """Check Q(op(x)) = op(Q(x)) for every kind in `commuting` and every per-tensor scheme that rules give activations."""
    own = {op.name: op.behaves_like for op in target.ops}
    x = 2.3 * torch.randn((2, 3, 5, 6), generator=torch.Generator().manual_seed(0))  # partly outside the range
    for scheme in dict.fromkeys(_schemes(target)):
        qparams = from_range(torch.tensor(-2.1), torch.tensor(3.3), scheme)
        for kind in target.commuting:
            op = ONE_OF_EACH.get(own.get(kind) or kind)
            if op is None and kind in own:
                continue  # a user-defined op that behaves like no built-in one
            assert op is not None, f"{kind!r} is listed as commuting, but is not an op on one float tensor"
            after, before = fake_quantize(op(x), qparams, scheme), op(fake_quantize(x, qparams, scheme))
            differ = int((after != before).sum())
            found = f"Q({kind}(x)) is not {kind}(Q(x)) for {differ} of {after.numel()} elements with {scheme!r}"
            assert not differ, f"{kind!r} is listed as commuting: {found}"


def _schemes(target: Target) -> Iterator[Scheme]:
    for rule in target.rules:
        for value in (rule.input, rule.output):
            values = (*(c[1] for c in value.cases), value.default) if isinstance(value, Cases) else (value,)
            for candidate in values:
                if (
                    isinstance(candidate, Scheme)
                    and isinstance(candidate.format, Int)
                    and isinstance(candidate.scale.shared, PerTensor)
                ):
                    yield candidate


__all__ = ["commuting_ops_commute"]
