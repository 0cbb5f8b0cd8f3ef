"""How ops that compute in float are written in ONNX."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from qfunc.errors import DeployError
from qfunc.lowering.onnx_call import Call, known

Write = Callable[[Call], str]
INTEGER, FLOAT, BOOL, INT32 = 7, 1, 9, 6  # TensorProto


def formula(text: str, **parameters: str) -> Write:
    """An op as ONNX ops in order, "Abs x; Add . 1": x is the input, "." the value before, names are parameters.

    A number is a constant of the input's type, `$n` the value of the n-th op.
    """
    steps = [step.split() for step in text.split(";")]

    def write(c: Call) -> str:
        made: list[str] = []

        def operand(word: str) -> str:
            if word in ("x", "."):
                return c.input() if word == "x" else made[-1]
            if word.startswith("$"):
                return made[int(word[1:])]
            value = float(c[word]) if c.takes(word) else float(word)
            return c.graph.number(value, f"{c.name}.{word}")

        for place, (op, *words) in enumerate(steps):
            inputs = [operand(w) for w in words]
            last = place == len(steps) - 1
            made.append(c.write(op, *inputs) if last else c.graph.node(op, inputs, f"{c.name}.{op.lower()}"))
        return made[-1]

    return write


def with_attributes(op: str, **attributes: Any) -> Write:
    """One ONNX op; texts name the op's parameters."""

    def write(c: Call) -> str:
        given = {k: float(c[v]) if isinstance(v, str) else v for k, v in attributes.items()}
        return c.write(op, c.input(), **given)

    return write


def _dims(c: Call, name: str = "dim") -> list[int]:
    """The axes that an op reduces; none given means all."""
    value = c[name]
    dims = [value] if isinstance(value, int) else list(value or range(c.shape().rank))
    return [d % c.shape().rank for d in dims]


def reduced(c: Call, op: str, value: str, dims: list[int], keepdim: bool, name: str = "") -> str:
    """A reduction over some axes, which are attributes in old opsets."""
    axes: dict[str, Any] = {"axes": dims} if c.graph.opset < 18 and op != "ReduceSum" else {}
    inputs = [value] if axes else [value, c.graph.integers(*dims, name=f"{c.name}.axes")]
    return c.graph.node(op, inputs, name or c.name, keepdims=int(keepdim), **axes)


def _reduce(op: str) -> Write:
    return lambda c: reduced(c, op, c.input(), _dims(c), bool(c["keepdim"]))


def _logical(op: str) -> Write:
    # any and all: the greatest or least of 0 and 1.
    def write(c: Call) -> str:
        held = c.graph.node("Cast", [c.graph.node("Cast", [c.input()], f"{c.name}.bool", to=BOOL)], f"{c.name}.int", to=INT32)
        found = reduced(c, op, held, _dims(c), bool(c["keepdim"]), f"{c.name}.reduced")
        return c.write("Cast", found, to=BOOL)

    return write


def _arg(op: str) -> Write:
    def write(c: Call) -> str:
        if c["dim"] is not None:
            return c.write(op, c.input(), axis=c["dim"], keepdims=int(c["keepdim"]))
        flat = c.graph.node("Reshape", [c.input(), c.graph.integers(-1, name=f"{c.name}.flat_shape")], f"{c.name}.flat")
        return c.write(op, flat, axis=0, keepdims=0)

    return write


def _variance(root: bool) -> Write:
    def write(c: Call) -> str:
        g, dims, keep = c.graph, _dims(c), bool(c["keepdim"])
        count = math.prod(known(c, c.shape().dims[d]) for d in dims)
        mean = reduced(c, "ReduceMean", c.input(), dims, True, f"{c.name}.mean")
        apart = g.node("Sub", [c.input(), mean], f"{c.name}.centred")
        total = reduced(c, "ReduceSumSquare", apart, dims, keep, f"{c.name}.squares")
        degrees = g.number(max(count - float(c["correction"]), 0.0), f"{c.name}.degrees")
        return c.write("Sqrt", g.node("Div", [total, degrees], f"{c.name}.var")) if root else c.write("Div", total, degrees)

    return write


def _lengths(c: Call, value: str, order: float, dims: list[int], keepdim: bool, name: str) -> str:
    if order not in (1, 2):
        do = "Write it with abs, pow and sum."
        raise DeployError(where=f"op {c.name!r}", found=f"a norm of order {order}", wanted="order 1 or 2", do=do)
    return reduced(c, f"ReduceL{int(order)}", value, dims, keepdim, name)


def _vector_norm(c: Call) -> str:
    return _lengths(c, c.input(), c["ord"], _dims(c), bool(c["keepdim"]), c.name)


