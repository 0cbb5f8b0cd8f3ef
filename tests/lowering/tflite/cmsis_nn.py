"""CMSIS-NN in plain Python integers, as the comments and declarations of its sources say; it reads a .tflite file.

Sources: CMSIS-NN, Include/arm_nnsupportfunctions.h (requantization), Include/arm_nnfunctions.h (operators); TensorFlow Lite
Micro, micro/kernels/cmsis_nn (the parameters that it gives CMSIS-NN) and kernels/internal/quantization_util.cc (multipliers).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
F32 = np.float32


def quantize_multiplier(real: float) -> tuple[int, int]:
    """real = m * 2^(shift - 31), m of 31 bits, rounded half away from zero; what is too small is 0."""
    fraction, shift = math.frexp(real)
    m = math.floor(fraction * 2**31 + 0.5)
    if m == 2**31:
        m, shift = m // 2, shift + 1
    return (0, 0) if shift < -31 else (m, shift)


def int32(value: int) -> int:
    """The value in a register of 32 bits."""
    return (value + 2**31) % 2**32 - 2**31


def doubling_high_mult(a: int, b: int) -> int:
    """The upper half of the doubled product, with the rounding offset 2^30 before a right shift of 31."""
    return (a * b + (1 << 30)) >> 31


def divide_by_power_of_two(dividend: int, exponent: int) -> int:
    """The quotient, its mid points away from zero."""
    size = 1 << exponent
    return (abs(dividend) + size // 2) // size * (1 if dividend >= 0 else -1)


def requantize(value: int, m: int, shift: int) -> int:
    """arm_nn_requantize: shift left, high half of the doubled product, rounding division by a power of two."""
    return divide_by_power_of_two(doubling_high_mult(int32(value << max(shift, 0)), m), max(-shift, 0))


def reduce_multiplier(m: int) -> int:
    """REDUCE_MULTIPLIER: 31 bits to 15, to nearest; from 0x7FFF0000 on it is 0x7FFF."""
    return (m + (1 << 15)) >> 16 if m < 0x7FFF0000 else 0x7FFF


def requantize_s64(value: int, m: int, shift: int) -> int:
    """arm_nn_requantize_s64: all but the last place of the shift, to 32 bits; then one more place, with rounding."""
    assert -(1 << 47) <= value < 1 << 47
    return (int32(value * reduce_multiplier(m) >> (14 - shift)) + 1) >> 1


class Simulator:
    """The interpreter of one file; `schema` has the classes of the flatbuffer.

    `bugs` replaces functions of this module by others, by name, for planted errors.
    """

    def __init__(self, schema: Any, content: bytes, bugs: dict[str, Callable[..., int]] | None = None) -> None:
        self.model = schema.ModelT.InitFromPackedBuf(content, 0)
        self.graph = self.model.subgraphs[0]
        names = {v: k for k, v in vars(schema.BuiltinOperator).items() if isinstance(v, int)}
        self.names = [names[c.builtinCode] for c in self.model.operatorCodes]
        types = {"FLOAT32": np.float32, "INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT64": np.int64}
        self.dtypes = {getattr(schema.TensorType, n): np.dtype(t) for n, t in types.items()}
        fused = schema.ActivationFunctionType
        self.bounds = {fused.NONE: (-math.inf, math.inf), fused.RELU: (0.0, math.inf), fused.RELU6: (0.0, 6.0),
                       fused.RELU_N1_TO_1: (-1.0, 1.0)}  # fmt: skip
        self.same = schema.Padding.SAME
        self.parts = {f.__name__: f for f in (requantize, requantize_s64)} | (bugs or {})

    def run(self, inputs: list[Array]) -> list[Array]:
        """The outputs of a batch, one example at a time."""
        found = [self._example([i[n : n + 1] for i in inputs]) for n in range(len(inputs[0]))]
        return [np.concatenate(parts) for parts in zip(*found, strict=True)]

    def _example(self, inputs: list[Array]) -> list[Array]:
        values: dict[int, Array] = dict(zip(self.graph.inputs, inputs, strict=True))
        for i, tensor in enumerate(self.graph.tensors):
            if (data := self.model.buffers[tensor.buffer].data) is not None:
                values[i] = np.asarray(data, np.uint8).view(self.dtypes[tensor.type]).reshape(tuple(tensor.shape))
        for op in self.graph.operators:
            arguments = [values[i] for i in op.inputs if i >= 0]
            tensors = [self.graph.tensors[i] for i in (*op.inputs, *op.outputs) if i >= 0]
            value = getattr(self, self.names[op.opcodeIndex].lower())(op.builtinOptions, tensors, *arguments)
            values[op.outputs[0]] = value.reshape(tuple(tensors[-1].shape)).astype(self.dtypes[tensors[-1].type])
        return [values[i] for i in self.graph.outputs]

    def quantize(self, _: Any, t: list[Any], x: Array) -> Array:
        real = x.astype(F32) / F32(scale(t[1])[0])
        return np.clip(np.copysign(np.floor(np.abs(real) + F32(0.5)), real) + zero(t[1]), *self._ends(t[1]))

    def dequantize(self, _: Any, t: list[Any], x: Array) -> Array:
        return (x.astype(np.int64) - zero(t[0])).astype(F32) * F32(scale(t[0])[0])

    def reshape(self, _: Any, t: list[Any], x: Array, shape: Array | None = None) -> Array:
        return x

    def transpose(self, _: Any, t: list[Any], x: Array, order: Array) -> Array:
        return x.transpose(order)

    def pad(self, _: Any, t: list[Any], x: Array, pads: Array) -> Array:
        return np.pad(x, pads, constant_values=zero(t[0]))

    def conv_2d(self, o: Any, t: list[Any], x: Array, w: Array, bias: Array) -> Array:
        places = self._windows(o, t[3], x[0].astype(np.int64) - zero(t[0]), w.shape[1:3])
        size, many = w.shape[3], w.shape[0] * w.shape[3] // x.shape[3]  # of a group: inputs, outputs

        def term(n: int, p: Array) -> Any:
            first = n // many * size
            return (p[..., first : first + size] * w[n]).sum()

        return self._products(o, t, bias, term, places)

    def depthwise_conv_2d(self, o: Any, t: list[Any], x: Array, w: Array, bias: Array) -> Array:
        many, places = w.shape[3] // x.shape[3], self._windows(o, t[3], x[0].astype(np.int64) - zero(t[0]), w.shape[1:3])
        return self._products(o, t, bias, lambda n, p: (p[..., n // many] * w[0, :, :, n]).sum(), places)

    def fully_connected(self, o: Any, t: list[Any], x: Array, w: Array, bias: Array) -> Array:
        rows = x.astype(np.int64).reshape(-1, w.shape[1]) - zero(t[0])
        return self._products(o, t, bias, lambda n, p: (p * w[n]).sum(), iter(rows))

    def _products(self, o: Any, t: list[Any], bias: Array, term: Callable[[int, Array], Any], places: Iterator[Array]) -> Array:
        # bias, sum of products, requantization, offset and clamp of each output channel at each place.
        pairs = [quantize_multiplier(float(scale(t[0])[0]) * float(s) / float(scale(t[3])[0])) for s in scale(t[1])]
        pairs *= len(bias) if len(pairs) == 1 else 1
        wide = bias.dtype == np.int64
        part = self.parts["requantize_s64" if wide else "requantize"]
        low, high = self._range(o, t[3])
        out = []
        for p in places:
            sums = [int(term(n, p)) + int(b) for n, b in enumerate(bias)]
            out += [part(s if wide else int32(s), *pair) + zero(t[3]) for s, pair in zip(sums, pairs, strict=True)]
        return np.clip(np.array(out), low, high)

    def add(self, o: Any, t: list[Any], a: Array, b: Array) -> Array:
        left = 15 if self.dtypes[t[2].type] == np.int16 else 20
        common = 2 * max(float(scale(t[0])[0]), float(scale(t[1])[0]))
        each = [quantize_multiplier(float(scale(i)[0]) / common) for i in t[:2]]
        last, part = quantize_multiplier(common / (2**left * float(scale(t[2])[0]))), self.parts["requantize"]
        low, high = self._range(o, t[2])
        pairs = zip(*(np.broadcast_to(v, t[2].shape).ravel().tolist() for v in (a, b)), strict=True)
        sums = [sum(part((v - zero(i)) << left, *m) for v, i, m in zip(two, t, each, strict=False)) for two in pairs]
        return np.clip(np.array([part(s, *last) + zero(t[2]) for s in sums]), low, high)

    def mul(self, o: Any, t: list[Any], a: Array, b: Array) -> Array:
        pair = quantize_multiplier(float(scale(t[0])[0]) * float(scale(t[1])[0]) / float(scale(t[2])[0]))
        product = (a.astype(np.int64) - zero(t[0])) * (b.astype(np.int64) - zero(t[1]))
        flat = [self.parts["requantize"](int(p), *pair) + zero(t[2]) for p in product.ravel()]
        return np.clip(np.array(flat), *self._range(o, t[2]))

    def average_pool_2d(self, o: Any, t: list[Any], x: Array) -> Array:
        kernel, out = (o.filterHeight, o.filterWidth), []
        inside = self._windows(o, t[1], np.ones(x.shape[1:], np.int64), kernel)
        for part, ones in zip(self._windows(o, t[1], x[0].astype(np.int64), kernel), inside, strict=True):
            for total, count in zip(part.sum((0, 1)).tolist(), ones.sum((0, 1)).tolist(), strict=True):
                out.append((abs(total) + count // 2) // count * (1 if total > 0 else -1))
        return np.clip(np.array(out), *self._range(o, t[1]))

    def max_pool_2d(self, o: Any, t: list[Any], x: Array) -> Array:
        kernel, (low, _) = (o.filterHeight, o.filterWidth), self._ends(t[0])
        return np.array([p.max((0, 1)) for p in self._windows(o, t[1], x[0].astype(np.int64) - low, kernel)]) + low

    def _windows(self, o: Any, out: Any, image: Array, kernel: tuple[int, int]) -> Iterator[Array]:
        # The windows of an image, row by row; zeros outside of it.
        steps, far = (o.strideH, o.strideW), (getattr(o, "dilationHFactor", 1), getattr(o, "dilationWFactor", 1))
        spans = [f * (k - 1) + 1 for f, k in zip(far, kernel, strict=True)]
        pads = [max((n - 1) * s + span - size, 0) if o.padding == self.same else 0
                for n, s, span, size in zip(out.shape[1:3], steps, spans, image.shape[:2], strict=True)]  # fmt: skip
        wide = np.pad(image, [(p // 2, p - p // 2) for p in pads] + [(0, 0)])
        for top in range(0, int(out.shape[1]) * steps[0], steps[0]):
            for left in range(0, int(out.shape[2]) * steps[1], steps[1]):
                yield wide[top : top + spans[0] : far[0], left : left + spans[1] : far[1]]

    def _ends(self, tensor: Any) -> tuple[int, int]:
        info = np.iinfo(self.dtypes[tensor.type])
        return int(info.min), int(info.max)

    def _range(self, o: Any, tensor: Any) -> tuple[int, int]:
        low, high = self._ends(tensor)
        codes = [None if math.isinf(b) else zero(tensor) + round_away(b / float(scale(tensor)[0]))
                 for b in self.bounds[o.fusedActivationFunction]]  # fmt: skip
        return max(low, low if codes[0] is None else codes[0]), min(high, high if codes[1] is None else codes[1])


def round_away(x: float) -> int:
    """std::round."""
    return int(math.copysign(math.floor(abs(x) + 0.5), x))


def scale(tensor: Any) -> Array:
    """The scales of a tensor."""
    return np.asarray(tensor.quantization.scale, F32)


def zero(tensor: Any) -> int:
    """The zero point of a tensor."""
    return int(tensor.quantization.zeroPoint[0])


__all__ = ["Simulator", "reduce_multiplier", "requantize", "requantize_s64"]
