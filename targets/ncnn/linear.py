"""Write convolutions, linear layers and matrix products as layers of ncnn: int8 layers if their inputs are codes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from attrs import frozen

from qfunc.lowering.qdq.qparams import Array
from qfunc.lowering.windows import Window, window
from qfunc.targets.ncnn.axes import MOST, batch_axis
from qfunc.targets.ncnn.builder import Blob, floats, reciprocal, tagged
from qfunc.targets.ncnn.writer import LARGEST, Constant, OpContext, overflows


def image(step: OpContext, blob: Blob, rank: int) -> Blob:
    """Return an image [C, H, W]; a signal [C, L] becomes [C, 1, L].

    Raises:
        DeployError: several images for each example.
    """
    if len(blob.shape) != rank + 1:
        found, wanted = f"{len(blob.shape)} axes for each example", f"{rank + 1}: channels and those of the window"
        fixed = len(blob.shape) == rank + 2
        do = (
            "Capture the model with a batch of 1, or a batch whose size may vary."
            if fixed
            else "Make the batch the first axis."
        )
        raise step.refuse(found, wanted, do)
    return blob if rank == 2 else step.rows_of(blob, (blob.shape[0], 1, *blob.shape[1:]))


def signal(sizes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Return the sizes of a result with the given number of axes: (height, width), or the length of a signal."""
    return tuple(sizes) if rank == 2 else (1, *sizes)


@frozen(eq=False)
class Product:
    """The operands of a layer with weights: the input (codes or real values), weights, bias and, for codes, the scales."""

    x: Blob
    weight: Array
    bias: Array | None
    scale: Array | None

    @property
    def integer(self) -> bool:
        """Return True if the product is computed on codes."""
        return self.scale is not None

    @property
    def largest(self) -> float:
        """A bound of the magnitude of the results: the largest input times the sums of the weights' magnitudes."""
        sums = np.abs(self.weight.astype(np.float64)).reshape(len(self.weight), -1).sum(1)
        sums = sums if self.scale is None else sums * self.scale
        most = float(sums.max(initial=0.0)) * self.x.largest if math.isfinite(self.x.largest) else math.inf
        return most + (0.0 if self.bias is None else float(np.abs(self.bias).max(initial=0.0)))

    def weight_bytes(self, rows: slice = slice(None)) -> list[bytes]:
        """Return the entries of the .bin for some output channels, without the scale of the output."""
        entries = [tagged(self.weight[rows])]
        entries += [] if self.bias is None else [floats(self.bias[rows])]
        if self.scale is not None:
            entries += [floats(reciprocal(self.scale[rows])), floats(reciprocal(self.x.scale))]
        return entries


def product(step: OpContext, axis: int, transposed: bool = False) -> Product:
    """Return the operands; the output channels of the weights move from `axis` to the front; `transposed` transposes them."""
    weights = step.constant_input(1)
    assert weights is not None
    bias = step.constant_input(2)
    x = step.writer.blob(step.node.input[0])
    on_codes = x.scale is not None and _by_outputs(weights, axis)
    value = weights.value if on_codes else weights.real
    scale = None
    if on_codes and weights.qparams is not None:
        count = value.shape[axis]
        scale = np.broadcast_to(np.array(weights.qparams.scale, np.float32), (count,))
    weight = np.ascontiguousarray(value.T if transposed else value)
    weight = weight.astype(np.int8) if on_codes else weight
    return Product(x if on_codes else step.writer.real(x), weight, None if bias is None else bias.real, scale)


def _by_outputs(weights: Constant, axis: int) -> bool:
    q = weights.qparams
    return q is not None and not any(q.zero_point) and (len(q.scale) == 1 or q.axis % weights.value.ndim == axis)


