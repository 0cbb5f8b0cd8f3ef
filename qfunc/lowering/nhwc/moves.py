"""Write ops that pad, repeat, select and rearrange entries as TFLite's operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qfunc.lowering.nhwc.context import OpContext
from qfunc.lowering.nhwc.formulas import Formula
from qfunc.lowering.nhwc.masks import choice
from qfunc.lowering.nhwc.shape import axis_at, copies_for_examples, cut
from qfunc.lowering.nhwc.tensor import NhwcTensor
from qfunc.lowering.qdq.qparams import dequantized


def pad(step: OpContext) -> None:
    """Write PAD, PADV2 or MIRROR_PAD; for the modes edge and wrap, slices and CONCATENATION."""
    mode = step.attribute("mode", b"constant").decode()
    value = step.constant(2)
    number = 0.0 if value is None else float(value)
    if mode != "constant" or not number:
        step.on_codes(0)
    x = step.input()
    pairs = _pairs(step, x)
    # A negative pad crops. TFLite, XNNPACK and TOSA accept no negative pads.
    cuts = {
        a: (max(-b, 0), n + min(e, 0), 1) for a, ((b, e), n) in enumerate(zip(pairs, x.shape, strict=True)) if min(b, e) < 0
    }
    pairs = [[max(p, 0) for p in pair] for pair in pairs]
    if any(start >= stop for start, stop, _ in cuts.values()):  # an axis that is all cropped: the operators take no empty part
        sizes = [n + sum(p) for n, p in zip(x.shape, pairs, strict=True)]
        padded = _filled(step, x, pairs, number, step.inner("padded", sizes, x, last=x.last))
        moved = {a: (start, sizes[a] - (x.shape[a] - stop), 1) for a, (start, stop, _) in cuts.items()}
        cut(step, padded, moved, "")
        return
    if cuts:
        x = cut(step, x, cuts, "cut" if any(map(any, pairs)) else "")
        if not any(map(any, pairs)):
            return
    if mode in ("edge", "wrap"):
        return _continued(step, x, pairs, mode == "wrap")
    output = step.result([n + sum(p) for n, p in zip(x.shape, pairs, strict=True)], last=x.last)
    if mode == "reflect":
        inputs = [x, step.file.integers(pairs, f"{step.name}.pads")]
        step.file.operator("MIRROR_PAD", inputs, [output], "MirrorPadOptions", mode="REFLECT")
        return
    _filled(step, x, pairs, number, output)


def _filled(step: OpContext, x: NhwcTensor, pairs: list[list[int]], number: float, output: NhwcTensor) -> NhwcTensor:
    inputs = [x, step.file.integers(pairs, f"{step.name}.pads")]
    if number:
        inputs.append(step.file.tensor(f"{step.name}.value", (1,), value=np.array([number], np.float32)))
    step.file.operator("PADV2" if number else "PAD", inputs, [output], "PadV2Options" if number else "PadOptions")
    return output


def _pairs(step: OpContext, x: NhwcTensor) -> list[list[int]]:
    # The pads before and after each axis of the file. Since opset 18 the pads may be those of some axes.
    rank, pads, named = len(x.shape), [int(p) for p in step.constant(1)], step.constant(3)
    axes = range(rank) if named is None else [int(a) for a in named]
    pairs = [[0, 0] for _ in range(rank)]
    for i, axis in enumerate(axes):
        pairs[axis_at(axis, x)] = [pads[i], pads[len(axes) + i]]
    return pairs


def _continued(step: OpContext, x: NhwcTensor, pairs: Sequence[Sequence[int]], wraps: bool) -> None:
    # Continue the entries of each padded axis by its ends, or from its other end.
    padded = [axis for axis, pair in enumerate(pairs) if any(pair)]
    if not padded:
        step.keep(x)
    for axis in padded:
        before, after = pairs[axis]
        length = x.shape[axis]
        places = np.arange(-before, length + after)
        places = places % length if wraps else places.clip(0, length - 1)
        x = _picked(step, x, axis, places.tolist(), f"axis{axis}", last=axis == padded[-1])


def _picked(step: OpContext, x: NhwcTensor, axis: int, places: Sequence[int], name: str, *, last: bool) -> NhwcTensor:
    # Return the entries at these places of an axis of the file, as the result of the op or inside of it.
    runs: list[list[int]] = []
    for place in places:
        if runs and place == runs[-1][1]:
            runs[-1][1] += 1
        else:
            runs.append([place, place + 1])
    shape = [len(places) if i == axis else n for i, n in enumerate(x.shape)]
    parts, known = [], dict[tuple[int, int], NhwcTensor]()
    for start, stop in runs:
        if (start, stop) not in known:
            whole = (start, stop) == (0, x.shape[axis])
            part = x if whole else cut(step, x, {axis: (start, stop, 1)}, f"{name}.from_{start}_to_{stop}")
            known[start, stop] = part
        parts.append(known[start, stop])
    output = step.result(shape, last=x.last) if last else step.inner(name, shape, x, last=x.last)
    fields: dict[str, Any] = {"axis": axis, "fusedActivationFunction": "NONE"}
    step.file.operator("CONCATENATION", parts, [output], "ConcatenationOptions", **fields)
    return output


def gather(step: OpContext) -> None:
    """Write GATHER by constant places, or from a constant by indices that are an input of the model.

    A file of one example has slices and CONCATENATION for constant places.

    Raises:
        DeployError: places of an activation that vary, indices that the model computes, or places on the batch's axis.
    """
    axis, given = int(step.attribute("axis", 0)), step.writer.tensors.get(step.node.input[1])
    places = step.number(1)
    source = step.writer.tensor(step.node.input[0])
    if places is None and source.value is None:
        do = "Index outside of the model, or quantize the submodules before it: quantize(target, submodules=...)."
        raise step.refuse(f"positions {step.node.input[1]!r} that vary", "constant positions", do)
    if places is None and given is None:
        do = "Make them an input of the model."
        raise step.refuse(f"computed indices, {step.node.input[1]!r}", "an input of the model", do)
    if source.value is not None:
        return _looked_up(step, axis, given, places)
    assert places is not None
    step.on_codes(0)
    x = step.writer.plain(step.input())
    axis %= len(x.shape)
    if step.source.varies(step.node.input[0]) == axis:
        do = "Select examples outside of the deployed model."
        raise step.refuse("positions along the batch", "positions along other axes", do)
    places = np.asarray(places, np.int32)
    wanted = (places % x.shape[axis]).astype(np.int32)
    if step.file.batched:
        constant = step.file.integers(wanted, f"{step.name}.places")
        step.file.operator("GATHER", [x, constant], [step.result(step.shape)], "GatherOptions", axis=axis, batchDims=0)
        return
    if places.ndim == 1:
        _picked(step, x, axis, wanted.tolist(), "picked", last=True)
        return
    inner = _picked(step, x, axis, wanted.ravel().tolist(), "picked", last=False)
    step.reshaped(inner, step.shape, step.result(step.shape))


def _looked_up(step: OpContext, axis: int, given: NhwcTensor | None, places: Any) -> None:
    value, qparams = step.array(0)
    if given is None:
        value = dequantized(value, qparams) if qparams is not None else value
        step.keep(NhwcTensor(-1, step.node.input[0], np.take(value, places, axis).shape, value=np.take(value, places, axis)))
        return
    name = step.node.input[0].removesuffix(".codes")
    constant = step.file.tensor(name, value.shape, qparams, value=value)
    step.file.operator("GATHER", [constant, given], [step.result(step.shape)], "GatherOptions", axis=axis, batchDims=0)


def resize(step: OpContext) -> None:
    """Write RESIZE_NEAREST_NEIGHBOR or RESIZE_BILINEAR.

    For the nearest entries of a factor that is no whole number, slices and CONCATENATION are written if the operator of
    the file takes other entries, or takes whole factors only.

    Raises:
        DeployError: other modes, or no image.
    """
    mode, how = (step.attribute(n, b"").decode() for n in ("mode", "coordinate_transformation_mode"))
    if len(step.shape) != 4 or mode not in ("nearest", "linear"):
        raise step.refuse(f"resizing {len(step.shape) - 2} axes, {mode!r}", "images, nearest or linear", "Resize such images.")
    step.on_codes(0)
    x = step.writer.channels_last(step.input())
    if mode == "nearest" and (rows := _other_places(step, x, how)):
        inner = _picked(step, x, 1, rows[0], "rows", last=False)
        _picked(step, inner, 2, rows[1], "columns", last=True)
        return
    size: Sequence[int] = step.shape[2:]
    output = step.result((x.shape[0], *size, x.shape[-1]), last=True)
    op = (
        ("RESIZE_NEAREST_NEIGHBOR", "ResizeNearestNeighborOptions")
        if mode == "nearest"
        else ("RESIZE_BILINEAR", "ResizeBilinearOptions")
    )
    step.file.operator(
        op[0], [x, step.file.integers(size, f"{step.name}.size")], [output], op[1],
        alignCorners=how == "align_corners", halfPixelCenters=how == "half_pixel",
    )  # fmt: skip


def _other_places(step: OpContext, x: NhwcTensor, how: str) -> list[list[int]]:
    # The nearest rows and columns, if the operator of the file has others; else an empty list.
    found, usual = [], []
    offset = np.float32(0.5 if how == "half_pixel" else 0.0)
    scales = step.constant(2)
    for i in (0, 1):
        length, count = x.shape[1 + i], step.shape[2 + i]
        by_size = np.float32(length) / np.float32(count)
        each = np.arange(count, dtype=np.float32) + offset
        steps = np.float32(1.0 / float(scales[2 + i])) if scales is not None and len(scales) == 4 else by_size, by_size
        places = [np.floor(each * s).astype(int).clip(0, length - 1).tolist() for s in steps]
        found.append(places[0])
        usual.append(places[1])
    whole = all(step.shape[2 + i] % x.shape[1 + i] == 0 for i in (0, 1))
    return [] if whole or (step.file.batched and found == usual) else found


def tile(step: OpContext) -> None:
    """Write TILE; copies of a tensor for each example are a sum with zeros that have the batch axis."""
    step.on_codes(0)
    x = step.writer.plain(step.input())
    if step.source.varies(step.node.input[0]) is None and step.source.varies(step.output) == 0:
        x, factors = copies_for_examples(step, x), [b // a for a, b in zip(x.shape, step.shape, strict=True)]
    else:
        factors = [int(n) for n in step.constant(1)]
    if factors[0] != 1 and step.source.varies(step.node.input[0]) == 0:
        raise step.refuse(f"{factors[0]} copies of the batch", "copies along other axes", "Repeat along another axis.")
    constant = step.file.integers(factors, f"{step.name}.multiples")
    step.file.operator("TILE", [x, constant], [step.result(step.shape)], "TileOptions")


def depth_to_space(step: OpContext) -> None:
    """Write a RESHAPE to [N, C, b, b, H, W] or [N, b, b, C, H, W], a TRANSPOSE and a RESHAPE."""
    step.on_codes(0)
    x, block = step.writer.plain(step.input()), int(step.attribute("blocksize"))
    n, channels, height, width = x.shape
    rest = channels // block**2
    first = step.attribute("mode", b"DCR") == b"CRD"
    shape, order = ((n, rest, block, block, height, width), [0, 1, 4, 2, 5, 3])
    if not first:
        shape, order = (n, block, block, rest, height, width), [0, 3, 4, 1, 5, 2]
    _regrouped(step, x, shape, order)


def space_to_depth(step: OpContext) -> None:
    """Write a RESHAPE to [N, C, H, b, W, b], a TRANSPOSE to [N, b, b, C, H, W] and a RESHAPE."""
    step.on_codes(0)
    x, block = step.writer.plain(step.input()), int(step.attribute("blocksize"))
    n, channels, height, width = x.shape
    _regrouped(step, x, (n, channels, height // block, block, width // block, block), [0, 3, 5, 1, 2, 4])


def _regrouped(step: OpContext, x: NhwcTensor, shape: Sequence[int], order: Sequence[int]) -> None:
    parts = step.reshaped(x, shape, step.inner("parts", shape, x))
    turned = step.inner("turned", [shape[i] for i in order], x)
    step.file.operator("TRANSPOSE", [parts, step.file.integers(order, f"{step.name}.order")], [turned], "TransposeOptions")
    step.reshaped(turned, step.shape, step.result(step.shape))


def where(step: OpContext) -> None:
    """Write a choice by a constant condition: bounds if one of the values is a constant, else products with 0 and 1.

    Raises:
        DeployError: a condition that the model computes, other than a mask among its inputs.
    """
    condition = step.number(0)
    if condition is None:
        return choice(step, Formula(step))
    f = Formula(step)
    for index, chosen in ((1, condition), (2, ~condition)):
        tensor = step.writer.tensor(step.node.input[index])
        if tensor.value is None:
            continue
        value = tensor.value if tensor.qparams is None else dequantized(tensor.value, tensor.qparams)
        x = step.writer.plain(step.input(3 - index))
        low, high = (_constant(step, f, np.where(chosen, value, free)) for free in (-np.inf, np.inf))
        f("MAXIMUM", f("MINIMUM", x, high), low, into=step.result(step.shape))
        return
    kept, other = (_constant(step, f, mask.astype(np.float32)) for mask in (condition, ~condition))
    parts = [f("MUL", step.writer.plain(step.input(i)), mask) for i, mask in ((1, kept), (2, other))]
    f("ADD", *parts, into=step.result(step.shape))


def _constant(step: OpContext, f: Formula, value: Any) -> NhwcTensor:
    f.count += 1
    constant = np.ascontiguousarray(value, np.float32)
    return step.file.tensor(f"{step.name}.bounds_{f.count}", constant.shape, value=constant)
