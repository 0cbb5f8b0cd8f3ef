"""The table of emulation kernels: (arithmetic, kind of op) -> the function that writes the nodes of a unit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx

from qfunc.emulation.computation import computed
from qfunc.emulation.context import UnitContext
from qfunc.emulation.products.dynamic import dynamic_product
from qfunc.emulation.products.experts import stacked_experts
from qfunc.errors import EmulationError
from qfunc.specs import (
    DynamicProduct,
    ExpertSums,
)
from qfunc.specs.protocols import Arithmetic


def _unfit(job: UnitContext, found: str, wanted: str) -> EmulationError:
    do = "Bind another arithmetic in the target's kernels."
    return EmulationError(where=f"unit {job.unit.path!r}", found=found, wanted=wanted, do=do)


Writer = Callable[[UnitContext, Any], fx.Node]

KERNELS: dict[tuple[type, str], Writer] = {
    (DynamicProduct, "linear"): dynamic_product,
    (DynamicProduct, "matmul"): dynamic_product,
    (ExpertSums, "linear"): stacked_experts,
}
"""(arithmetic, kind of op) -> writer."""


_TO_REALS = ExpertSums | DynamicProduct


def write(job: UnitContext) -> fx.Node:
    """Return the node that computes the unit's output codes.

    Raises:
        EmulationError: the arithmetic does not fit the unit's op.
    """
    kernel = job.unit.kernel
    assert kernel is not None
    kind, arithmetic = job.unit.kind, kernel.arithmetic
    if isinstance(arithmetic, Arithmetic):
        return computed(job, arithmetic)
    if job.output_encoding is None and not isinstance(arithmetic, _TO_REALS):
        wanted = "ExpertSums or DynamicProduct"
        raise _unfit(job, f"{type(arithmetic).__name__} for an output without qparams", wanted)
    writer = KERNELS.get((type(arithmetic), kind))
    if writer is None:
        fitting = sorted(t.__name__ for t in (t for t, k in KERNELS if k == kind))
        raise _unfit(job, f"{type(arithmetic).__name__} for an op of kind {kind!r}", f"one of {', '.join(fitting)}")
    return writer(job, arithmetic)


__all__ = ["write"]