def _normalize(c: Call) -> str:
    lengths = _lengths(c, c.input(), c["p"], _dims(c), True, f"{c.name}.length")
    return c.write(
        "Div", c.input(), c.graph.node("Max", [lengths, c.graph.number(c["eps"], f"{c.name}.eps")], f"{c.name}.above")
    )


def _cosine(c: Call) -> str:
    g, dims = c.graph, [c["dim"] % c.result.rank + (c["dim"] < 0)]
    least, unit = g.number(c["eps"], f"{c.name}.eps"), []
    for name in ("x1", "x2"):
        length = reduced(c, "ReduceL2", c.input(name), dims, True, f"{c.name}.{name}.length")
        unit.append(
            g.node("Div", [c.input(name), g.node("Max", [length, least], f"{c.name}.{name}.above")], f"{c.name}.{name}")
        )
    return reduced(c, "ReduceSum", g.node("Mul", unit, f"{c.name}.product"), dims, False)


def _shuffle(c: Call) -> str:
    if c.shape().rank != 4:
        do = "Add a batch axis."
        raise DeployError(where=f"op {c.name!r}", found=f"rank {c.shape().rank}", wanted="rank 4", do=do)
    return c.write("DepthToSpace", c.input(), blocksize=c["upscale_factor"], mode="CRD")


def _regrouped(c: Call, inner: list[int], order: list[int]) -> str:
    # Reshape, Transpose, Reshape; the batch is the first axis, 0 keeps it.
    g = c.graph
    split = g.node("Reshape", [c.input(), g.integers(0, *inner, name=f"{c.name}.inner_shape")], f"{c.name}.split")
    turned = g.node("Transpose", [split], f"{c.name}.turned", perm=order)
    outer = [known(c, d) for d in c.result.dims[1:]]
    return c.write("Reshape", turned, g.integers(0, *outer, name=f"{c.name}.shape"))


