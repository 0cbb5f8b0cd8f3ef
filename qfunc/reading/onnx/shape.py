"""Read reshapes, transposes, joins, splits, pads and repeats."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from qfunc.reading.node import NodeReader, Reader
from qfunc.reading.values import Constant, Number, made_of


def _reshape(r: NodeReader) -> Any:
    shape = list(r.listed("shape", 1) or ())
    if not r.attribute("allowzero", 0) and 0 in shape:
        have = r.sizes()
        shape = [have[i] if n == 0 else n for i, n in enumerate(shape)]
    return _viewed(r, shape)


def _viewed(r: NodeReader, shape: Sequence[Number]) -> Any:
    x = r.x()
    if list(shape) == list(r.dims() or (None,)):
        return x
    found = r.call(torch.reshape, x, tuple(shape))
    _note(r, found, [n if isinstance(n, int) and n >= 0 else None for n in shape])
    return found


def _note(r: NodeReader, found: Any, dims: Sequence[int | None]) -> None:
    if isinstance(found, fx.Node):
        r.network.note(found, tuple(dims), None)


def _flatten(r: NodeReader) -> Any:
    rank, axis = r.rank(), int(r.attribute("axis", 1))
    if axis == 1 and (rank is None or rank > 1):
        return r.x() if rank == 2 else r.call(torch.flatten, r.x(), 1)
    rank = r.known_rank()
    axis = axis + rank if axis < 0 else axis
    sizes = r.sizes()
    if axis == rank:
        return _viewed(r, (-1, 1))
    return _viewed(r, (1, -1) if axis == 0 else (_product(r, sizes[:axis]), -1))


def _product(r: NodeReader, sizes: Sequence[Number]) -> Number:
    found: Number = 1
    for size in sizes:
        found = size if found == 1 else r.arithmetic(operator.mul, found, size)
    return found


def _transpose(r: NodeReader) -> Any:
    order = r.attribute("perm") or list(range(r.known_rank()))[::-1]
    return r.x() if list(order) == sorted(order) else r.call(torch.permute, r.x(), tuple(order))


def _squeeze(r: NodeReader) -> Any:
    axes = r.axes()
    if axes is None:
        dims = r.dims()
        if dims is None or any(not isinstance(n, int) for n in dims):
            do = "Name the axes, or fix the sizes: read(..., sizes={name: number})."
            raise r.refuse("all axes of one entry, of sizes that vary", "known axes", do)
        axes = tuple(i for i, n in enumerate(dims) if n == 1)
    rank, found = r.rank(), r.x()
    for axis in sorted((a % rank if rank is not None else a for a in axes), reverse=True):
        found = r.call(torch.squeeze, found, axis)
    return found


def _unsqueeze(r: NodeReader) -> Any:
    axes, found = r.axes() or (), r.x()
    if any(a < 0 for a in axes):
        rank = r.known_rank() + len(axes)
        axes = tuple(a % rank for a in axes)
    for axis in sorted(axes):
        found = r.call(torch.unsqueeze, found, axis)
    return found


def _concat(r: NodeReader) -> Any:
    parts = [r.x(i) for i in range(len(r.inputs)) if r.has(i)]
    kept = [p for i, p in enumerate(parts) if not (isinstance(p, Constant) and p.tensor.numel() == 0)]
    return kept[0] if len(kept) == 1 else r.call(torch.cat, kept or parts, int(r.attribute("axis", 0)))


def _split(r: NodeReader) -> Any:
    axis, lengths = int(r.attribute("axis", 0)), r.listed("split", 1)
    count = len(r.outputs)
    if lengths is None:
        n = r.length(axis)
        step = None if n is None else -(-n // count)
        whole = r.call(torch.chunk, r.x(), count, axis) if step is None else r.call(torch.split, r.x(), step, axis)
    else:
        whole = r.call(torch.split, r.x(), list(lengths), axis)
    if isinstance(whole, tuple):
        return [Constant(part.tensor, name) for part, name in zip(whole, r.outputs, strict=True)]
    return [r.network.call(name, operator.getitem, whole, k) if name else None for k, name in enumerate(r.outputs)]


def _expand(r: NodeReader) -> Any:
    # Of each pair of sizes ONNX takes the larger one, torch the given one: -1 keeps a size.
    shape = list(r.numbers(1, "sizes"))
    have = r.dims()
    if have is None:
        raise r.refuse("an input of unknown rank", "a known rank", r.network.how_to_fix_sizes)
    shape = [1] * (len(have) - len(shape)) + shape
    more = len(shape) - len(have)
    wanted = [n if i < more else -1 if n == 1 or n == have[i - more] else n for i, n in enumerate(shape)]
    if all(n == -1 for n in wanted):
        return r.x()
    found = r.call(torch.Tensor.expand, r.x(), tuple(wanted))
    _note(r, found, [n if isinstance(n, int) and n >= 0 else have[i - more] if n == -1 else None  # type: ignore[misc]
                     for i, n in enumerate(wanted)])  # fmt: skip
    return found


def _tile(r: NodeReader) -> Any:
    repeats = r.numbers(1, "repeats")
    return r.x() if all(n == 1 for n in repeats) else r.call(torch.Tensor.repeat, r.x(), tuple(repeats))


def _pad(r: NodeReader) -> Any:
    given, mode = list(r.listed("pads", 1) or ()), r.attribute("mode", "constant")
    value = r.attribute("value", 0.0) if r.version < 11 else r.number(2) if r.has(2) else 0.0
    if value is None:
        raise r.refuse("a value to pad with that is computed", "a number", "Add the padding by a concatenation.")
    axes = r.axes(3)
    rank = len(given) // 2 if axes is None else r.known_rank()
    before: list[Number] = [0] * rank
    after: list[Number] = [0] * rank
    for i, axis in enumerate(range(rank) if axes is None else axes):
        before[axis], after[axis] = given[i], given[len(given) // 2 + i]
    last = next((i for i in range(rank) if not (before[i] == 0 and after[i] == 0)), rank)
    if last == rank:
        return r.x()
    if mode in ("reflect", "edge", "wrap"):
        last = min(last, 2) if rank - last <= 3 and rank in (3, 4, 5) and last >= 2 else last
    pads = [p for b, e in zip(reversed(before[last:]), reversed(after[last:]), strict=True) for p in (b, e)]
    word = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}[mode]
    return r.call(F.pad, r.x(), pads, word, value if word == "constant" else None)


def _depth_to_space(r: NodeReader) -> Any:
    block = int(r.attribute("blocksize"))
    if r.attribute("mode", "DCR") == "CRD":
        return r.call(torch.pixel_shuffle, r.x(), block)
    n, c, h, w = r.sizes()
    inner = r.arithmetic(operator.floordiv, c, block * block)
    split = r.call(torch.reshape, r.x(), (n, block, block, inner, h, w))
    turned = r.call(torch.permute, split, (0, 3, 4, 1, 5, 2))
    high, wide = (r.arithmetic(operator.mul, size, block) for size in (h, w))
    return r.call(torch.reshape, turned, (n, inner, high, wide))


def _space_to_depth(r: NodeReader) -> Any:
    block = int(r.attribute("blocksize"))
    n, c, h, w = r.sizes()
    high, wide = (r.arithmetic(operator.floordiv, size, block) for size in (h, w))
    split = r.call(torch.reshape, r.x(), (n, c, high, block, wide, block))
    order = (0, 1, 3, 5, 2, 4) if r.attribute("mode", "DCR") == "CRD" else (0, 3, 5, 1, 2, 4)
    turned = r.call(torch.permute, split, order)
    return r.call(torch.reshape, turned, (n, r.arithmetic(operator.mul, c, block * block), high, wide))


def _shape(r: NodeReader) -> Any:
    sizes = r.sizes()[slice(int(r.attribute("start", 0)), r.attribute("end"))]
    return made_of(sizes, False, torch.int64, r.path)


def _size(r: NodeReader) -> Any:
    return made_of([_product(r, r.sizes())], True, torch.int64, r.path)


def _identity(r: NodeReader) -> Any:
    return r.value(0)


def _dropout(r: NodeReader) -> Any:
    if len(r.outputs) > 1 and r.outputs[1]:
        mask = r.call(torch.ones_like, r.x(), dtype=torch.bool)
        return [r.value(0), mask]
    return [r.value(0)]


def _windows(r: NodeReader) -> Any:
    size, kernel = r.numbers(1, "the size of the image"), r.numbers(2, "the size of the blocks")
    rest = [[int(v) for v in r.attribute(name, [default] * 2)] for name, default in (("dilations", 1), ("strides", 1))]
    pads = [int(p) for p in r.attribute("pads", [0] * 4)]
    if len(kernel) != 2 or pads[:2] != pads[2:]:
        raise r.refuse(f"blocks of {len(kernel)} axes, pads {pads}", "images with equal pads", "Leave the op out.")
    return r.call(F.fold, r.x(), tuple(size), tuple(kernel), rest[0], pads[:2], rest[1])


def _center_crop_pad(r: NodeReader) -> Any:
    axes = r.axes(9) if "axes" in r.attribute_names else tuple(range(r.known_rank()))
    found, sizes = r.x(), r.sizes()
    for axis, wanted in zip(axes or (), r.numbers(1, "sizes"), strict=True):
        axis %= r.known_rank()
        have = sizes[axis]
        if not isinstance(have, int) or not isinstance(wanted, int):
            raise r.refuse("sizes that vary", "known sizes", r.network.how_to_fix_sizes)
        start = math.floor((have - wanted) / 2)
        pads = [0] * 2 * (r.known_rank() - axis - 1) + [-start if wanted <= have else (wanted - have) // 2, 0]
        pads[-1] = wanted - have - pads[-2]
        found = r.call(F.pad, found, pads, "constant", 0.0) if wanted != have else found
    return found


READERS: dict[str, Reader] = {
    "Reshape": _reshape, "Flatten": _flatten, "Transpose": _transpose, "Squeeze": _squeeze, "Unsqueeze": _unsqueeze,
    "Concat": _concat, "Split": _split, "Expand": _expand, "Tile": _tile, "Pad": _pad, "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth, "Shape": _shape, "Size": _size, "Identity": _identity, "Dropout": _dropout,
    "Col2Im": _windows, "CenterCropPad": _center_crop_pad,
}  # fmt: skip
"""The readers of this family, by operator."""
