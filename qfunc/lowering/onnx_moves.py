"""How ops that move values are written in ONNX: shapes, slices, pads, resizing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from qfunc.errors import DeployError
from qfunc.lowering.onnx_call import Call, known
from qfunc.lowering.onnx_sizes import number, shape_operand, sizes, vector
from qfunc.lowering.shapes import Shape


def write_reshape(c: Call) -> str:
    """Reshape."""
    return c.write("Reshape", c.input(), shape_operand(c, f"{c.name}.shape", c.shape()))


def write_flatten(c: Call) -> str:
    """Flatten, or Reshape where it keeps more than one axis."""
    whole = c["start_dim"] == 1 and c["end_dim"] in (-1, c.shape().rank - 1)
    return c.write("Flatten", c.input(), axis=1) if whole else write_reshape(c)


def write_transpose(c: Call) -> str:
    """Transpose of two axes or by an order."""
    rank = c.shape().rank
    if c.takes("dims"):
        order = [d % rank for d in c["dims"]]
    elif c.takes("source"):
        order = _moved(c, rank)
    elif not c.takes("dim0"):  # the first two axes of three
        order = [1, 0, 2][:rank] if rank == 3 else list(range(rank))
    else:
        order, a, b = list(range(rank)), c["dim0"] % rank, c["dim1"] % rank
        order[a], order[b] = order[b], order[a]
    return c.write("Transpose", c.input(), perm=order)


def _moved(c: Call, rank: int) -> list[int]:
    places = [[d % rank for d in ((c[n],) if isinstance(c[n], int) else c[n])] for n in ("source", "destination")]
    order = [d for d in range(rank) if d not in places[0]]
    for to, given in sorted(zip(places[1], places[0], strict=True)):
        order.insert(to, given)
    return order


def over_axes(op: str) -> Callable[[Call], str]:
    """Squeeze and Unsqueeze."""

    def write(c: Call) -> str:
        rank = c.shape().rank
        given = c["dim"] if c.takes("dim") else tuple(range(rank))  # squeeze() takes all of length 1
        dims = given if isinstance(given, list | tuple) else (given,)
        kept = [d for d in dims if op == "Unsqueeze" or c.shape().dims[d % rank] == 1]
        return c.write(op, c.input(), c.graph.integers(*kept, name=f"{c.name}.axes"))

    return write


def write_slice(c: Call) -> str:
    """Indexing by numbers, slices, None and ... ."""
    index = c["index"] if isinstance(c["index"], tuple | list) else (c["index"],)
    index = [_numbers(c, i) for i in index]
    if any(not isinstance(i, int | slice | None | type(Ellipsis)) for i in index):
        do = "Index with numbers and slices."
        raise DeployError(where=f"op {c.name!r}", found=f"indexing by {index}", wanted="numbers, slices, None or ...", do=do)
    rank, used = c.shape().rank, sum(i is not None and i is not Ellipsis for i in index)
    place = next((k for k, i in enumerate(index) if i is Ellipsis), len(index))
    full = [*index[:place], *[slice(None)] * (rank - used), *index[place + 1 :]]
    cuts: list[tuple[Any, Any, int, int]] = []
    gone: list[int] = []
    new: list[int] = []
    axis = 0
    for at, entry in enumerate(full):
        if entry is None:
            new.append(at - len(gone))
            continue
        if isinstance(entry, int):
            cuts.append((entry, entry + 1 if entry != -1 else 2**62, axis, 1))
            gone.append(axis)
        elif (entry.start, entry.stop, entry.step) not in ((None, None, None), (0, None, None), (0, None, 1), (None, None, 1)):
            cuts.append((entry.start or 0, 2**62 if entry.stop is None else entry.stop, axis, entry.step or 1))
        axis += 1
    return _sliced(c, cuts, gone, new)


def _numbers(c: Call, entry: Any) -> Any:
    # What is computed from sizes that never vary is a plain number.
    if isinstance(entry, slice):
        return slice(*(number(c, v) for v in (entry.start, entry.stop, entry.step)))
    return number(c, entry)


def _sliced(c: Call, cuts: list[tuple[Any, Any, int, int]], gone: list[int], new: list[int]) -> str:
    g, value = c.graph, c.input()
    steps: list[tuple[str, list[list[Any]]]] = []
    if cuts or not (gone or new):
        columns = [list(column) for column in zip(*cuts, strict=True)] if cuts else [[0], [2**62], [0], [1]]
        steps.append(("Slice", columns))
    steps += [("Squeeze", [gone])] if gone else []
    steps += [("Unsqueeze", [new])] if new else []
    for k, (op, vectors) in enumerate(steps):
        arguments = [vector(c, v, f"{c.name}.{op.lower()}_{i}") for i, v in enumerate(vectors)]
        last = k == len(steps) - 1
        made = g.node(op, [value, *arguments], c.name if last else f"{c.name}.{op.lower()}")
        value = made if last else c.between(made, "after")
    return value


def write_expand(c: Call) -> str:
    """Expand; axes that the input has already stay."""
    ours = c.shape().tried
    have = ((),) * (c.result.rank - len(ours)) + ours
    dims = [1 if d is None and h == t else e
            for d, h, t, e in zip(c.result.dims, have, c.result.tried, sizes(c, c.result), strict=True)]  # fmt: skip
    return c.write("Expand", c.input(), vector(c, dims, f"{c.name}.shape"))


def write_pad(c: Call) -> str:
    """Pad."""
    rank, pads = c.shape().rank, list(c["pad"])
    begin, end = [0] * rank, [0] * rank
    for k in range(len(pads) // 2):
        begin[rank - 1 - k], end[rank - 1 - k] = pads[2 * k], pads[2 * k + 1]
    mode = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}[c["mode"]]
    value = [c.graph.number(float(c["value"] or 0), f"{c.name}.value")] if mode == "constant" else []
    return c.write("Pad", c.input(), vector(c, [*begin, *end], f"{c.name}.pads"), *value, mode=mode)


def write_resize(c: Call) -> str:
    """Resize by factors or to sizes, with torch's coordinates."""
    if c["mode"] == "area":
        return _averaged(c)
    named = {"nearest": "nearest", "nearest-exact": "nearest", "bicubic": "cubic"}
    mode = named.get(c["mode"], "linear" if c["mode"] in ("linear", "bilinear", "trilinear") else None)
    if mode is None:
        wanted = "nearest, nearest-exact, linear, bilinear, trilinear, bicubic or area"
        raise DeployError(where=f"op {c.name!r}", found=f"mode {c['mode']!r}", wanted=wanted, do="Use one of them.")
    corners = "align_corners" if c["align_corners"] else "half_pixel"
    attributes: dict[str, Any] = {"coordinate_transformation_mode": corners, "mode": mode}
    if mode == "nearest":
        exact = c["mode"] == "nearest-exact"
        attributes |= {"coordinate_transformation_mode": "half_pixel" if exact else "asymmetric"}
        attributes |= {"nearest_mode": "round_prefer_ceil" if exact else "floor"}
    if mode == "cubic":
        attributes |= {"cubic_coeff_a": -0.75}
    spatial, source = c.result.dims[2:], c.shape().dims[2:]
    factor = c["scale_factor"]
    if factor is not None and not c["recompute_scale_factor"]:
        factors = [float(f) for f in (factor if isinstance(factor, list | tuple) else (factor,) * len(spatial))]
    else:
        found = [_factor(int(a or 0), int(b or 0), c["mode"] == "nearest") for a, b in zip(source, spatial, strict=True)]
        if None in found:
            return c.write("Resize", c.input(), "", "", vector(c, sizes(c, c.result), f"{c.name}.sizes"), **attributes)
        factors = [f for f in found if f is not None]
    scales = c.graph.constant(np.array([1.0, 1.0, *factors], np.float32), f"{c.name}.scales")
    return c.write("Resize", c.input(), "", scales, **attributes)


