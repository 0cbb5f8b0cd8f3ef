"""Emulate mixtures of experts that a runtime computes as one op."""

from __future__ import annotations

import torch
from torch import Tensor, fx

from qfunc.emulation.context import UnitContext
from qfunc.emulation.products.registers import stored_weight
from qfunc.graph.constants import read_attr
from qfunc.numerics.sums.experts import expert_sums
from qfunc.ops.node import slots
from qfunc.specs import ExpertSums

__all__ = ["stacked_experts"]


def stacked_experts(job: UnitContext, arithmetic: ExpertSums) -> fx.Node:
    """Return the node of a mixture, whose experts' weights are stacked."""
    mixture = job.partition.mixtures[job.unit.group.output]
    ups, downs = ([getattr(e, role) for e in mixture.experts] for role in ("up", "down"))
    (up, form), (down, _) = _stacked(job, ups, "up"), _stacked(job, downs, "down")
    x, shares = job.real(mixture.input, mixture.experts[0].up), job.inputs[mixture.shares.name].node
    return job.emitter.call(expert_sums, x, shares, up, down, form, arithmetic.threads, name=job.name, result=True)


def _stacked(job: UnitContext, layers: list[fx.Node], role: str) -> tuple[tuple[fx.Node | None, ...], tuple[int, int]]:
    held, bits = list[list[Tensor]](), 0
    for layer in layers:
        tensors, bits = stored_weight(job, layer)
        bias = dict(slots(layer)).get("bias")
        parts = [*tensors, *([] if bias is None else [read_attr(job.partition.network, bias).detach().float()])]
        held.append([_in_turns(t) for t in parts] if role == "up" else parts)
    stacks = [torch.stack(part).contiguous() for part in zip(*held, strict=True)]
    names = ("codes", "scale", "zero_point", "bias")
    nodes = [job.emitter.constant(t, f"{job.unit.path}.{role}_{n}") for t, n in zip(stacks, names, strict=False)]
    block = stacks[0].shape[2] // stacks[1].shape[2]
    return (*nodes, *[None] * (len(names) - len(nodes))), (block, bits)


def _in_turns(rows: Tensor) -> Tensor:
    # A gate and an up channel in turns.
    return torch.stack(rows.chunk(2), 1).reshape(rows.shape)
