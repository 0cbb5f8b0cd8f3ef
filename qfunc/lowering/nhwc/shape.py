"""Write ops that move values as TFLite's operators: reshapes, slices and concatenations."""

from __future__ import annotations

import numpy as np
import onnx

from qfunc.lowering.nhwc.context import OpContext
from qfunc.lowering.nhwc.linear import flattened
from qfunc.lowering.nhwc.tensor import INTEGERS, NhwcTensor
from qfunc.lowering.qdq.reader import REAL, copies


def axis_at(axis: int, tensor: NhwcTensor) -> int:
    """Return the axis in the file for an axis in the model."""
    rank = len(tensor.shape)
    axis %= rank
    if not tensor.last or axis == 0:
        return axis
    return rank - 1 if axis == 1 else axis - 1


def batch_axis(step: OpContext, result: NhwcTensor) -> int | None:
    """Return the axis of the op's result in the file whose length is the batch's, or None."""
    varies = step.source.varies(step.output)
    return None if varies is None else axis_at(varies, result)


def reshape(step: OpContext) -> None:
    """Write RESHAPE; an image that only linear layers read afterwards keeps its channels last."""
    given = step.writer.tensor(step.node.input[0])
    if given.value is not None and len(given.qparams.scale if given.qparams else ()) < 2:
        value = given.value.reshape(step.shape)
        step.keep(NhwcTensor(-1, given.name, value.shape, given.qparams, value=value))
        return
    step.on_codes(0)
    x, shape = step.input(), step.shape
    varies = step.source.varies(step.output)
    if x.last and len(shape) == 2 and shape[0] == x.shape[0] and _only_linear(step):
        spatial = (x.shape[-1], *x.shape[1:-1])
        reshaped = step.result(shape, order=flattened(spatial))
    else:
        x = _same_either_way(x) or step.writer.plain(x)
        reshaped = step.result(shape)
    wanted = np.array([-1 if i == varies else n for i, n in enumerate(shape)], np.int32)
    shape_tensor = step.file.integers(wanted, f"{step.name}.shape")
    step.file.operator("RESHAPE", [x, shape_tensor], [reshaped], "ReshapeOptions", newShape=wanted)


def _same_either_way(x: NhwcTensor) -> NhwcTensor | None:
    # [N, 1, 1, C] and [N, C, 1, 1] have the same order in memory.
    return x if x.last and all(n == 1 for n in x.shape[1:-1]) else None


def _only_linear(step: OpContext) -> bool:
    todo = [step.name]
    while todo:
        name = todo.pop()
        if name in step.source.outputs:
            return False
        for node in step.source.readers.get(name, []):
            if node.op_type in ("DequantizeLinear", "QuantizeLinear") or copies(node):
                todo.append(node.output[0])
            elif not _is_linear(step, node, name):
                return False
    return True


def _is_linear(step: OpContext, node: onnx.NodeProto, name: str) -> bool:
    # Return True if the node multiplies the tensor by a constant matrix.
    if node.op_type not in ("Gemm", "MatMul") or node.input[0] != name:
        return False
    producer = step.source.producers.get(node.input[1])
    stored = producer.input[0] if producer is not None and producer.op_type == "DequantizeLinear" else node.input[1]
    return stored in step.source.constants and step.source.constants[stored].ndim == 2


def transpose(step: OpContext) -> None:
    """Write TRANSPOSE, or nothing if the file has the axes in that order already."""
    step.on_codes(0)
    x = step.input()
    rank = len(x.shape)
    perm = [int(p) for p in step.attribute("perm") or range(rank)[::-1]]
    order = [axis_at(p, x) for p in perm]
    if order == list(range(rank)):
        step.keep(NhwcTensor(x.index, x.name, x.shape, x.qparams, value=x.value))
        return
    output = step.result([x.shape[i] for i in order])
    step.file.operator("TRANSPOSE", [x, step.file.integers(order, f"{step.name}.order")], [output], "TransposeOptions")


def sliced(step: OpContext) -> None:
    """Write STRIDED_SLICE."""
    step.on_codes(0)
    x = step.input()
    starts, ends, axes, steps = (step.constant(i) for i in (1, 2, 3, 4))
    axes = range(len(starts)) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    cuts = {axis_at(int(a), x): (int(b), int(e), int(s)) for b, e, a, s in zip(starts, ends, axes, steps, strict=True)}
    batch = cuts.get(0, (0, 2**62, 1))
    if step.source.varies(step.node.input[0]) == 0 and (batch[0] != 0 or batch[1] < 2**31 - 1 or batch[2] != 1):
        raise step.refuse("a slice of the batch", "a slice of other axes", "Select examples outside of the deployed model.")
    cut(step, x, cuts)


def cut(step: OpContext, x: NhwcTensor, cuts: dict[int, tuple[int, int, int]], inner: str = "") -> NhwcTensor:
    """Write a slice of some axes in the file's layout: start, end and step for each; the other axes stay whole.

    The slice is the result of the op, or a tensor inside the op with the name `inner`.
    """
    rank = len(x.shape)
    ranges = {a: range(*slice(*c).indices(x.shape[a])) for a, c in cuts.items() if a or c[2] != 1 or c[:2] != (0, 2**62)}
    begin, stop, stride, open_ = [0] * rank, [0] * rank, [1] * rank, (1 << rank) - 1
    for a, r in ranges.items():
        begin[a], stop[a], stride[a] = r.start, r.stop, r.step
        open_ &= ~(1 << a)
    ends = open_ | sum(1 << a for a, r in ranges.items() if r.stop < 0)
    shape = [len(ranges[a]) if a in ranges else n for a, n in enumerate(x.shape)]
    inputs = [step.file.integers(v, f"{step.name}.{n}") for v, n in ((begin, "begin"), (stop, "end"), (stride, "strides"))]
    output = step.inner(inner, shape, x, last=x.last) if inner else step.result(shape, last=x.last)
    step.file.operator("STRIDED_SLICE", [x, *inputs], [output], "StridedSliceOptions", beginMask=open_, endMask=ends)
    return output


