"""Run artifacts with TensorFlow Lite Micro, the interpreter of microcontrollers, by its reference kernels."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from attrs import field, frozen

from qfunc.errors import VerifyError
from qfunc.lowering.artifact import file_of
from qfunc.lowering.code_outputs import ModelWithCodes
from qfunc.lowering.runner_support import loading, not_installed
from qfunc.lowering.tflite.runner import with_outputs
from qfunc.specs._check import integer


@frozen
class TfliteMicroRunner:
    """TensorFlow Lite Micro on this machine, by the reference kernels, of which those of CMSIS-NN are bit-exact replacements.

    Install the packages `tflite-micro` and `ai-edge-litert`.  Tensors have the sizes in the file, so that each example is
    an invocation; outputs have the examples along their first axis.  `arena` is the size in bytes of the memory of all
    tensors; 0 computes it from the file.  Needs the artifact's "model.tflite".

    Source: tflite-micro on PyPI, python/tflite_micro/runtime.py; CMSIS-NN README ("bit-exact with TensorFlow Lite reference
        kernels").

    >>> TfliteMicroRunner()
    TfliteMicroRunner(arena=0)
    """

    arena: int = field(default=0, validator=integer(0))

    def missing(self) -> str:
        """Return "" if it can run, else the missing package."""
        return not_installed("tflite_micro", "tflite-micro") or not_installed("ai_edge_litert", "ai-edge-litert")

    def run(self, artifact: Any, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs for one batch of inputs, in the model's order.

        Raises:
            VerifyError: a package is not installed, or the interpreter refuses the file.
        """
        return self.session(file_of(artifact.files, "model.tflite")).run(inputs)

    def inside(self, artifact: Any) -> ModelWithCodes:
        """Return the model with its tensors of codes as outputs.

        Raises:
            VerifyError: a package is not installed, or the interpreter refuses the file.
        """
        plain = self.session(file_of(artifact.files, "model.tflite"))
        exposed, last = with_outputs(artifact, "TfliteMicroRunner")
        return ModelWithCodes(plain.run, self.session(exposed).run, last)

    def session(self, model: bytes) -> MicroSession:
        """Return a loaded model, which runs many batches.

        Raises:
            VerifyError: a package is not installed, or the interpreter refuses the file.
        """
        if missing := self.missing():
            do = "Install qfunc-torch[litert] and tflite-micro, or pass runtime=run, where run(artifact, inputs) -> outputs."
            wanted = "tflite-micro and ai-edge-litert 2.3 or later"
            raise VerifyError(where="TfliteMicroRunner", found=missing, wanted=wanted, do=do)
        runtime = importlib.import_module("tflite_micro.python.tflite_micro.runtime")
        schema = importlib.import_module("ai_edge_litert.schema_py_generated")
        with loading("TfliteMicroRunner", "TensorFlow Lite Micro"):
            graph = schema.Model.GetRootAs(model, 0).Subgraphs(0)
            arena = self.arena or _memory(graph)
            interpreter = runtime.Interpreter.from_bytes(model, arena_size=arena)
        return MicroSession(interpreter, int(graph.OutputsLength()))


@frozen(eq=False)
class MicroSession:
    """An interpreter of one model, and the number of its outputs."""

    interpreter: Any
    outputs: int

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs for one batch."""
        arrays = [np.ascontiguousarray(i) for i in inputs]
        found = [self._one([a[i : i + 1] for a in arrays]) for i in range(len(arrays[0]))]
        return [np.concatenate(parts) for parts in zip(*found, strict=True)]

    def _one(self, arrays: Sequence[Any]) -> list[Any]:
        for index, array in enumerate(arrays):
            self.interpreter.set_input(array, index)
        self.interpreter.invoke()
        return [self.interpreter.get_output(i) for i in range(self.outputs)]


def _memory(graph: Any) -> int:
    # All tensors at once, at 8 bytes an element, and 512 bytes for the records of each: more than the interpreter needs.
    sizes = [graph.Tensors(i).ShapeAsNumpy() for i in range(graph.TensorsLength())]
    return (1 << 20) + sum(512 + 8 * int(np.prod(s)) for s in sizes)


__all__ = ["TfliteMicroRunner"]
