"""Run products with weights in blocks by OpenVINO, with the tensors inside."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from attrs import frozen

from qfunc.lowering.artifact import file_of
from qfunc.lowering.code_outputs import ModelWithReals
from qfunc.lowering.runner_support import AMX, files_of, has, loading, not_installed, other_kernels, require, uses_amx
from qfunc.specs._values import readable

_MODEL = "model.onnx"


@readable
@frozen
class OpenVinoBlocksRunner:
    """OpenVINO on the CPU, with INFERENCE_PRECISION_HINT f32 and DYNAMIC_QUANTIZATION_GROUP_SIZE 32, its default.

    Install the extra `openvino`.  Needs the artifact's "model.onnx".

    >>> OpenVinoBlocksRunner()
    OpenVinoBlocksRunner()
    """

    def missing(self) -> str:
        """Return "" if it can run, else the missing package."""
        return not_installed("openvino", "openvino")

    def run(self, artifact: Any, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs for one batch of inputs, in the model's order.

        Raises:
            VerifyError: OpenVINO is not installed.
        """
        return self.loaded(artifact)(inputs)

    def loaded(self, artifact: Any) -> Callable[[Sequence[Any]], list[Any]]:
        """Return `run` of one artifact, which is compiled once.

        Raises:
            VerifyError: OpenVINO is not installed.
        """
        return self._session(file_of(files_of(artifact, "OpenVinoBlocksRunner"), _MODEL))

    def inside(self, artifact: Any) -> ModelWithReals:
        """Return the model with the results of its linear layers, and what they read, as outputs.

        Raises:
            VerifyError: OpenVINO is not installed.
        """
        # Import here, so that `import qfunc` does not import onnx.
        from qfunc.files.onnx_model import read_model

        content = file_of(files_of(artifact, "OpenVinoBlocksRunner"), _MODEL)
        nodes = read_model(content).graph.node
        constants = {n.output[0] for n in nodes if n.op_type == "DequantizeLinear"}
        computed = {o for n in nodes if n.op_type != "DequantizeLinear" for o in n.output}
        tensors: dict[str, None] = {}
        for node in nodes:
            if node.op_type in ("Gemm", "MatMul", "Reshape", "Transpose"):
                tensors |= dict.fromkeys(n for n in (node.input[0], node.output[0]) if n in computed)
        names = tuple(name for name in tensors if name not in constants)
        return ModelWithReals(self._session(content), self._session(content, names), names)

    def comparable(self, artifact: Any = None) -> str:
        """Return "" if this CPU has the kernels that the target describes, else the reason why it may not."""
        if other := other_kernels():
            return other
        if not has("avx512_vnni"):
            return "without AVX-512 VNNI, oneDNN has other kernels"
        return AMX if uses_amx() else ""

    def _session(self, model: bytes, names: Sequence[str] = ()) -> Callable[[Sequence[Any]], list[Any]]:
        require(self.missing(), "OpenVinoBlocksRunner", "openvino", "openvino 2026.4")
        core: Any = importlib.import_module("openvino").Core()
        with TemporaryDirectory() as folder, loading("OpenVinoBlocksRunner", "OpenVINO"):
            path = Path(folder, _MODEL)
            path.write_bytes(model)
            network = core.read_model(path)
            count = len(network.outputs)
            added = network.add_outputs(list(names))  # that of the model, where a tensor is one under another name
            places = [*range(count), *(network.outputs.index(output) for output in added)]
            config = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 32}
            compiled = core.compile_model(network, "CPU", config)
        return partial(_values, compiled, places)


def _values(compiled: Any, places: Sequence[int], inputs: Sequence[Any]) -> list[Any]:
    found = compiled([np.asarray(i) for i in inputs])
    return [found[i].copy() for i in places]