def _factor(have: int, want: int, nearest: bool) -> float | None:
    # A float32 near want / have with which ONNX finds `want` entries, each where torch finds it; None if there is none.
    if not have or not want:
        return None
    exact, place = np.float32(want / have), np.arange(want, dtype=np.float32)
    for factor in (exact, np.nextafter(exact, np.float32(np.inf)), np.nextafter(exact, np.float32(0))):
        same = (np.floor(place / factor) == np.floor(place * np.float32(have / want))).all() or not nearest
        if int(have * float(factor)) == want and same:
            return float(factor)
    return None


def _averaged(c: Call) -> str:
    # "area" is adaptive average pooling.
    out, source = c.result.dims[2:], c.shape().dims[2:]
    if any(not s or not o or s % o for s, o in zip(source, out, strict=True)):
        do = "Resize to a divisor of the size, or use another mode."
        raise DeployError(where=f"op {c.name!r}", found=f"mode 'area' from {source} to {out}", wanted="whole windows", do=do)
    kernel = [int(s) // int(o) for s, o in zip(source, out, strict=True)]  # type: ignore[arg-type]
    pooled = c.graph.node("AveragePool", [c.input()], f"{c.name}.pooled", kernel_shape=kernel, strides=kernel)
    return c.write("Max", pooled)  # a copy: else ONNX Runtime would pool codes, which no kernel of "resize" does


def write_split(c: Call, used: list[Any]) -> list[str]:
    """Split and chunk: the names of all parts.

    Unless each part is taken out once, as slices: the runtime splits codes only if all parts are codes.
    """
    parts: tuple[Shape, ...] = c.shapes[c.node.name]
    axis = c["dim"] % c.shape().rank
    lengths = [known(c, p.dims[axis]) for p in parts]
    used = [i % len(parts) for i in used]  # parts[-1]
    if sorted(used) == list(range(len(parts))):
        sizes = c.graph.integers(*lengths, name=f"{c.name}.sizes")
        return c.graph.many("Split", [c.input(), sizes], [f"{c.name}.{i}" for i in range(len(parts))], axis=axis)
    names, start = [], 0
    for i, length in enumerate(lengths):
        if i in used:
            vectors = [
                c.graph.integers(v, name=f"{c.name}.{i}.{n}")
                for v, n in ((start, "start"), (start + length, "end"), (axis, "axis"))
            ]
            names.append(c.graph.node("Slice", [c.input(), *vectors], f"{c.name}.{i}"))
        else:
            names.append("")
        start += length
    return names
