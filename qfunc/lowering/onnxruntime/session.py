"""A model loaded into ONNX Runtime.

`machines.worker` also runs this file in a Python that has NumPy and ONNX Runtime alone.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np


class Session:
    """A model in ONNX Runtime; with `saved`, the attribute `saved` is its optimised graph as a file, else it is empty.

    `facts` are the `names` of its inputs and its `outputs`.
    """

    def __init__(self, model: bytes, *, optimise: bool = True, threads: int = 0, saved: bool = False) -> None:
        import onnxruntime as ort

        options = ort.SessionOptions()
        levels = ort.GraphOptimizationLevel
        options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimise else levels.ORT_DISABLE_ALL
        options.intra_op_num_threads, options.log_severity_level = threads, 3
        self.saved = b""
        with tempfile.TemporaryDirectory() as folder:
            if saved:
                options.optimized_model_filepath = os.path.join(folder, "optimised.onnx")
            self.ort = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
            if saved:
                self.saved = Path(folder, "optimised.onnx").read_bytes()
        self.names = [i.name for i in self.ort.get_inputs()]
        self.outputs = [o.name for o in self.ort.get_outputs()]
        self.facts = {"names": self.names, "outputs": self.outputs}

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs for one batch."""
        feeds = {n: np.asarray(v) for n, v in zip(self.names, inputs, strict=True)}
        return list(self.ort.run(None, feeds))
