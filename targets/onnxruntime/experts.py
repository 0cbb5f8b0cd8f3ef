"""Mixtures of experts that a runtime computes as one op."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from attrs import field, frozen
from torch import Tensor

from qfunc.arithmetic.block_weights import stored_unsigned
from qfunc.arithmetic.computation import Computation, Constant, Real
from qfunc.arithmetic.dynamic_product import DynamicProduct
from qfunc.arithmetic.unit import Operand, UnitSpec
from qfunc.specs._check import integer
from qfunc.specs._values import readable
from qfunc.specs.arithmetic.lanes import RegisterLanes
from qfunc.targets.onnxruntime.expert_sums import expert_sums

_Layer = tuple[Operand, Operand | None]
_Stack = tuple[tuple[Constant | None, ...], tuple[int, int]]


@readable
@frozen
class ExpertSums:
    """y = sum over e of r_e w_e(g l), with the products g and l of a token x and the gate and up weights, g = v / (1 + e^-v).

    An expert e computes the tokens whose weight r_e exceeds 2^-26.6 (1e-8) and no others.  Its products are those of the kernel
    of the linear layers; the rows of its first weight are a gate and an up channel in turns.  v has the logistic
    1 / (1 + e^-v), and e^v / (1 + e^v) if it is negative, by the C library's exponential; each step is rounded to float32.

    r_e w_e is rounded, and added expert by expert.  With fewer experts that have tokens than `threads`, or one thread, those
    with few tokens come first.  Else those with many do; in turns they go to the threads, whose sums are then added in order.
    Experts with equally many tokens are in the order that the C++ library's sort leaves them in.

    Source: ONNX Runtime, contrib_ops/cpu/moe/moe_quantization_cpu.cc; measured on onnxruntime 1.31.

    >>> ExpertSums()
    ExpertSums()
    """

    threads: int = field(default=2, validator=integer(1))

    def takes(self, arithmetic: object) -> bool:
        """Return True for the products that the op computes."""
        return isinstance(arithmetic, DynamicProduct) and isinstance(arithmetic.lanes, RegisterLanes)

    def refuses(self, unit: UnitSpec) -> str:
        """Return the reason for other ops than mixtures."""
        return "" if unit.kind == "experts" else "it is no mixture of experts"

    def kernel(self, unit: UnitSpec) -> Computation:
        """Return the real values of a mixture, with the weights of the experts stacked."""
        if unit.kind != "experts":
            raise unit.unfit(self, ("experts",))
        x, shares, ups, downs = (unit.arguments[name] for name in ("input", "shares", "up", "down"))
        (up, form), (down, _) = _stacked(ups, "up"), _stacked(downs, "down")
        return Computation(expert_sums, (Real(x), Real(shares), up, down, form, self.threads))


def _stacked(layers: Sequence[_Layer], role: str) -> _Stack:
    held, bits = list[list[Tensor]](), 0
    for weight, bias in layers:
        tensors, bits = stored_unsigned(weight)
        parts = [*tensors, *([] if bias is None else [bias.real])]
        held.append([_in_turns(t) for t in parts] if role == "up" else parts)
    stacks = [torch.stack(part).contiguous() for part in zip(*held, strict=True)]
    names = ("codes", "scale", "zero_point", "bias")
    stored = [Constant(t, f"{role}_{n}") for t, n in zip(stacks, names, strict=False)]
    block = stacks[0].shape[2] // stacks[1].shape[2]
    return (*stored, *[None] * (len(names) - len(stored))), (block, bits)


def _in_turns(rows: Tensor) -> Tensor:
    # A gate and an up channel in turns.
    return torch.stack(rows.chunk(2), 1).reshape(rows.shape)


__all__ = ["ExpertSums"]