def write_product(
    step: OpContext, kind: str, p: Product, shape: Sequence[int], parameters: dict[int, Any], one: int = 2
) -> None:
    """Write the layer, fused with the activation after it and, for convolutions, with the quantizer after that."""
    steps, bounds, quantizer = step.fused()
    largest = min(p.largest, math.inf if bounds is None else max(math.inf if e is None else abs(e) for e in bounds))
    requantizes = p.integer and quantizer is not None and kind != "InnerProduct" and tuple(shape) == step.shape
    requantizes = requantizes and quantizer is not None and not overflows(largest, step.writer.scale(quantizer))
    entries, scale = p.weight_bytes(), None
    name = str(steps[-1].output[0]) if steps else step.output
    if requantizes:
        assert quantizer is not None
        scale, name = step.writer.scale(quantizer), str(quantizer.output[0])
        largest = LARGEST * scale
        entries.append(floats(reciprocal(scale)))
    values = {**parameters, **_activation(bounds)}
    if p.integer:
        values[8] = one + 100 * requantizes
    blob = step.file.layer(
        kind, [p.x], name, shape, dict(sorted(values.items())), weights=entries, scale=scale, largest=largest
    )
    result = reshaped_like(step, blob)
    done = (*steps, *([quantizer] if requantizes and quantizer else []))
    for node in done:
        step.writer.examples.follow(node)
    step.writer.done.update(str(node.output[0]) for node in done)
    step.keep(result, name)
    step.keep(result)


def reshaped_like(step: OpContext, blob: Blob) -> Blob:
    """Return a blob in the shape of the step's result."""
    return step.reshaped(blob, step.shape, f"as_{len(step.shape)}")


def _activation(bounds: tuple[float | None, float | None] | None) -> dict[int, Any]:
    # 1 is ReLU, 3 is Clip with two bounds.
    if bounds is None:
        return {}
    if bounds == (0.0, None):
        return {9: 1}
    least, most = (float(v if v is not None else e) for v, e in zip(bounds, _ENDS, strict=True))
    return {9: 3, 10: [least, most]}


_ENDS = (float(np.finfo(np.float32).min), float(np.finfo(np.float32).max))


def conv(step: OpContext) -> None:
    """Write Convolution, or ConvolutionDepthWise for groups of one channel."""
    p = product(step, 0)
    rank = p.weight.ndim - 2
    w = window(step, p.weight.shape[2:])
    p = Product(image(step, p.x, rank), p.weight.reshape(*p.weight.shape[:2], *w.kernel), p.bias, p.scale)
    groups, outputs = int(step.attribute("group", 1)), p.weight.shape[0]
    shape = (outputs, *signal(step.shape[1:], rank))
    if groups == 1:
        write_product(step, "Convolution", p, shape, _parameters(p, w))
    elif p.weight.shape[1] == 1 and outputs == groups:
        write_product(step, "ConvolutionDepthWise", p, shape, {**_parameters(p, w), 7: groups}, one=1)
    else:
        _grouped(step, p, w, groups, shape)


def _parameters(p: Product, w: Window, rows: slice = slice(None)) -> dict[int, Any]:
    weight = p.weight[rows]
    (kh, kw), (sh, sw), (dh, dw) = w.kernel, w.stride, w.dilation
    around = {4: w.before[1], 14: w.before[0], 15: w.after[1], 16: w.after[0]}
    return {
        0: len(weight), 1: kw, 11: kh, 2: dw, 12: dh, 3: sw, 13: sh, **around,
        5: int(p.bias is not None), 6: weight.size,
    }  # fmt: skip


def _grouped(step: OpContext, p: Product, w: Window, groups: int, shape: Sequence[int]) -> None:
    # ncnn's grouped layer has one scale for each group.  Separate convolutions for the groups have one for each channel.
    # If a group has one channel, each of its outputs is a depthwise convolution instead.
    outputs, each = shape[0], p.weight.shape[1]
    per, parts = outputs // groups, []
    alone = each == 1
    for i in range(per if alone else groups):
        rows = slice(i, None, per) if alone else slice(i * per, (i + 1) * per)
        x = p.x if alone else step.file.layer(
            "Crop", [p.x], f"{step.output}.x{i}", (each, *p.x.shape[1:]), {9: [i * each], 10: [(i + 1) * each], 11: [0]},
            scale=p.x.scale,
        )  # fmt: skip
        values = _parameters(p, w, rows) | ({7: groups} if alone else {}) | ({8: 1 if alone else 2} if p.integer else {})
        kind = "ConvolutionDepthWise" if alone else "Convolution"
        size = (values[0], *shape[1:])
        parts.append(
            step.file.layer(kind, [x], f"{step.output}.y{i}", size, dict(sorted(values.items())), weights=p.weight_bytes(rows))
        )
    joined = step.layer("Concat", parts, "joined", shape, p0=0)
    step.keep(reshaped_like(step, step.layer("ShuffleChannel", [joined], "ordered", shape, p0=per) if alone else joined))


