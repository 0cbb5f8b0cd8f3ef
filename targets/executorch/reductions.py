"""Write reductions, powers and the GELU by tanh as nodes of XNNPACK."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from qfunc.lowering.nhwc.tensor import NhwcTensor
from qfunc.targets.executorch.builder import XnnpackBuilder
from qfunc.targets.executorch.constraints import require_number_exponent
from qfunc.targets.executorch.roots import inverse_root, root
from qfunc.targets.executorch.shape import reshape
from qfunc.targets.executorch.steps import Steps

_LARGEST_EXPONENT = 16
"""The largest whole exponent that is written as products."""
_KEEP_DIMS = 0x40  # XNN_FLAG_KEEP_DIMS
_SIDES = ("padding_top", "padding_right", "padding_bottom", "padding_left")


def _rows(graph: XnnpackBuilder, x: NhwcTensor, axes: list[int], name: str) -> NhwcTensor:
    # Return an image of one column: the reduced axes are its rows, the first axis its batch, all others its channels.  A
    # first axis that is reduced is one of the rows.
    batch = [] if 0 in axes else [0]
    rest = [i for i in range(len(batch), len(x.shape)) if i not in axes]
    order = [*batch, *axes, *rest]
    if order != list(range(len(x.shape))):
        permuted = graph.tensor(f"{name}.turned", [x.shape[i] for i in order], x.qparams)
        graph.node("XNNStaticTranspose", permuted, num_dims=len(order), perm=order, input_id=x)
        x = permuted
    first, last = len(batch), len(batch) + len(axes)
    rows, columns = math.prod(x.shape[first:last]), math.prod(x.shape[last:])
    return reshape(graph, x, (math.prod(x.shape[:first]), rows, 1, columns), f"{name}.image")


def _reduced_axes(inputs: list[NhwcTensor]) -> list[int]:
    return [int(a) for a in np.ravel(np.asarray(inputs[1].value))]


def mean(graph: XnnpackBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
    """Write a global average pool."""
    image = _rows(graph, inputs[0], _reduced_axes(inputs), out.name)
    average = graph.tensor(f"{out.name}.mean", (image.shape[0], 1, 1, image.shape[-1]), out.qparams)
    graph.node("XNNGlobalAvgPooling2d", average, input_id=image, flags=_KEEP_DIMS)
    reshape(graph, average, out.shape, out)


def total(graph: XnnpackBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
    """Write the mean times the number of entries."""
    count = math.prod(inputs[0].shape[a] for a in _reduced_axes(inputs))
    average = graph.tensor(f"{out.name}.average", out.shape)
    mean(graph, inputs, average, fields)
    factor = graph.tensor(f"{out.name}.count", (1,), value=np.array([count], np.float32))
    graph.node("XNNMultiply", out, input1_id=average, input2_id=factor)


def maximum(graph: XnnpackBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
    """Write a maximum pool over all rows."""
    image = _rows(graph, inputs[0], _reduced_axes(inputs), out.name)
    rows = image.shape[1]
    if rows > 1:
        pooled = graph.tensor(f"{out.name}.largest", (image.shape[0], 1, 1, image.shape[-1]), out.qparams)
        window: dict[str, Any] = {"pooling_height": rows, "pooling_width": 1, "stride_height": rows, "stride_width": 1,
                  "dilation_height": 1, "dilation_width": 1, **dict.fromkeys(_SIDES, 0)}  # fmt: skip
        graph.node("XNNMaxPooling2d", pooled, input_id=image, **window)
        image = pooled
    reshape(graph, image, out.shape, out)


def minimum(graph: XnnpackBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
    """Write -max(-x)."""
    negative, largest = (graph.tensor(f"{out.name}.{n}", t.shape) for n, t in (("negative", inputs[0]), ("negated", out)))
    graph.node("XNNNegate", negative, input_id=inputs[0])
    maximum(graph, [negative, inputs[1]], largest, fields)
    graph.node("XNNNegate", out, input_id=largest)


def log_softmax(graph: XnnpackBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
    """Write d - log(sum of exp(d)), where d = x - max(x)."""
    x = inputs[0]
    kept = (*x.shape[:-1], 1)
    axes = graph.integers([len(x.shape) - 1], f"{out.name}.axes")
    top, sum_, log = (graph.tensor(f"{out.name}.{n}", kept) for n in ("top", "total", "log"))
    distance, exponential = (graph.tensor(f"{out.name}.{n}", x.shape) for n in ("distance", "power"))
    maximum(graph, [x, axes], top, fields)
    graph.node("XNNSubtract", distance, input1_id=x, input2_id=top)
    graph.node("XNNExp", exponential, input_id=distance)
    total(graph, [exponential, axes], sum_, fields)
    graph.node("XNNLog", log, input_id=sum_)
    graph.node("XNNSubtract", out, input1_id=distance, input2_id=log)


def power(graph: XnnpackBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
    """Write products, roots, or exp(exponent log(x)).

    Raises:
        DeployError: an exponent that is not one constant number.
    """
    require_number_exponent(out, inputs[1])
    exponent = float(np.ravel(np.asarray(inputs[1].value))[0])
    if exponent == 2.0:
        return graph.node("XNNSquare", out, input_id=inputs[0])
    step = Steps(graph, out)
    if exponent in (0.5, -0.5):
        return (root if exponent > 0 else inverse_root)(graph, inputs, out, fields)
    if exponent != int(exponent) or not 1 <= abs(exponent) <= _LARGEST_EXPONENT:
        step.node("XNNExp", step.node("XNNMultiply", step.node("XNNLog", inputs[0]), step.number(exponent)), into=out)
        return
    x = inputs[0]
    product = x
    for _ in range(int(abs(exponent)) - 1):
        product = step.node("XNNMultiply", product, x)
    step.node("XNNDiv", *((product, step.number(1.0)) if exponent > 0 else (step.number(1.0), product)), into=out)


def gelu_by_tanh(graph: XnnpackBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
    """Write x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), in PyTorch's order."""
    step, x = Steps(graph, out), inputs[0]
    cube = step.node("XNNMultiply", step.node("XNNMultiply", x, x), x)
    inner = step.node("XNNAdd", x, step.node("XNNMultiply", cube, step.number(0.044715)))
    curve = step.node("XNNTanh", step.node("XNNMultiply", inner, step.number(math.sqrt(2 / math.pi))))
    half = step.node("XNNMultiply", x, step.number(0.5))
    step.node("XNNMultiply", half, step.node("XNNAdd", curve, step.number(1.0)), into=out)
