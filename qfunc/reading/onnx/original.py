"""An ONNX file as a function that its own runtime computes: the float reference of what is made of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qfunc.errors import FileError, first_line


def original(path: Path) -> Callable[..., list[Tensor]]:
    """Return the function of a file, which takes the tensors of one call in the order of the file.

    Raises:
        FileError: ONNX Runtime cannot load the file.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as e:  # the runtime's errors have no public common type
        do = "Check the file with onnx.checker.check_model."
        raise FileError(where=str(path), found=first_line(e), wanted="a file that ONNX Runtime loads", do=do) from e
    types = {i.name: _TYPES.get(i.type) for i in session.get_inputs()}

    def run(*tensors: Any) -> list[Tensor]:
        feeds = {name: _array(t, dtype) for (name, dtype), t in zip(types.items(), tensors, strict=True)}
        return [torch.from_numpy(array) for array in session.run(None, feeds)]

    return run


def _array(tensor: Any, dtype: torch.dtype | None) -> Any:
    given = torch.as_tensor(tensor).detach()
    return (given if dtype is None else given.to(dtype)).numpy()


_TYPES = {
    "tensor(float)": torch.float32, "tensor(float16)": torch.float16, "tensor(double)": torch.float64,
    "tensor(int64)": torch.int64, "tensor(int32)": torch.int32, "tensor(bool)": torch.bool, "tensor(uint8)": torch.uint8,
}  # fmt: skip
