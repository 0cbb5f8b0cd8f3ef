"""read: a float ONNX file as a model."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from qfunc._collection import paused_collection
from qfunc.errors import CaptureError, a_or_an


def read(
    file: Any,
    *,
    sizes: Mapping[str, int] | None = None,
    fixed: Mapping[str, Any] | None = None,
    outputs: Sequence[str] = (),
) -> fx.GraphModule:
    """Return the model of a float ONNX file: a `fx.GraphModule` of canonical ops, as `qfunc.capture` returns it.

    Its parameters have the names that they have in the file, its inputs the names and order of the file; sizes that the file
    leaves open vary.  One output is a tensor, several are a tuple in the order of the file.  Reals of 16 and 64 bits become
    float32.  What depends on no input is computed once: constants, arithmetic on known sizes, branches.  BatchNorms are
    modules in evaluation mode.

    Args:
        file: A path, the bytes of a file, or an `onnx.ModelProto`.  Tensors in other files must be in the folder of the path.
        sizes: Numbers for sizes that the file leaves open, by the names that the file gives them.
        fixed: Values for inputs, which are no inputs of the result.
        outputs: Names of tensors at which the model ends, in place of the outputs of the file.
    Raises:
        FileError: no ONNX file, or a damaged one.
        CaptureError: operators without a counterpart in torch, or control flow that depends on values; names the node.

    Source: ONNX operator specification, versions from 7 on; onnxruntime, docs/ContribOperators.md.

    >>> from onnx import TensorProto, helper
    >>> shape = ["batch", 4]
    >>> graph = helper.make_graph(
    ...     [helper.make_node("Relu", ["x"], ["y"])], "one",
    ...     [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
    ...     [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)])
    >>> read(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))(torch.tensor([[-1.0, 0.0, 2.0, 3.0]]))
    tensor([[0., 0., 2., 3.]])
    """
    # Import here, so that `import qfunc` does not import onnx.
    from qfunc.reading.onnx.graph import read_graph
    from qfunc.reading.onnx.source import Source

    if isinstance(outputs, str):
        outputs = (outputs,)
    values = {name: _tensor(name, value) for name, value in (fixed or {}).items()}
    with paused_collection():
        return read_graph(Source.of(_source(file), _sizes(sizes or {})), values, outputs)


def opened(model: Any) -> Any:
    """Return the model of a path, and any other model as it is."""
    return read(model) if isinstance(model, str | os.PathLike) else model


def _source(file: Any) -> Any:
    if isinstance(file, str | os.PathLike | bytes | bytearray | memoryview) or hasattr(file, "opset_import"):
        return file
    do = 'Write read("model.onnx").'
    raise CaptureError(where="read", found=a_or_an(type(file)), wanted="a path, bytes or an onnx.ModelProto", do=do)


def _sizes(sizes: Mapping[str, int]) -> Mapping[str, int]:
    for name, size in sizes.items():
        if type(size) is not int or size < 1:
            raise CaptureError(where=f"read, sizes[{name!r}]", found=repr(size), wanted="a number from 1 on", do="Give a size.")
    return sizes


def _tensor(name: str, value: Any) -> Tensor:
    try:
        found = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as e:
        do = "Give a tensor, an array or a number."
        raise CaptureError(where=f"read, fixed[{name!r}]", found=a_or_an(type(value)), wanted="numbers", do=do) from e
    return found.float() if found.is_floating_point() else found