def deconv(step: OpContext) -> None:
    """Write Deconvolution, or DeconvolutionDepthWise for several groups, in float32, because ncnn has neither on codes."""
    weight, bias, groups = step.constant_input(1), step.constant_input(2), int(step.attribute("group", 1))
    if weight is None:
        raise step.refuse("weights that are computed", "constant weights", "Keep them as a parameter or a buffer.")
    value = weight.real.reshape(groups, -1, *weight.value.shape[1:]).swapaxes(1, 2)
    rank, w = weight.value.ndim - 2, window(step, weight.value.shape[2:])
    rows = np.ascontiguousarray(value).reshape(step.shape[0], value.shape[2], *w.kernel)
    p = Product(image(step, step.input(), rank), rows, None if bias is None else bias.real, None)
    below, right = ([0] + [int(v) for v in step.attribute("output_padding") or [0] * rank])[-2:]
    kind = "Deconvolution" if groups == 1 else "DeconvolutionDepthWise"
    values = {**_parameters(p, w), 18: right, 19: below, **({} if groups == 1 else {7: groups})}
    write_product(step, kind, p, (len(rows), *signal(step.shape[1:], rank)), values)


def gemm(step: OpContext) -> None:
    """Write InnerProduct for a product of a matrix."""
    axis = 0 if step.attribute("transB", 0) else 1
    _linear(step, product(step, axis, transposed=axis == 1))


def matmul(step: OpContext) -> None:
    """Write InnerProduct for a constant matrix, else MatMul in float32."""
    held = step.constant_input(1)
    if held is not None and held.value.ndim == 2:
        return _linear(step, product(step, 1, transposed=True))
    examples = [_matrices(step, i) for i in (0, 1)]
    many = any(len(example) > MOST for example in examples)
    if many and examples[0][:-2] != examples[1][:-2]:
        raise step.refuse(
            f"products of {examples[0]} and {examples[1]}", "equal leading axes, or at most four", "Expand first."
        )
    rows = [(math.prod(example[:-2]), *example[-2:]) if many else example for example in examples]
    made = (*max(rows, key=len)[:-2], rows[0][-2], rows[1][-1]) if examples != [step.example(i) for i in (0, 1)] else step.shape
    made = (*rows[0][:-1], rows[1][-1]) if many else made
    result = step.layer("MatMul", [step.reshaped(step.input(i), rows[i], f"matrices_{i}") for i in (0, 1)], "", made)
    step.keep(step.reshaped(result, step.shape, "flat"))
    return None


def _matrices(step: OpContext, index: int) -> tuple[int, ...]:
    # The sizes of an operand, with the batch where it is the one row or column of each matrix.
    sizes = tuple(step.sizes(index))
    gone = batch_axis(step.source, step.node.input[index], step.node.name)
    return sizes if gone is not None and gone >= len(sizes) - 2 > 0 else tuple(step.example(index))


def _linear(step: OpContext, p: Product) -> None:
    # A matrix or one row; further axes are joined into the rows.
    columns = step.example()[-1]
    rows = math.prod(p.x.shape) // columns
    x = p.x if p.x.shape == (columns,) or len(p.x.shape) == 2 else step.reshaped(p.x, (rows, columns), "rows")
    p = Product(x, p.weight, p.bias, p.scale)
    values = {0: len(p.weight), 1: int(p.bias is not None), 2: p.weight.size}
    write_product(step, "InnerProduct", p, (*x.shape[:-1], len(p.weight)), values)
