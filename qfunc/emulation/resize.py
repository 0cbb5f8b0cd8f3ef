"""Emulate bilinear resizing of codes."""

from __future__ import annotations

from torch import fx

from qfunc.emulation.context import UnitContext, input_codes
from qfunc.numerics.kernels.resize import resize_codes
from qfunc.specs import Bilinear

__all__ = ["bilinear"]


def bilinear(job: UnitContext, arithmetic: Bilinear) -> fx.Node:
    """Return the node of a `specs.Bilinear` unit."""
    x = input_codes(job)
    size_or_factor = [job.argument(n) for n in ("size", "scale_factor")]
    return job.emitter.call(
        resize_codes, x.node, *size_or_factor, bool(job.argument("align_corners")), arithmetic.positions,
        arithmetic.bits, name=job.name, result=True,
    )  # fmt: skip
