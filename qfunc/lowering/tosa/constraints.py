"""Constraints of TOSA: ops without an operator, which `quantize` refuses by kind and attributes; `deploy` checks sizes."""

from __future__ import annotations

from typing import Any

from qfunc.specs import Attr, Op, Refuse, Where

PRO_INT = "TOSA 1.0, profile PRO-INT: no such operator on integers, or not in that form"
NEAREST = Op("resize") & Attr("mode", "nearest")


def by_a_fraction(op: Any) -> bool:
    """Return True if an image is resized by a factor that is no whole number.

    >>> from types import SimpleNamespace
    >>> [by_a_fraction(SimpleNamespace(attributes={"scale_factor": f})) for f in (None, 2.0, (2.0, 1.5))]
    [False, False, True]
    """
    factor = op.attributes.get("scale_factor")
    factors = factor if isinstance(factor, tuple) else (factor,)
    return any(isinstance(f, int | float) and f % 1 for f in factors)


def cut_by_a_window(op: Any) -> bool:
    """Return True if a transposed convolution is padded by the size of its window, or more.

    >>> from types import SimpleNamespace
    >>> [cut_by_a_window(SimpleNamespace(attributes={"kernel": (3, 2), "padding": (p, p)})) for p in (1, 2)]
    [False, True]
    """
    has = op.attributes
    return any(p >= k for p, k in zip(has.get("padding", ()), has.get("kernel", ()), strict=False))


LEGALITY = (
    Refuse(Op("conv_transpose") & Where(cut_by_a_window), because=PRO_INT, do="Pad by less than the window."),
    Refuse(
        Op("resize") & ~Attr("mode", "nearest") & ~Attr("mode", "bilinear"),
        because=PRO_INT,
        do="Resize images by mode='nearest' or 'bilinear'.",
    ),
    Refuse(NEAREST & Where(by_a_fraction), because=PRO_INT, do="Resize by whole factors, or bilinearly."),
    Refuse(
        Op("pad") & ~Attr("mode", "constant") & ~Attr("mode", "reflect"),
        because=PRO_INT,
        do="Pad by mode='constant' or 'reflect'.",
    ),
)

__all__ = ["LEGALITY", "by_a_fraction", "cut_by_a_window"]
