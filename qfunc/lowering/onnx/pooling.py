"""Write pools as ONNX."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from qfunc.errors import DeployError
from qfunc.lowering.onnx.context import OpContext, per_axis
from qfunc.lowering.onnx.formula import Write
from qfunc.lowering.onnx.reduction import reduced
from qfunc.numerics.kernels.pooling import adaptive_runs


def _pool(op: str) -> Write:
    def write(c: OpContext) -> str:
        rank = c.slides()
        kernel, pads = per_axis(c["kernel_size"], rank), per_axis(c["padding"], rank) * 2
        attributes: dict[str, Any] = {
            "kernel_shape": kernel,
            "strides": per_axis(c["stride"], rank),
            "pads": pads,
            "ceil_mode": int(c["ceil_mode"]),
        }
        dilation = per_axis(c["dilation"], rank) if op == "MaxPool" else [1] * rank
        divisor = c["divisor_override"] if op != "MaxPool" and c.takes("divisor_override") else None
        if divisor:
            return _divided_sum(c, kernel, attributes, divisor)
        if c["ceil_mode"]:
            counts_padding = op != "MaxPool" and bool(c["count_include_pad"])
            attributes |= _as_in_pytorch(c, attributes, dilation, counts_padding)
        if op == "MaxPool":
            attributes["dilations"] = dilation
        else:
            attributes["count_include_pad"] = int(c["count_include_pad"])
        return c.write(op, c.input(), **attributes)

    return write


def _divided_sum(c: OpContext, kernel: list[int], attributes: dict[str, Any], divisor: int) -> str:
    # The mean over windows that count all their entries, by the size of the window and the divisor: the divisor is the same
    # where a window reaches beyond the image, and where it reaches beyond the padding by ceil_mode.
    if c["ceil_mode"]:
        if any(not n for n in (*c.shape().dims[2:], *c.result.dims[2:])):
            found, do = "ceil_mode and a divisor for images whose size varies", "Use ceil_mode=False, or images of one size."
            raise DeployError(where=f"op {c.name!r}", found=found, wanted="known sizes", do=do)
        attributes |= {"ceil_mode": 0, "pads": _reached(c, attributes, [1] * len(kernel))}
    pooled = c.graph.node("AveragePool", [c.input()], f"{c.name}.mean", **attributes, count_include_pad=1)
    if divisor == math.prod(kernel):
        return c.write("Max", pooled)  # a copy: a product by 1 would be removed, and the mean computed of codes
    return c.write("Mul", pooled, c.graph.number(math.prod(kernel) / divisor, f"{c.name}.factor"))


def _reached(c: OpContext, attributes: dict[str, Any], dilation: list[int]) -> list[int]:
    # The pads with those at the end that the last windows reach.
    pads, missing = attributes["pads"], [max((m - 1) * s - span, 0) for m, span, s in _spans(c, attributes, dilation)]
    return [*pads[: len(missing)], *(p + more for p, more in zip(pads, missing, strict=False))]


def _spans(c: OpContext, attributes: dict[str, Any], dilation: list[int]) -> list[tuple[int, int, int]]:
    # For each axis: the number of windows, how far the first one can move inside of the padding, and the stride.
    given = (attributes[n] for n in ("kernel_shape", "strides", "pads"))
    axes = zip(c.shape().dims[2:], c.result.dims[2:], *given, dilation, strict=False)
    return [(m or 0, (n or 0) + 2 * p - d * (k - 1) - 1, s) for n, m, k, s, p, d in axes]


def _as_in_pytorch(c: OpContext, attributes: dict[str, Any], dilation: list[int], counts_padding: bool) -> dict[str, Any]:
    # PyTorch leaves out a last window that starts behind the image and its first padding; ONNX's shape inference counts it.
    # Such pools are written without ceil_mode.  Other axes that need it are padded at their end instead, which changes no
    # maximum, and no average that does not count padding.
    if any(not n for n in (*c.shape().dims[2:], *c.result.dims[2:])):
        return {}
    spans, pads = _spans(c, attributes, dilation), _reached(c, attributes, dilation)
    if all(m == -(span // -s) + 1 for m, span, s in spans) or (pads != attributes["pads"] and counts_padding):
        return {}
    return {"ceil_mode": 0, "pads": pads}


def _global_avg_pool(c: OpContext) -> str:
    if c.shape().rank != 4:
        return reduced(c, "ReduceMean", c.input(), [-2, -1], bool(c["keepdim"]))
    if c["keepdim"]:
        return c.write("GlobalAveragePool", c.input())
    pooled = c.quantize_inner(c.graph.node("GlobalAveragePool", [c.input()], f"{c.name}.pooled"), "after")
    return c.write("Squeeze", pooled, c.graph.integers(2, 3, name=f"{c.name}.axes"))


def _adaptive_avg_pool(c: OpContext) -> str:
    """Write AveragePool; for windows of several sizes, one for each run of windows of one size, joined by Concat."""
    runs = _adaptive_runs(c)

    def pool(part: str, kernel: list[int], stride: list[int], name: str) -> str:
        given = {"kernel_shape": kernel, "strides": stride, "pads": [0] * 2 * len(kernel)}
        return c.quantize_inner(c.graph.node("AveragePool", [part], f"{name}.mean", **given), "after")

    if all(len(each) == 1 for each in runs):
        kernel, stride = [each[0][1] for each in runs], [each[0][2] for each in runs]
        return c.write("AveragePool", c.input(), kernel_shape=kernel, strides=stride, pads=[0] * 2 * len(runs))
    return _joined(c, runs, pool)


def _adaptive_max(c: OpContext) -> str:
    """Write MaxPool; for windows of several sizes, one for each run of windows of one size, joined by Concat."""
    rank, sizes = c.slides(), (*c.shape().dims[2:], *c.result.dims[2:])
    if None in sizes and all(o == 1 for o in c.result.dims[2:]):
        return reduced(c, "ReduceMax", c.input(), list(range(2, rank + 2)), True)
    runs = _adaptive_runs(c)
    if all(len(each) == 1 for each in runs):
        kernel, stride = [each[0][1] for each in runs], [each[0][2] for each in runs]
        return c.write("MaxPool", c.input(), kernel_shape=kernel, strides=stride)

    def pool(part: str, kernel: list[int], stride: list[int], name: str) -> str:
        largest = c.graph.node("MaxPool", [part], f"{name}.largest", kernel_shape=kernel, strides=stride)
        return c.quantize_inner(largest, "after")

    return _joined(c, runs, pool)


Run = tuple[int, int, int, int]
_MOST_PARTS = 64
"""The largest number of pools that stand for one."""


def _adaptive_runs(c: OpContext) -> list[list[Run]]:
    # The runs of windows along each axis.
    c.slides()
    source, out = c.shape().dims[2:], c.result.dims[2:]
    known = all(s and o for s, o in zip(source, out, strict=True))
    runs = [adaptive_runs(int(s or 1), int(o or 1)) for s, o in zip(source, out, strict=True)] if known else []
    count = math.prod(len(each) for each in runs)
    if not known or count > _MOST_PARTS:
        wanted = f"windows of at most {_MOST_PARTS} kinds" if known else "known sizes"
        do = "Resize the input, or pool to a divisor of its size."
        raise DeployError(where=f"op {c.name!r}", found=f"adaptive pooling of {source} to {out}", wanted=wanted, do=do)
    return runs


def _joined(c: OpContext, runs: list[list[Run]], pool: Callable[[str, list[int], list[int], str], str]) -> str:
    # Slice the image axis by axis, pool each part, and join the results.
    def at(part: str, kernel: list[int], stride: list[int], name: str) -> str:
        axis = len(kernel)
        if axis == len(runs):
            return pool(part, kernel, stride, name)
        parts = []
        for k, (first, window, step, n) in enumerate(runs[axis]):
            inner, stop = f"{name}.{k}", first + (n - 1) * step + window
            ends = [c.graph.integers(v, name=f"{inner}.{e}") for v, e in ((first, "from"), (stop, "to"), (2 + axis, "axis"))]
            whole = len(runs[axis]) == 1
            cut = part if whole else c.quantize_inner(c.graph.node("Slice", [part, *ends], f"{inner}.part"), "before")
            parts.append(at(cut, [*kernel, window], [*stride, step], inner))
        if len(parts) == 1:
            return parts[0]
        if axis == outermost:
            return c.write("Concat", *parts, axis=2 + axis)
        return c.quantize_inner(c.graph.node("Concat", parts, f"{name}.joined", axis=2 + axis), "after")

    outermost = [len(each) > 1 for each in runs].index(True)
    return at(c.input(), [], [], c.name)


def _lp_pool(c: OpContext) -> str:
    # The root of the sum of powers; ONNX's LpPool takes magnitudes first.
    g, order, kernel = c.graph, float(c["norm_type"]), per_axis(c["kernel_size"], c.shape().rank - 2)
    stride = per_axis(c["stride"] or c["kernel_size"], len(kernel))
    powers = g.node("Pow", [c.input(), g.number(order, f"{c.name}.order")], f"{c.name}.powers")
    given = {"kernel_shape": kernel, "strides": stride, "ceil_mode": int(c["ceil_mode"])}
    mean = g.node("AveragePool", [powers], f"{c.name}.mean", **given)
    total = g.node("Mul", [mean, g.number(math.prod(kernel), f"{c.name}.count")], f"{c.name}.sum")
    return c.write("Pow", total, g.number(1 / order, f"{c.name}.root"))


WRITERS: dict[str, Write] = {
    "max_pool": _pool("MaxPool"), "avg_pool": _pool("AveragePool"), "global_avg_pool": _global_avg_pool,
    "adaptive_avg_pool": _adaptive_avg_pool, "adaptive_max_pool": _adaptive_max, "lp_pool": _lp_pool,
}  # fmt: skip
"""The writers of this family, by kind."""