def split(step: OpContext) -> None:
    """Write a STRIDED_SLICE for each part."""
    axis, start = int(step.attribute("axis", 0)), 0
    for index in range(len(step.node.output)):
        part = OpContext(step.writer, step.node, index)
        part.on_codes(0)
        x, length = part.input(), part.shape[axis]
        cut(part, x, {axis_at(axis, x): (start, start + length, 1)})
        start += length


def concat(step: OpContext) -> None:
    """Write CONCATENATION."""
    count = len(step.node.input)
    step.on_codes(*range(count))
    operands = [step.input(i) for i in range(count)]
    last = any(h.last for h in operands)
    operands = [step.writer.channels_last(h) if last else step.writer.plain(h) for h in operands]
    axis = axis_at(int(step.attribute("axis")), operands[0])
    shape = list(operands[0].shape)
    shape[axis] = sum(h.shape[axis] for h in operands)
    output = step.result(shape, last=last)
    step.file.operator("CONCATENATION", operands, [output], "ConcatenationOptions", axis=axis, fusedActivationFunction="NONE")


def expand(step: OpContext) -> None:
    """Write TILE, after a RESHAPE if the result has more axes."""
    step.on_codes(0)
    x = step.writer.plain(step.input())
    shared, added = step.source.varies(step.node.input[0]) is None, len(step.shape) - len(x.shape)
    if added and not shared:
        raise step.refuse("axes before the batch", "the batch first", "Unsqueeze after the batch.")
    if added:
        wide = (*[1] * added, *x.shape)
        x = step.reshaped(x, wide, step.inner("wide", wide, x))
    if step.file.batched and shared and step.source.varies(step.output) == 0:
        x = _of_each_example(step, x)
    factors = [1 if a == b else b for a, b in zip(x.shape, step.shape, strict=True)]
    multiples = step.file.integers(factors, f"{step.name}.multiples")
    step.file.operator("TILE", [x, multiples], [step.result(step.shape)], "TileOptions")


def _of_each_example(step: OpContext, x: NhwcTensor) -> NhwcTensor:
    # Repeat a tensor for each example: add it to a tensor of zeros that has the batch axis.
    batch, real = _zeros(step, len(x.shape)), step.writer.real(x)
    output = step.writer.make(f"{step.name}.examples.real", x.shape, None)
    step.file.operator("ADD", [batch, real], [output], "AddOptions", fusedActivationFunction="NONE")
    if x.qparams is None:
        return output
    codes = step.inner("examples", x.shape, x)
    step.file.operator("QUANTIZE", [output], [codes], "QuantizeOptions")
    return codes


def copies_for_examples(step: OpContext, x: NhwcTensor) -> NhwcTensor:
    """Return the copies of a tensor for all examples, along its first axis."""
    if not step.file.batched:
        return x
    wide = (1, *x.shape)
    each = _of_each_example(step, step.reshaped(x, wide, step.inner("wide", wide, x)))
    return step.reshaped(each, x.shape, step.inner("copies", x.shape, x))


def _zeros(step: OpContext, rank: int) -> NhwcTensor:
    # Compute the zeros [N, 1, ..., 1] from an input, a float32 one if there is one: max(min(x, 0), 0), which is 0 for
    # infinite x too.
    names = [i.name for i in step.source.graph.input if step.source.varies(i.name) == 0]
    if not names:
        do = "Add it to a tensor with the batch axis: the sum broadcasts it."
        raise step.refuse("a tensor expanded to the batch of a model without inputs", "an input with the batch axis", do)
    name = min(names, key=lambda n: step.source.kind(n) != REAL)
    given, whole = step.writer.tensors[name], INTEGERS.get(step.source.kind(name))
    shape, begin = [1] * len(given.shape), [0] * len(given.shape)
    x = step.file.tensor(f"{step.name}.first", shape, dtype=np.float32 if whole is None else getattr(np, whole.lower()))
    inputs = [
        step.file.integers(v, f"{step.name}.first_{n}") for n, v in (("begin", begin), ("end", shape), ("strides", shape))
    ]
    step.file.operator("STRIDED_SLICE", [given, *inputs], [x], "StridedSliceOptions", beginMask=1, endMask=1)
    if whole is not None:
        real = step.writer.make(f"{step.name}.real", shape, None)
        step.file.operator("CAST", [x], [real], "CastOptions", inDataType=whole, outDataType="FLOAT32")
        x = real
    zero = step.file.tensor(f"{step.name}.zero", (1,), value=np.zeros(1, np.float32))
    for op in ("MINIMUM", "MAXIMUM"):
        output = step.writer.make(f"{step.name}.{op.lower()}", shape, None)
        step.file.operator(op, [x, zero], [output], "MaximumMinimumOptions")
        x = output
    return step.reshaped(x, [1] * rank, step.writer.make(f"{step.name}.zeros", [1] * rank, None))
