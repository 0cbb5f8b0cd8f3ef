"""Windows of which the HTP computes something else, by attributes: `quantize` refuses them."""

from __future__ import annotations

from typing import Any

from qfunc.specs import Op, Refuse, Where

MEASURED = "onnxruntime-qnn 2.7, measured: the HTP takes other values there"


def tiles_over_the_border(op: Any) -> bool:
    """Whether the windows of a pool lie side by side, and may reach beyond the image.

    >>> from types import SimpleNamespace
    >>> pool = {"kernel_size": 2, "stride": (2, 2), "count_include_pad": True, "ceil_mode": False}
    >>> [tiles_over_the_border(SimpleNamespace(attributes=pool | {"padding": p})) for p in (0, 1)]
    [False, True]
    """
    has = op.attributes
    axes = has.get("spatial", 2)
    kernel, stride = (v if isinstance(v, tuple) else (v,) * axes for v in (has["kernel_size"], has["stride"]))
    side_by_side = has["stride"] in (None, ()) or kernel == stride
    padded = has["count_include_pad"] and has["padding"] not in (0, (0,) * axes)
    return side_by_side and bool(padded or has["ceil_mode"])


def sees_nothing(op: Any) -> bool:
    """Whether a convolution has windows that lie in the padding alone.

    >>> from types import SimpleNamespace
    >>> conv = {"kernel": (3, 2), "dilation": (1, 1)}
    >>> [sees_nothing(SimpleNamespace(attributes=conv | {"padding": (2, p)})) for p in (1, 2)]
    [False, True]
    """
    has = op.attributes
    each = zip(has["padding"], has["kernel"], has["dilation"], strict=True) if isinstance(has["padding"], tuple) else ()
    return any(p > d * (k - 1) for p, k, d in each)


def reaches_nothing(op: Any) -> bool:
    """Whether a transposed convolution has entries at its border that no window reaches.

    >>> from types import SimpleNamespace
    >>> conv = {"padding": (1, 0)}
    >>> [reaches_nothing(SimpleNamespace(attributes=conv | {"output_padding": (1, p)})) for p in (0, 1)]
    [False, True]
    """
    has = op.attributes
    return any(o > p for o, p in zip(has["output_padding"], has["padding"], strict=True))


LEGALITY = (
    Refuse(
        Op("avg_pool") & Where(tiles_over_the_border),
        because=MEASURED,
        do="Use another stride than the window's size, or count_include_pad=False and ceil_mode=False.",
    ),
    Refuse(Op("conv") & Where(sees_nothing), because=MEASURED, do="Pad by less than the window."),
    Refuse(Op("conv_transpose") & Where(reaches_nothing), because=MEASURED, do="Let output_padding be at most the padding."),
)

__all__ = ["LEGALITY", "reaches_nothing", "sees_nothing", "tiles_over_the_border"]
