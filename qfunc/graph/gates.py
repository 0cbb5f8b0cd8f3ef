"""Whether a target computes silu(x) as the two ops of x sigmoid(x)."""

from __future__ import annotations

from qfunc.graph.selectors import names_kind
from qfunc.specs import Target


def on_integers(kind: str, target: Target) -> bool:
    """Return True if a kernel that is not in float names a kind of op."""
    return any(not kernel.in_float and names_kind(kernel.unit, kind) for kernel in target.kernels)


def divides_silu(target: Target) -> bool:
    """Return True if kernels compute sigmoids and products on integers, and no kernel a silu.

    >>> from qfunc import targets
    >>> [divides_silu(target) for target in (targets.onnxruntime, targets.tosa)]
    [True, False]
    """
    return on_integers("sigmoid", target) and on_integers("mul", target) and not on_integers("silu", target)