def _unshuffle(c: Call) -> str:
    f, (channels, height, width) = c["downscale_factor"], (known(c, d) for d in c.shape().dims[1:])
    return _regrouped(c, [channels, height // f, f, width // f, f], [0, 1, 3, 5, 2, 4])


def _channel_shuffle(c: Call) -> str:
    channels, *spatial = (known(c, d) for d in c.shape().dims[1:])
    rest = list(range(3, 3 + len(spatial)))
    return _regrouped(c, [c["groups"], channels // c["groups"], *spatial], [0, 2, 1, *rest])


def _grid_sample(c: Call) -> str:
    modes = ("linear", "cubic") if c.graph.opset >= 20 else ("bilinear", "bicubic")
    mode = {"bilinear": modes[0], "bicubic": modes[1]}.get(c["mode"], c["mode"])
    corners = int(bool(c["align_corners"]))
    return c.write("GridSample", c.input(), c.input("grid"), mode=mode, padding_mode=c["padding_mode"], align_corners=corners)


def _flip(c: Call) -> str:
    dims = _dims(c, "dims")
    columns = ([-1] * len(dims), [-(2**62)] * len(dims), dims, [-1] * len(dims))
    vectors = [
        c.graph.integers(*v, name=f"{c.name}.{n}") for v, n in zip(columns, ("start", "end", "axes", "step"), strict=True)
    ]
    return c.write("Slice", c.input(), *vectors)


def _repeat_interleave(c: Call) -> str:
    if not isinstance(c["repeats"], int) or c["dim"] is None:
        do = "Give repeats=number and dim."
        raise DeployError(where=f"op {c.name!r}", found="repeats by tensor or without dim", wanted="one number", do=do)
    axis = c["dim"] % c.shape().rank
    places = np.repeat(np.arange(known(c, c.shape().dims[axis])), c["repeats"])
    return c.write("Gather", c.input(), c.graph.constant(places.astype(np.int64), f"{c.name}.places"), axis=axis)


def _tile(c: Call) -> str:
    repeats = [1] * (c.shape().rank - len(c["dims"])) + list(c["dims"])
    return c.write("Tile", c.input(), c.graph.integers(*repeats, name=f"{c.name}.repeats"))


def _repeat_heads(c: Call) -> str:
    heads, times = known(c, c.shape().dims[-3]), known(c, c.shape("like").dims[-3])
    places = np.repeat(np.arange(heads), times // heads).astype(np.int64)
    return c.write("Gather", c.input(), c.graph.constant(places, f"{c.name}.places"), axis=c.shape().rank - 3)


def _binary(op: str, last: str = "") -> Write:
    def write(c: Call) -> str:
        value = c.graph.node(op, [c.input(), c.input("other")], f"{c.name}.{op.lower()}" if last else c.name)
        return c.write(last, value) if last else value

    return write


def _floor_divide(c: Call) -> str:
    if c.result.dtype.is_floating_point:
        return _binary("Div", "Floor")(c)
    g = c.graph  # integers of ONNX divide towards zero
    real = [g.node("Cast", [c.input(p)], f"{c.name}.{p}.real", to=11) for p in ("input", "other")]
    return c.write("Cast", g.node("Floor", [g.node("Div", real, f"{c.name}.div")], f"{c.name}.floor"), to=_element(c))


def _element(c: Call) -> int:
    return {torch.int64: 7, torch.int32: 6, torch.float32: 1}.get(c.result.dtype, 7)


def _remainder(c: Call) -> str:
    if not c.result.dtype.is_floating_point:
        return c.write("Mod", c.input(), c.input("other"))
    g = c.graph
    whole = g.node("Floor", [g.node("Div", [c.input(), c.input("other")], f"{c.name}.div")], f"{c.name}.floor")
    return c.write("Sub", c.input(), g.node("Mul", [whole, c.input("other")], f"{c.name}.multiple"))


def _threshold(c: Call) -> str:
    g = c.graph
    over = g.node("Greater", [c.input(), g.number(float(c["threshold"]), f"{c.name}.threshold")], f"{c.name}.over")
    apart = g.node("Max", [c.input()], f"{c.name}.float")  # a copy: ONNX Runtime would quantize a Where of numbers by itself
    return c.write("Where", over, apart, g.number(float(c["value"]), f"{c.name}.value"))


def _glu(c: Call) -> str:
    names = [f"{c.name}.{n}" for n in ("value", "gate")]
    value, gate = c.graph.many("Split", [c.input()], names, axis=c["dim"], num_outputs=2 if c.graph.opset >= 18 else None)
    return c.write("Mul", value, c.graph.node("Sigmoid", [gate], f"{c.name}.sigmoid"))


def _softmin(c: Call) -> str:
    return c.write("Softmax", c.graph.node("Neg", [c.input()], f"{c.name}.neg"), axis=c["dim"])


def _einsum(c: Call) -> str:
    return c.write("Einsum", *(c.read(n) for n in c["operands"]), equation=c["equation"])


def _one_hot(c: Call) -> str:
    g = c.graph
    depth = g.constant(np.array(c["num_classes"], np.int64), f"{c.name}.depth")
    return c.write("OneHot", c.input("indices"), depth, g.constant(np.array([0, 1], np.int64), f"{c.name}.values"), axis=-1)


def _response_norm(c: Call) -> str:
    return c.write("LRN", c.input(), size=c["size"], alpha=float(c["alpha"]), beta=float(c["beta"]), bias=float(c["k"]))


def _adaptive_max(c: Call) -> str:
    out, source = c.result.dims[2:], c.shape().dims[2:]
    if all(o == 1 for o in out):
        return c.write("GlobalMaxPool", c.input())
    if any(not s or not o or s % o for s, o in zip(source, out, strict=True)):
        do = "Resize the input, or pool to a divisor of its size."
        raise DeployError(where=f"op {c.name!r}", found=f"adaptive pooling of {source} to {out}", wanted="whole windows", do=do)
    kernel = [int(s) // int(o) for s, o in zip(source, out, strict=True)]  # type: ignore[arg-type]
    return c.write("MaxPool", c.input(), kernel_shape=kernel, strides=kernel)


def _instance_norm(c: Call) -> str:
    if not c["use_input_stats"]:
        do = "Use nn.BatchNorm, or use_input_stats=True."
        raise DeployError(where=f"op {c.name!r}", found="running statistics", wanted="those of the input", do=do)
    channels = known(c, c.shape().dims[1])
    given = [c.input(p) if c[p] is not None else c.graph.constant(np.full(channels, fill, np.float32), f"{c.name}.{p}")
             for p, fill in (("weight", 1), ("bias", 0))]  # fmt: skip
    return c.write("InstanceNormalization", c.input(), *given, epsilon=float(c["eps"]))


def _scaled(c: Call) -> str:
    factor = known(c, c.shape("like").dims[-1]) ** -0.5 if c["factor"] is None else float(c["factor"])
    return c.write("Mul", c.input(), c.graph.number(factor, f"{c.name}.factor"))


def _masked(c: Call) -> str:
    g, low = c.graph, -math.inf
    if c["causal"]:
        sizes = [known(c, d) for d in c.shape().dims[-2:]]
        mask = np.where(np.tril(np.ones(sizes, bool)), 0, low).astype(np.float32)
        return c.write("Add", c.input(), g.constant(mask, f"{c.name}.mask"))
    if c["mask"] is None:
        return c.write("Identity", c.input())
    if c.shape("mask").dtype == torch.bool:
        return c.write("Where", c.input("mask"), c.input(), g.number(low, f"{c.name}.drop"))
    return c.write("Add", c.input(), c.input("mask"))


def _left_out(c: Call) -> str:
    return c.write("Not" if c.shape("mask").dtype == torch.bool else "Identity", c.input("mask"))


FLOAT_WRITERS: dict[str, Write] = {
    **{name: formula(f"{name.capitalize()} x") for name in ("tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh",
                                                            "atanh", "ceil", "round", "sign", "selu", "softsign")},
    "isnan": formula("IsNaN x"), "isinf": formula("IsInf x"), "log1p": formula("Add x 1; Log ."),
    "expm1": formula("Exp x; Sub . 1"), "log2": formula(f"Log x; Div . {math.log(2)}"),
    "log10": formula(f"Log x; Div . {math.log(10)}"), "exp2": formula(f"Mul x {math.log(2)}; Exp ."),
    "square": formula("Mul x x"), "trunc": formula("Abs x; Floor .; Sign x; Mul $1 $2"),
    "frac": formula("Abs x; Floor .; Sign x; Mul $1 $2; Sub x ."), "erfc": formula("Erf x; Neg .; Add . 1"),
    "celu": with_attributes("Celu", alpha="alpha"),
    "softshrink": with_attributes("Shrink", lambd="lambd", bias="lambd"),
    "hardshrink": with_attributes("Shrink", lambd="lambd", bias=0.0),
    "tanhshrink": formula("Tanh x; Sub x ."), "log_sigmoid": formula("Neg x; Softplus .; Neg ."),
    "threshold": _threshold, "glu": _glu, "softmin": _softmin,
    "argmax": _arg("ArgMax"), "argmin": _arg("ArgMin"), "amax": _reduce("ReduceMax"), "amin": _reduce("ReduceMin"),
    "prod": _reduce("ReduceProd"), "logsumexp": _reduce("ReduceLogSumExp"), "any": _logical("ReduceMax"),
    "all": _logical("ReduceMin"), "var": _variance(False), "std": _variance(True), "vector_norm": _vector_norm,
    "normalize": _normalize, "cosine_similarity": _cosine, "einsum": _einsum, "pixel_shuffle": _shuffle,
    "pixel_unshuffle": _unshuffle, "channel_shuffle": _channel_shuffle, "grid_sample": _grid_sample, "flip": _flip,
    "repeat_interleave": _repeat_interleave, "tile": _tile, "repeat_heads": _repeat_heads, "floor_divide": _floor_divide,
    "remainder": _remainder, "fmod": lambda c: c.write("Mod", c.input(), c.input("other"), fmod=1), "one_hot": _one_hot,
    "local_response_norm": _response_norm, "adaptive_max_pool": _adaptive_max, "instance_norm": _instance_norm,
    "left_out": _left_out,
    "scale": _scaled, "mask": _masked,
}  # fmt: skip
"""The writers of this file, by kind."""


def _topk(c: Call) -> list[str]:
    count = c.graph.integers(c["k"], name=f"{c.name}.k")
    names = [f"{c.name}.{n}" for n in ("values", "indices")]
    return c.graph.many("TopK", [c.input(), count], names, axis=c["dim"], largest=int(c["largest"]), sorted=int(c["sorted"]))


def _sort(c: Call) -> list[str]:
    axis = c["dim"] % c.shape().rank
    count = c.graph.integers(known(c, c.shape().dims[axis]), name=f"{c.name}.k")
    names = [f"{c.name}.{n}" for n in ("values", "indices")]
    return c.graph.many("TopK", [c.input(), count], names, axis=axis, largest=int(c["descending"]), sorted=1)


def _along(name: str) -> Callable[[Call], list[str]]:
    def write(c: Call) -> list[str]:
        keep = bool(c["keepdim"])
        values = reduced(c, f"Reduce{name}", c.input(), [c["dim"]], keep, f"{c.name}.values")
        return [values, c.graph.node(f"Arg{name}", [c.input()], f"{c.name}.indices", axis=c["dim"], keepdims=int(keep))]

    return write


FLOAT_SEVERAL: dict[str, Callable[[Call], list[str]]] = {
    "topk": _topk,
    "sort": _sort,
    "max": _along("Max"),
    "min": _along("Min"),
}
"""Writers of ops with several results: the name of each."""
