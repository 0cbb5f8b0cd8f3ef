"""Write ops that move values as layers of ncnn: shapes, orders of axes, repetitions, pads, joining, resizing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from qfunc.lowering.qdq.qparams import Array
from qfunc.targets.ncnn.axes import MOST, batch_axis, permutation
from qfunc.targets.ncnn.builder import Blob
from qfunc.targets.ncnn.indexing import cut
from qfunc.targets.ncnn.linear import image, signal
from qfunc.targets.ncnn.writer import Constant, OpContext

_ORDERS = {
    2: ("wh", "hw"),
    3: ("whc", "hwc", "wch", "cwh", "hcw", "chw"),
    4: ("whdc", "hwdc", "wdhc", "dwhc", "hdwc", "dhwc", "whcd", "hwcd", "wchd", "cwhd", "hcwd", "chwd", "wdch", "dwch",
        "wcdh", "cwdh", "dcwh", "cdwh", "hdcw", "dhcw", "hcdw", "chdw", "dchw", "cdhw"),
}  # fmt: skip
_NAMES = {2: "hw", 3: "chw", 4: "cdhw"}


def order_type(order: tuple[int, ...]) -> int:
    """Return the number of an order of axes in Permute.

    >>> order_type((0, 1, 2)), order_type((0, 2, 1)), order_type((1, 2, 0))
    (0, 1, 3)
    """
    names = _NAMES[len(order)]
    return _ORDERS[len(order)].index("".join(names[i] for i in reversed(order)))


def reshape(step: OpContext) -> None:
    """Write Reshape."""
    constant = step.constant_input(0)
    if constant is not None and constant.qparams is None:
        full = step.source.shape(step.output, step.node.name)
        step.writer.constants[step.output] = Constant(constant.value.reshape(full))
        return
    step.keep(step.reshaped(step.input(), step.shape, ""))


def transpose(step: OpContext) -> None:
    """Write Permute. Axes that stay together are one axis of the blob, and axes of one entry are left out."""
    x, full = step.input(), step.sizes()
    perm = [int(p) for p in step.attribute("perm") or range(len(full))[::-1]]
    gone = batch_axis(step.source, step.node.input[0], step.node.name)
    order = tuple(p - int(gone is not None and p > gone) for p in perm if p != gone)
    if order == tuple(range(len(order))) and step.shape == x.shape:
        return step.keep(x)
    if x.shape == step.example() and step.shape == tuple(x.shape[p] for p in order):
        return step.write_result("Permute", x, p0=order_type(order))
    return step.keep(step.reshaped(_turned(step, x, *permutation(full, perm)), step.shape, "shaped_back"))


def _turned(step: OpContext, x: Blob, shape: list[int], order: tuple[int, ...]) -> Blob:
    # One Permute for up to four axes; else one for each axis that moves before others, which are one axis, as are the rest.
    if len(order) < 2:
        return x
    if len(order) <= MOST:
        rows = step.reshaped(x, shape, "rows")
        return step.layer("Permute", [rows], "turned", [shape[p] for p in order], p0=order_type(order))
    axes = list(range(len(order)))
    for i, axis in enumerate(order):
        j = axes.index(axis)
        if j == i:
            continue
        sizes = [shape[a] for a in axes]
        a, b, c, d = math.prod(sizes[:i]), math.prod(sizes[i:j]), sizes[j], math.prod(sizes[j + 1 :])
        rows = step.reshaped(x, (a, b, c, d), f"rows_{i}")
        x = step.layer("Permute", [rows], f"turned_{i}", (a, c, b, d), p0=order_type((0, 2, 1, 3)))
        axes.insert(i, axes.pop(j))
    return x


def expand(step: OpContext) -> None:
    """Write Tile for an Expand: axes of one entry are repeated."""
    have, want = step.sizes(), step.source.shape(step.output, step.node.name)
    have = (1,) * (len(want) - len(have)) + have
    _repeated(step, have, [w // h for h, w in zip(have, want, strict=True)])


def tile(step: OpContext) -> None:
    """Write Tile.

    Raises:
        DeployError: repeated examples, or more than four axes.
    """
    _repeated(step, step.sizes(), [int(n) for n in step.constant(1)])


def _repeated(step: OpContext, have: tuple[int, ...], times: list[int]) -> None:
    gone, axes = batch_axis(step.source, step.output, step.node.name), range(len(have))
    varies = step.source.varies(step.output)
    if varies is not None and times[varies] != 1:
        raise step.refuse("repeated examples", "another axis", "Repeat along an axis after the batch.")
    shape, repeats = ([n[i] for i in axes if i != gone] or [1] for n in (have, times))
    if len(shape) > MOST:
        raise step.refuse(f"repetitions of {len(shape)} axes", "at most four", "Reshape the tensor to fewer axes.")
    x = step.reshaped(step.input(), shape, "wide")
    if set(repeats) != {1}:
        x = step.layer("Tile", [x], "", [n * r for n, r in zip(shape, repeats, strict=True)], p2=repeats)
    step.keep(step.reshaped(x, step.shape, "flat"))


def concat(step: OpContext) -> None:
    """Write Concat.

    Raises:
        DeployError: examples that are joined.
    """
    gone, full = batch_axis(step.source, step.output, step.node.name), step.source.shape(step.output, step.node.name)
    axis = int(step.attribute("axis")) % len(full)
    if axis in (gone, step.source.varies(step.output)):
        raise step.refuse("an op along the batch", "another axis", "Use an axis after the batch.")
    place, parts = axis - int(gone is not None and axis > gone), []
    for i in range(len(step.node.input)):
        shape = tuple(n for a, n in enumerate(step.sizes(i)) if a != gone) or (1,)
        shape = shape if len(shape) <= MOST else (math.prod(shape[:place]), shape[place], math.prod(shape[place + 1 :]))
        parts.append(step.reshaped(step.input(i), shape, f"part_{i}"))
    place = min(place, 1) if len(full) - int(gone is not None) > MOST else place
    whole = [sum(p.shape[i] for p in parts) if i == place else n for i, n in enumerate(parts[0].shape)]
    step.keep(step.reshaped(step.layer("Concat", parts, "", whole, p0=place), step.shape, "flat"))


def pad(step: OpContext) -> None:
    """Write Padding of the last two axes and the channels: a constant, the edge or its mirror image.

    Raises:
        DeployError: another mode.
    """
    modes = {"constant": 0, "edge": 1, "reflect": 2}
    mode = step.attribute("mode", b"constant").decode()
    value, x = step.constant(2), step.input()
    pads = [int(p) for p in step.constant(1)]
    rank, dims = len(pads) // 2, len(x.shape)
    before, after = pads[rank - dims : rank], pads[2 * rank - dims :]
    if mode == "wrap":
        return _wrapped(step, x, before, after)
    if mode not in modes:
        raise step.refuse(f"padding of mode {mode!r}", "constant, edge, reflect or wrap", "Pad by one of them.")
    # A negative pad cuts. ncnn's Padding has pads of at least 0.
    cuts = {
        i: (max(-b, 0), n + min(a, 0)) for i, (b, a, n) in enumerate(zip(before, after, x.shape, strict=True)) if min(b, a) < 0
    }
    before, after = [max(p, 0) for p in before], [max(p, 0) for p in after]
    late = any(start >= stop for start, stop in cuts.values())  # an axis that is all cropped: Crop takes no empty part
    if cuts and not late:
        x = cut(step, x, cuts, f"{step.output}.cut" if any((*before, *after)) else step.output)
        if not any((*before, *after)):
            return step.keep(x)
    places = {1: ((2, 3),), 2: ((0, 1), (2, 3)), 3: ((7, 8), (0, 1), (2, 3)), 4: ((7, 8), (7, 8), (0, 1), (2, 3))}[dims]
    parameters: dict[int, float] = {
        n: p for pair, *both in zip(places, before, after, strict=True) for n, p in zip(pair, both, strict=True)
    }
    if dims == 4 and (before[0] or after[0]):
        raise step.refuse("padded channels of a volume", "padded height, width and depth", "Pad images.")
    number = 0.0 if value is None else float(value)
    parameters |= {4: modes[mode], 5: number}
    sizes = [n + b + a for n, b, a in zip(x.shape, before, after, strict=True)]
    name, shape = (f"{step.output}.padded", sizes) if late else (step.output, step.shape)
    padded = step.file.layer("Padding", [x], name, shape, dict(sorted(parameters.items())))
    moved = {i: (start, sizes[i] - (x.shape[i] - stop)) for i, (start, stop) in cuts.items()}
    return step.keep(cut(step, padded, moved, step.output) if late else padded)


def _wrapped(step: OpContext, x: Blob, before: list[int], after: list[int]) -> None:
    # Along each axis: the last entries, all, and the first ones.
    for place, (b, a, length) in enumerate(zip(before, after, x.shape, strict=True)):
        ends = [(length - b, length)] * (b > 0), [(0, a)] * (a > 0)
        first, last = ([cut(step, x, {place: e}, f"{step.output}.{place}.{name}") for e in runs]
                       for name, runs in zip(("last", "first"), ends, strict=True))  # fmt: skip
        shape = [n + (b + a) * (i == place) for i, n in enumerate(x.shape)]
        x = step.layer("Concat", [*first, x, *last], f"{place}.wrapped", shape, p0=place) if b or a else x
    step.keep(x)


def resize(step: OpContext) -> None:
    """Write Interp, to the nearest, linear or cubic along both axes; a signal is an image of one row.

    Interp takes the ratio of the sizes for the factor.  With another factor, the result is the product of the image and two
    constant matrices.

    Raises:
        DeployError: volumes, or other positions.
    """
    mode, how = (step.attribute(n, b"").decode() for n in ("mode", "coordinate_transformation_mode"))
    kinds, rank = {"nearest": 1, "linear": 2, "cubic": 3}, len(step.shape) - 1
    if rank not in (1, 2) or mode not in kinds or (mode == "nearest" and how != "asymmetric"):
        raise step.refuse(f"resizing {rank} axes, {mode!r}", "images: nearest, linear or cubic", "Resize such images.")
    x = image(step, step.input(), rank)
    shape = (x.shape[0], *signal(step.shape[1:], rank))
    corners, scales = int(how == "align_corners"), step.constant(2)
    factors = [] if corners or scales is None else [float(f) for f in signal(scales[2:], rank)]
    if all(abs(f * n - m) < 1e-4 * m for f, n, m in zip(factors, x.shape[1:], shape[1:], strict=False)):
        sizes = {"p3": shape[1], "p4": shape[2]}
        resized = step.layer("Interp", [x], "", shape, p0=kinds[mode], **sizes, p6=corners)
    else:
        resized = _resized_by_matrices(step, x, shape, factors)
    step.keep(step.reshaped(resized, step.shape, "signal"))


def _resized_by_matrices(step: OpContext, x: Blob, shape: tuple[int, ...], factors: list[float]) -> Blob:
    # A X B^T, where A and B resize the identity.
    rows, columns = (_resized_identity(step, n, f) for n, f in zip(x.shape[1:], factors, strict=True))
    left = step.file.constant(f"{step.output}.rows", rows)
    tall = step.layer("MatMul", [left, x], "tall", (x.shape[0], shape[1], x.shape[2]))
    right = step.file.constant(f"{step.output}.columns", np.ascontiguousarray(columns.T))
    return step.layer("MatMul", [tall, right], "", shape)


def _resized_identity(step: OpContext, length: int, factor: float) -> Array:
    node, opsets = onnx.NodeProto(), {entry.domain: entry.version for entry in step.source.model.opset_import}
    node.CopyFrom(step.node)
    del node.input[:]
    node.input.extend(["x", "", "scales"])
    node.output[0] = "y"
    feeds = {"x": np.eye(length, dtype=np.float32)[None, None], "scales": np.array([1, 1, factor, 1], np.float32)}
    result: Any = ReferenceEvaluator(node, opsets=opsets).run(None, feeds)
    return np.asarray(result[0][0, 0], np.float32)


def depth_to_space(step: OpContext) -> None:
    """Write PixelShuffle."""
    if len(step.shape) != 3:
        raise step.refuse(f"{len(step.shape)} axes after the batch", "images", "Reshape to images.")
    mode = int(step.attribute("mode", b"DCR") == b"DCR")
    step.write_result("PixelShuffle", step.input(), p0=int(step.attribute("blocksize")), p1=mode)


def space_to_depth(step: OpContext) -> None:
    """Write Reorg, whose channels are in the order of ONNX."""
    if len(step.shape) != 3:
        raise step.refuse(f"{len(step.shape)} axes after the batch", "images", "Reshape to images.")
    step.write_result("Reorg", step.input(), p0=int(step.attribute("blocksize")), p1=1)
