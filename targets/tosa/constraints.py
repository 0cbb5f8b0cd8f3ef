"""The ops that TOSA does not have, by kind and attributes: `quantize` refuses them. `deploy` checks the sizes of tensors."""

from __future__ import annotations

from typing import Any

from qfunc.lowering.format_checks import MIXED, OF_THE_BATCH, ONE_EXAMPLE, SELECTED
from qfunc.specs import Attr, GraphOutput, Op, Refuse, Where
from qfunc.targets.litert.constraints import BY_ONE, MATRICES, OUTSIDE

PRO_INT = "TOSA 1.0, profile PRO-INT, has no such operator on integers, or not with these attributes"


def padding_reaches_window(op: Any) -> bool:
    """Return True if the padding of a transposed convolution is at least as large as its window.

    >>> from types import SimpleNamespace
    >>> [padding_reaches_window(SimpleNamespace(attributes={"kernel": (3, 2), "padding": (p, p)})) for p in (1, 2)]
    [False, True]
    """
    padding, kernel = op.attributes.get("padding", ()), op.attributes.get("kernel", ())
    return any(p >= k for p, k in zip(padding, kernel, strict=False))


LEGALITY = (
    Refuse(MATRICES, because="TOSA 1.0, MATMUL of a constant: qfunc writes one matrix", do=BY_ONE),
    Refuse(Attr("created", True) & GraphOutput(), because=PRO_INT, do="Compute it outside the deployed model."),
    Refuse(MIXED, because=ONE_EXAMPLE, do=OUTSIDE),
    Refuse(SELECTED, because=ONE_EXAMPLE, do=OF_THE_BATCH),
    Refuse(Op("conv_transpose") & Where(padding_reaches_window), because=PRO_INT, do="Use a padding smaller than the kernel."),
    Refuse(
        Op("resize") & ~Attr("mode", "nearest") & ~Attr("mode", "bilinear"),
        because=PRO_INT,
        do="Use mode='nearest' or mode='bilinear'.",
    ),
)
