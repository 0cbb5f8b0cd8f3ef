"""Builder of an ncnn model: layers and blobs, written as .param and .bin."""

from __future__ import annotations

import math
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from attrs import field, frozen

from qfunc.files.ncnn_param import MAGIC
from qfunc.lowering.qdq.qparams import Array

_RESERVED = re.compile(r"(in|out)\d+")
"""The names of the inputs and outputs of the file."""
INT8_WEIGHTS = 0x000D4B38
"""The tag before weights of int8 in a .bin."""

Parameter = int | float | Sequence[int] | Sequence[float]


@frozen(eq=False)
class Blob:
    """A tensor in the file.

    Attributes:
        name: Its name.
        shape: Its sizes without the batch, the outermost axis first.
        scale: The scale if it has codes.
        largest: A bound of the magnitude of its real values.
    """

    name: str
    shape: tuple[int, ...]
    scale: float | None = None
    largest: float = math.inf


@frozen(eq=False)
class Layer:
    """One layer: its inputs and outputs, its parameters by number, and its entries in the .bin."""

    kind: str
    name: str
    inputs: tuple[Blob, ...]
    outputs: tuple[Blob, ...]
    parameters: Mapping[int, Parameter] = field(factory=dict)
    weights: tuple[bytes, ...] = ()


class NcnnBuilder:
    """Layers in the order in which they run. `serialize` adds a Split for each blob with several readers."""

    def __init__(self) -> None:
        self.layers: list[Layer] = []
        self.taken: set[str] = set()

    def layer(
        self, kind: str, inputs: Sequence[Blob], name: str, shape: Sequence[int], parameters: Mapping[int, Any] | None = None,
        *, weights: Sequence[bytes] = (), scale: float | None = None, largest: float = math.inf,
    ) -> Blob:  # fmt: skip
        """Add a layer with one output, which has the name of the layer, and return the output.

        `largest` bounds the magnitude of the output; other bounds follow from the kind of the layer.
        """
        bound = min(largest, magnitude(kind, [b.largest for b in inputs], parameters or {}))
        made = Blob(name if kind == "Input" else self._fresh(name), tuple(int(n) for n in shape), scale, bound)
        self.layers.append(Layer(kind, made.name, tuple(inputs), (made,), parameters or {}, tuple(weights)))
        return made

    def outputs(
        self, kind: str, inputs: Sequence[Blob], names: Sequence[str], shapes: Sequence[Sequence[int]],
        parameters: Mapping[int, Any], weights: Sequence[bytes],
    ) -> tuple[Blob, ...]:  # fmt: skip
        """Add a layer with several outputs, which has the name of the first, and return the outputs."""
        made = tuple(Blob(self._fresh(n), tuple(int(s) for s in shape)) for n, shape in zip(names, shapes, strict=True))
        self.layers.append(Layer(kind, made[0].name, tuple(inputs), made, parameters, tuple(weights)))
        return made

    def _fresh(self, name: str) -> str:
        name = "_".join(name.split())
        while name in self.taken or _RESERVED.fullmatch(name):
            name += "_"
        self.taken.add(name)
        return name

    def constant(self, name: str, value: Array) -> Blob:
        """Add a blob of float32 numbers from the .bin, and return it."""
        largest = float(np.abs(value).max()) if value.size else 0.0
        return self.layer("MemoryData", [], name, value.shape, sizes(value.shape), weights=[floats(value)], largest=largest)

    def serialize(self, outputs: Sequence[Blob]) -> dict[str, bytes]:
        """Return the two files; outputs are the blobs "out0", "out1", ..."""
        ends = [Layer("Noop", f"out{i}", (b,), (Blob(f"out{i}", b.shape),)) for i, b in enumerate(outputs)]
        layers = _split([*self._used(outputs), *ends], self._fresh)
        blobs = sum(len(layer.outputs) for layer in layers)
        text = [str(MAGIC), f"{len(layers)} {blobs}", *map(_line, layers)]
        weights = b"".join(b"".join(layer.weights) for layer in layers)
        return {"model.ncnn.param": ("\n".join(text) + "\n").encode(), "model.ncnn.bin": weights}

    def _used(self, outputs: Sequence[Blob]) -> list[Layer]:
        # The layers on which an output depends, and the inputs.
        needed, used = {b.name for b in outputs}, []
        for layer in reversed(self.layers):
            if layer.kind == "Input" or any(b.name in needed for b in layer.outputs):
                used.append(layer)
                needed |= {b.name for b in layer.inputs}
        return used[::-1]


