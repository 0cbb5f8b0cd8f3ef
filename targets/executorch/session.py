"""A program loaded into ExecuTorch.

`machines.worker` also runs this file in a Python that has NumPy, PyTorch and ExecuTorch alone.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np


class Session:
    """The method "forward" of a program, which refers to its bytes; `facts` has what XNNPACK says that refuses its graph."""

    saved = b""

    def __init__(self, file: bytes) -> None:
        self.torch: Any = importlib.import_module("torch")
        self.file = file
        # `executorch.runtime` would import the exporter and its packages.
        runtime = importlib.import_module("executorch.extension.pybindings._C")
        self.program: Any = runtime._load_program_from_buffer(
            file, program_verification=runtime.Verification.InternalConsistency
        )
        try:
            self.method, refused = self.program.load_method("forward"), ""
        except RuntimeError as error:
            refused = str(error)
        self.facts = {"refused": refused}

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs for one batch, one example after the other."""
        batches = [self.torch.as_tensor(np.ascontiguousarray(i)) for i in inputs]
        results = []
        for i in range(len(batches[0])):
            outputs = self.method([b[i : i + 1].contiguous() for b in batches])
            results.append([o.numpy().copy() for o in outputs])
        return [np.concatenate([np.atleast_1d(p) for p in parts]) for parts in zip(*results, strict=True)]
