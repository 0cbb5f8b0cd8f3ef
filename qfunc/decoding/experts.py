"""Mixtures of experts of `transformers`, whose weights are stacked, as one linear layer for each expert and projection."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy, deepcopy
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_LAYOUT = ("has_gate", "has_bias", "is_transposed", "down_proj")
"""The attributes that `transformers.integrations.use_experts_implementation` gives to stacked experts, and what they hold."""


def with_separate_experts(model: nn.Module) -> nn.Module:
    """Return the model, in which linear layers replace the stacked weights of experts; it takes the place of its argument.

    The weights [E, out, in] of E experts become `<experts>.<e>.gate_up_proj` (`up_proj`, without gates) and
    `<experts>.<e>.down_proj`.  Each token x with the routing weights r goes through every expert:

        y = sum over e of r_e expert_e(x),   r_e = 0 for the experts that were not chosen,

    in the order of the experts, as `transformers` adds them with the implementation "eager".  No size in the graph depends on
    the values of a tensor, and there are E / k times the products of k chosen experts.

    Source: transformers 5.23, integrations/moe.py.
    """
    for path, module in list(model.named_modules()):
        if all(hasattr(module, name) for name in _LAYOUT) and getattr(module.down_proj, "ndim", 0) == 3:
            if not path:
                return Experts(module)
            holder, _, name = path.rpartition(".")
            setattr(model.get_submodule(holder), name, Experts(module))
    return model


class Experts(nn.ModuleList):
    """The experts of a layer: (x [T, K], chosen [T, k], weights [T, k]) -> [T, K]."""

    def __init__(self, stacked: Any) -> None:
        ups, downs = (list(_linears(stacked, name)) for name in (_up(stacked), "down_proj"))
        rest, stacks = copy(stacked), (_up(stacked), "down_proj")
        rest._parameters = {k: v for k, v in stacked._parameters.items() if k.removesuffix("_bias") not in stacks}
        super().__init__(_Expert(rest, up, down) for up, down in zip(ups, downs, strict=True))

    def forward(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """Return the sum of the experts' results, times their weights."""
        each = (F.one_hot(chosen, len(self)).to(weights.dtype) * weights[..., None]).sum(-2)  # one term is not 0
        parts = (expert(x) * each[:, e : e + 1] for e, expert in enumerate(self))
        total: Tensor = reduce(torch.add, parts)
        return total.to(x.dtype)


class _Expert(nn.Module):
    # `gating` is the module of the stacked experts without their weights.
    def __init__(self, rest: Any, up: nn.Linear, down: nn.Linear) -> None:
        super().__init__()
        self.gating: Any = copy(rest)
        self.gating._modules = {k: deepcopy(m) for k, m in rest._modules.items()}  # each expert's ops have paths of their own
        self.add_module(_up(rest), up)
        self.down_proj = down

    def forward(self, x: Tensor) -> Tensor:
        y = self.get_submodule(_up(self.gating))(x)
        y = self.down_proj(self.gating._apply_gate(y) if self.gating.has_gate else self.gating.act_fn(y))
        normed: Tensor = self.gating.post_expert_norm(y) if getattr(self.gating, "has_post_expert_norm", False) else y
        return normed


def _up(stacked: Any) -> str:
    return "gate_up_proj" if stacked.has_gate else "up_proj"


def _linears(stacked: Any, name: str) -> Iterator[nn.Linear]:
    weights = getattr(stacked, name).detach()
    biases = getattr(stacked, f"{name}_bias").detach() if stacked.has_bias else [None] * len(weights)
    for weight, bias in zip(weights.transpose(1, 2) if stacked.is_transposed else weights, biases, strict=True):
        made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
        made.weight = nn.Parameter(weight)
        if bias is not None:
            made.bias = nn.Parameter(bias)
        yield made
