"""Mixtures of experts with weights in blocks that a runtime computes as one op, in the order of sums of ONNX Runtime's QMoE."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from attrs import field, frozen
from torch import Tensor

from qfunc.arithmetic.block_weights import stored_unsigned
from qfunc.arithmetic.computation import Computation, Constant, Real
from qfunc.arithmetic.dynamic_product import DynamicProduct
from qfunc.arithmetic.unit import Operand, UnitSpec
from qfunc.numerics.libm import expf
from qfunc.numerics.sums.blocks import block_product
from qfunc.specs._check import integer
from qfunc.specs._values import readable
from qfunc.specs.arithmetic.lanes import RegisterLanes
from qfunc.targets.onnxruntime.introsort import introsort

_Layer = tuple[Operand, Operand | None]
_Stack = tuple[tuple[Constant | None, ...], tuple[int, int]]
_LEAST = 1e-8
Weight = tuple[Tensor, Tensor, Tensor, Tensor | None]
"""Codes [E, N, K], scales and zero points [E, N, B], and a bias [E, N] or None."""


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
        return Computation(_expert_sums, (Real(x), Real(shares), up, down, form, self.threads))


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


def _expert_sums(x: Tensor, shares: Tensor, up: Weight, down: Weight, form: tuple[int, int], threads: int) -> Tensor:
    """Return the sums over experts of their shares [T, E] times their results, for tokens x [T, K].

    Of the outputs of `up`, an even one is a gate and the next one its factor.  See `ExpertSums`.

    Args:
        x, shares: As above.
        up, down: The weights of the experts.
        form: The block, and the bits, 4 or 8.
        threads: The threads of the session.

    >>> codes, ones = torch.full((1, 32, 16), 9.0), torch.ones(1, 32, 1)
    >>> up, down = (codes, ones, ones * 8, None), (codes[:, :16], ones[:, :16], ones[:, :16] * 8, None)
    >>> _expert_sums(torch.full((1, 16), 0.5), torch.ones(1, 1), up, down, (16, 4), 2)[0, 0].item()
    1023.6572265625
    """
    routed = shares > _LEAST
    counts = routed.sum(0).tolist()
    each = [e for e, count in enumerate(counts) if count]
    lanes = 1 if len(each) < threads else min(len(each), threads)
    ordered = introsort(each, lambda a, b: counts[a] < counts[b] if lanes == 1 else counts[a] > counts[b])
    sums = [torch.zeros_like(x, dtype=torch.float32) for _ in range(max(1, lanes))]
    for place, e in enumerate(ordered):
        rows, total = routed[:, e].nonzero()[:, 0], sums[place % lanes]
        y = _product(_gated(_product(x[rows].float(), up, e, form)), down, e, form)
        total[rows] += shares[rows, e, None] * y
    y = torch.zeros_like(sums[0])
    for total in sums:
        y = y + total
    return y


def _product(x: Tensor, weight: Weight, e: int, form: tuple[int, int]) -> Tensor:
    codes, scale, zero_point, bias = weight
    return block_product(x, codes[e], scale[e], zero_point[e], None if bias is None else bias[e], *form)


def _gated(y: Tensor) -> Tensor:
    gate, factor = y[:, 0::2], y[:, 1::2]
    power = expf(-gate.abs())
    return gate * torch.where(gate >= 0, 1 / (1 + power), power / (1 + power)) * factor