def magnitude(kind: str, inputs: Sequence[float], parameters: Mapping[int, Any]) -> float:
    """Return a bound of the magnitude of a layer's output for bounds of its inputs; infinite for kinds without one here.

    >>> magnitude("Concat", [2.0, 3.0], {}), magnitude("BinaryOp", [2.0, 3.0], {0: 2})
    (3.0, 6.0)
    """
    if kind in _WITHIN_ONE:
        return 1.0
    if kind in _NEVER_LARGER:
        return max(inputs, default=math.inf)
    if kind == "ReLU":
        return max(1.0, abs(float(parameters.get(0, 0.0)))) * inputs[0]
    if kind == "Padding":
        return max(*inputs, abs(float(parameters.get(5, 0.0))))
    if kind == "Clip":
        return min(inputs[0], max(abs(float(parameters[0])), abs(float(parameters[1]))))
    if kind == "BinaryOp":
        a, b = (*inputs, float(abs(parameters.get(2, 0.0))))[:2]
        bound = _BINARY.get(int(parameters[0]))
        return math.inf if bound is None else bound(a, b)
    return math.inf


_WITHIN_ONE = frozenset({"Sigmoid", "TanH", "Softmax", "HardSigmoid", "Threshold", "Erf"})
_NEVER_LARGER = frozenset({
    "Reshape", "Permute", "Crop", "Concat", "Pooling", "ShuffleChannel", "PixelShuffle", "Reorg", "Flip", "Tile", "GELU",
    "HardSwish",
})  # fmt: skip
_BINARY: dict[int, Callable[[float, float], float]] = {
    0: lambda a, b: a + b, 1: lambda a, b: a + b, 7: lambda a, b: a + b, 2: lambda a, b: a * b if a and b else 0.0,
    4: max, 5: max,
}  # fmt: skip


def _split(layers: list[Layer], fresh: Callable[[str], str]) -> list[Layer]:
    # In ncnn a blob has one reader: each of several readers gets a copy, under a name that no blob has.
    readers = Counter(blob.name for layer in layers for blob in layer.inputs)
    copies: dict[str, Iterator[Blob]] = {}
    result = []
    for layer in layers:
        inputs = tuple(next(copies[blob.name]) if blob.name in copies else blob for blob in layer.inputs)
        result.append(Layer(layer.kind, layer.name, inputs, layer.outputs, layer.parameters, layer.weights))
        for blob in layer.outputs:
            if (count := readers[blob.name]) > 1:
                made = tuple(Blob(fresh(f"{blob.name}.{i}"), blob.shape) for i in range(count))
                result.append(Layer("Split", fresh(f"{blob.name}.split"), (blob,), made))
                copies[blob.name] = iter(made)
    return result


def _line(layer: Layer) -> str:
    counts = f"{len(layer.inputs)} {len(layer.outputs)}"
    blobs = [b.name for b in (*layer.inputs, *layer.outputs)]
    parameters = [_parameter_text(k, v) for k, v in layer.parameters.items()]
    return " ".join([f"{layer.kind:<20}", f"{layer.name:<20}", counts, *blobs, *parameters])


def _parameter_text(number: int, value: Parameter) -> str:
    if isinstance(value, int | float):
        return f"{number}={_number(value)}"
    return ",".join([f"{-23300 - number}={len(value)}", *map(_number, value)])


def _number(value: float) -> str:
    # Nine digits distinguish every float32 from its neighbours; a float has a point or an exponent.
    return str(value) if isinstance(value, int) else f"{float(np.float32(value)):.8e}"


def sizes(shape: Sequence[int], first: tuple[int, int, int, int] = (0, 1, 11, 2)) -> dict[int, int]:
    """Return the parameters of a shape: width, height, depth, channels.

    >>> sizes((2, 3, 5)), sizes((7,))
    ({0: 5, 1: 3, 2: 2}, {0: 7})
    """
    w, h, d, c = first
    order = {1: (w,), 2: (h, w), 3: (c, h, w), 4: (c, d, h, w)}[len(shape)]
    return dict(sorted(zip(order, (int(n) for n in shape), strict=True)))


def floats(value: Any) -> bytes:
    """Return numbers as bytes of the .bin, without a tag."""
    return bytes(np.ascontiguousarray(value, "<f4").tobytes())


def tagged(value: Array) -> bytes:
    """Return weights as bytes of the .bin with a tag: int8, padded to whole words, or float32."""
    if value.dtype != np.int8:
        return struct.pack("<I", 0) + floats(value)
    data = bytes(np.ascontiguousarray(value).tobytes())
    return struct.pack("<I", INT8_WEIGHTS) + data + bytes(-len(data) % 4)


def reciprocal(scale: Any) -> Array:
    """Return 1 / s in float32, which ncnn calls a scale."""
    return np.asarray(np.float32(1) / np.asarray(scale, np.float32), np.float32)
