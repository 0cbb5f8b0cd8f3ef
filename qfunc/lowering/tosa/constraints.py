"""The ops that TOSA does not have, by kind and attributes: `quantize` refuses them. `deploy` checks the sizes of tensors."""

from __future__ import annotations

from typing import Any

from qfunc.specs import Attr, Op, Refuse, Where

PRO_INT = "TOSA 1.0, profile PRO-INT, has no such operator on integers, or not with these attributes"
NEAREST = Op("resize") & Attr("mode", "nearest")


def has_fractional_factor(op: Any) -> bool:
    """Return True if an image is resized by a factor that is not a whole number.

    >>> from types import SimpleNamespace
    >>> [has_fractional_factor(SimpleNamespace(attributes={"scale_factor": f})) for f in (None, 2.0, (2.0, 1.5))]
    [False, False, True]
    """
    factor = op.attributes.get("scale_factor")
    factors = factor if isinstance(factor, tuple) else (factor,)
    return any(isinstance(f, int | float) and f % 1 for f in factors)


def padding_reaches_window(op: Any) -> bool:
    """Return True if the padding of a transposed convolution is at least as large as its window.

    >>> from types import SimpleNamespace
    >>> [padding_reaches_window(SimpleNamespace(attributes={"kernel": (3, 2), "padding": (p, p)})) for p in (1, 2)]
    [False, True]
    """
    padding, kernel = op.attributes.get("padding", ()), op.attributes.get("kernel", ())
    return any(p >= k for p, k in zip(padding, kernel, strict=False))


LEGALITY = (
    Refuse(Op("conv_transpose") & Where(padding_reaches_window), because=PRO_INT, do="Use a padding smaller than the kernel."),
    Refuse(
        Op("resize") & ~Attr("mode", "nearest") & ~Attr("mode", "bilinear"),
        because=PRO_INT,
        do="Use mode='nearest' or mode='bilinear'.",
    ),
    Refuse(NEAREST & Where(has_fractional_factor), because=PRO_INT, do="Resize by whole factors, or use mode='bilinear'."),
    Refuse(
        Op("pad") & ~Attr("mode", "constant") & ~Attr("mode", "reflect"),
        because=PRO_INT,
        do="Use mode='constant' or mode='reflect'.",
    ),
)

__all__ = ["LEGALITY", "has_fractional_factor", "padding_reaches_window"]
