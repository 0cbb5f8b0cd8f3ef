"""Emulate bilinear resizing of codes."""

from __future__ import annotations

from torch import fx

from qfunc.emulation.activations import _given
from qfunc.emulation.context import UnitContext
from qfunc.numerics.kernels.resize import resized
from qfunc.ops.node import attribute
from qfunc.specs import Bilinear

__all__ = ["bilinear"]


def bilinear(job: UnitContext, arithmetic: Bilinear) -> fx.Node:
    """The node of a `specs.Bilinear` unit."""
    x = _given(job)
    given = [attribute(job.root, n) for n in ("size", "scale_factor")]
    return job.emitter.call(
        resized, x.node, *given, bool(attribute(job.root, "align_corners")), arithmetic.positions, arithmetic.bits,
        name=job.name, result=True,
    )  # fmt: skip
