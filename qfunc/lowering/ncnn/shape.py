"""Write ops that move values as layers of ncnn: shapes, slices, pads, joining, resizing."""

from __future__ import annotations

from qfunc.lowering.ncnn.builder import Blob
from qfunc.lowering.ncnn.elementwise import axis_of
from qfunc.lowering.ncnn.writer import Constant, OpContext

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
    """Write Permute of the axes after the batch."""
    x = step.input()
    full = len(step.source.shape(step.node.input[0], step.node.name))
    perm = [int(p) for p in step.attribute("perm") or range(full)[::-1]]
    dropped = full - len(x.shape)
    if perm[:dropped] != list(range(dropped)):
        raise step.refuse(f"axes in the order {perm}", "the batch first", "Leave the batch where it is.")
    order = tuple(p - dropped for p in perm[dropped:])
    if order == tuple(range(len(order))):
        return step.keep(x)
    return step.write_result("Permute", x, p0=order_type(order))


def sliced(step: OpContext) -> None:
    """Write Crop; steps along height and width are maxima over windows of one entry.

    Raises:
        DeployError: steps along another axis, or backwards.
    """
    starts, ends, axes, steps = (step.constant(i) for i in (1, 2, 3, 4))
    axes = range(len(starts)) if axes is None else axes
    steps = [1] * len(starts) if steps is None else [int(s) for s in steps]
    x, cuts = step.input(), dict[int, tuple[int, int]]()
    strides = dict[int, int]()
    for begin, end, axis, stride in zip(starts, ends, axes, steps, strict=True):
        place = axis_of(step, int(axis))
        cuts[place] = slice(int(begin), int(end)).indices(x.shape[place])[:2]
        strides |= {place: stride} if stride != 1 else {}
    if not strides:
        return step.keep(_cut(step, x, cuts, step.output))
    if len(x.shape) != 3 or 0 in strides or min(strides.values()) < 1:
        raise step.refuse(f"steps of {steps}", "1 but along height and width", "Take every entry.")
    cut = _cut(step, x, cuts, f"{step.output}.whole")
    return step.write_result("Pooling", cut, p0=0, p1=1, p2=strides.get(2, 1), p5=1, p11=1, p12=strides.get(1, 1))


def split(step: OpContext) -> None:
    """Write a Crop for each part."""
    x, axis, start = step.input(), axis_of(step, int(step.attribute("axis", 0))), 0
    for output in map(str, step.node.output):
        length = step.source.shape(output, step.node.name)[int(step.attribute("axis", 0))]
        step.keep(_cut(step, x, {axis: (start, start + length)}, output), output)
        start += length


def _cut(step: OpContext, x: Blob, cuts: dict[int, tuple[int, int]], name: str) -> Blob:
    shape = [cuts[i][1] - cuts[i][0] if i in cuts else n for i, n in enumerate(x.shape)]
    axes = sorted(cuts)
    parameters = {9: [cuts[a][0] for a in axes], 10: [cuts[a][1] for a in axes], 11: axes}
    return step.file.layer("Crop", [x], name, shape, parameters)


def concat(step: OpContext) -> None:
    """Write Concat."""
    operands = [step.input(i) for i in range(len(step.node.input))]
    step.write_result("Concat", *operands, p0=axis_of(step, int(step.attribute("axis"))))


def pad(step: OpContext) -> None:
    """Write Padding of the last two axes and the channels: a constant, the edge or its mirror image.

    Raises:
        DeployError: another mode.
    """
    modes = {"constant": 0, "edge": 1, "reflect": 2}
    mode = step.attribute("mode", b"constant").decode()
    if mode not in modes:
        raise step.refuse(f"padding of mode {mode!r}", "constant, edge or reflect", "Pad by one of them.")
    value, x = step.constant(2), step.input()
    pads = [int(p) for p in step.constant(1)]
    rank, dims = len(pads) // 2, len(x.shape)
    before, after = pads[rank - dims : rank], pads[2 * rank - dims :]
    # A negative pad cuts. ncnn's Padding has pads of at least 0.
    cuts = {
        i: (max(-b, 0), n + min(a, 0)) for i, (b, a, n) in enumerate(zip(before, after, x.shape, strict=True)) if min(b, a) < 0
    }
    before, after = [max(p, 0) for p in before], [max(p, 0) for p in after]
    if cuts:
        x = _cut(step, x, cuts, f"{step.output}.cut" if any((*before, *after)) else step.output)
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
    return step.keep(step.file.layer("Padding", [x], step.output, step.shape, dict(sorted(parameters.items()))))


def resize(step: OpContext) -> None:
    """Write Interp, to the nearest or linear along both axes."""
    mode, how = (step.attribute(n, b"").decode() for n in ("mode", "coordinate_transformation_mode"))
    if len(step.shape) != 3 or mode not in ("nearest", "linear"):
        raise step.refuse(f"resizing {len(step.shape) - 1} axes, {mode!r}", "images, nearest or linear", "Resize such images.")
    _, height, width = step.shape
    corners = int(how == "align_corners")
    step.write_result("Interp", step.input(), p0=1 if mode == "nearest" else 2, p3=height, p4=width, p6=corners)


__all__ = ["concat", "order_type", "pad", "reshape", "resize", "sliced", "split", "transpose"]
