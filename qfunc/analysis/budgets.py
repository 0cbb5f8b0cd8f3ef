"""Budgets for mixed precision: memory, bit operations or measured time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

from attrs import field, frozen

from qfunc.analysis.least_loss import minimize
from qfunc.analysis.operations.quantized_weights import Weight
from qfunc.errors import SpecError
from qfunc.specs._check import number


class Budget(Protocol):
    """A cost that adds up over weights, and its limit."""

    unit: str

    def cost(self, weight: Weight, bits: int) -> float:
        """Return the cost of one weight with a number of bits."""
        ...

    def limit(self, weights: Sequence[Weight]) -> float:
        """Return the largest total cost of all weights."""
        ...


@frozen
class SizeBudget:
    """Memory: sum n_l b_l <= mean_bits sum n_l over weights of n_l elements in b_l bits.

    Args:
        mean_bits: The mean number of bits of an element, above 0.
    Raises:
        SpecError: a number out of range.

    >>> SizeBudget(mean_bits=4).unit
    'bits'
    """

    mean_bits: float = field(validator=number(positive=True))

    @property
    def unit(self) -> str:
        """The unit of the costs."""
        return "bits"

    def cost(self, weight: Weight, bits: int) -> float:
        """Return n b."""
        return float(weight.elements * bits)

    def limit(self, weights: Sequence[Weight]) -> float:
        """Return mean_bits sum n."""
        return self.mean_bits * sum(w.elements for w in weights)


@frozen
class BitOpsBudget:
    """BOPs: sum of MACs x bits of the weight x bits of the input <= share x the same sum with the widest weights.

    Args:
        share: The allowed share of the model's bit operations with the target's own bits for each weight; in (0, 1].
    Raises:
        SpecError: a number out of range.
    Source: Baskin et al., arXiv:1804.10969, section 4 (UNIQ), without the term of the accumulator.

    >>> BitOpsBudget(share=0.5).unit
    'bit operations a batch'
    """

    share: float = field(validator=number(positive=True))

    def __attrs_post_init__(self) -> None:
        if self.share > 1:
            raise SpecError(where="BitOpsBudget.share", found=repr(self.share), wanted="at most 1", do="Use a share in (0, 1].")

    @property
    def unit(self) -> str:
        """The unit of the costs."""
        return "bit operations a batch"

    def cost(self, weight: Weight, bits: int) -> float:
        """Return the sum of MACs x bits x bits of the input over the ops that read the weight."""
        return float(sum(macs * bits * input_bits for macs, input_bits in weight.products))

    def limit(self, weights: Sequence[Weight]) -> float:
        """Return the share of the bit operations with the widest weights."""
        return self.share * sum(self.cost(w, w.bits[-1]) for w in weights)


def _times(instance: Any, attribute: Any, value: Any) -> None:
    entries = value if isinstance(value, tuple) else ()
    valid = [e for e in entries if isinstance(e, tuple) and len(e) == 3 and isinstance(e[0], str) and type(e[1]) is int]
    if not entries or len(valid) < len(entries) or not all(isinstance(e[2], int | float) and e[2] >= 0 for e in valid):
        wanted = "a tuple of (op, bits, time)"
        raise SpecError(
            where="LatencyBudget.times", found=repr(value)[:80], wanted=wanted, do="Write (('conv1', 8, 0.31), ...)."
        )


@frozen
class LatencyBudget:
    """Measured time: sum of the times of the ops with the chosen bits <= most.

    A weight takes the times of all ops that read it.  An op without a time takes that of the op for which the weight is
    quantized: its first reader.

    Args:
        times: (path of the op, bits of its weight, time) for each op and each number of bits; times in any unit.
        most: The largest sum, in the same unit.
    Raises:
        SpecError: entries of another form; from `mixed_precision`, an op and bits without an entry.

    >>> LatencyBudget(times=(("fc", 8, 2.0), ("fc", 4, 1.0)), most=1.5).unit
    'time'
    """

    times: tuple[tuple[str, int, float], ...] = field(validator=_times)
    most: float = field(validator=number(positive=True))

    @property
    def unit(self) -> str:
        """The unit of the costs."""
        return "time"

    def cost(self, weight: Weight, bits: int) -> float:
        """Return the sum of the measured times of the ops that read the weight."""
        measured = {(op, width): float(time) for op, width, time in self.times}
        times = [measured.get((op, bits), measured.get((weight.op, bits))) for op in weight.readers]
        known_times = [time for time in times if time is not None]
        if len(known_times) < len(times):
            known = ", ".join(sorted({op for op, _, _ in self.times}))
            do = f"Measure it, or remove {bits} from bits. There are times for {known}."
            wanted = f"a time of op {weight.op!r} with {bits} bits"
            raise SpecError(where="LatencyBudget.times", found="no such entry", wanted=wanted, do=do)
        return math.fsum(known_times)

    def limit(self, weights: Sequence[Weight]) -> float:
        """Return `most`."""
        return self.most


__all__ = ["BitOpsBudget", "Budget", "LatencyBudget", "SizeBudget", "minimize"]
