"""Run artifacts with LiteRT."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from attrs import field, frozen

from qfunc.lowering.artifact import file_of
from qfunc.lowering.code_outputs import ModelWithCodes, with_code_outputs
from qfunc.lowering.runner_support import loading, not_installed, other_kernels, require
from qfunc.specs._check import integer, one_of

_RESOLVERS = {"xnnpack": "AUTO", "reference": "BUILTIN_REF", "optimised": "BUILTIN_WITHOUT_DEFAULT_DELEGATES"}


@frozen
class LiteRtRunner:
    """LiteRT on the CPU, with one of its three kernel sets, which round differently.

    "xnnpack", the default, is the XNNPACK delegate, and the optimised kernels for all other ops; "reference" is the plain
    loops; "optimised" is the optimised kernels alone.  Install the extra `litert`.  With `threads=0` the runtime chooses
    the number.  Needs the artifact's "model.tflite".

    >>> LiteRtRunner("reference")
    LiteRtRunner(kernels='reference', threads=0)
    """

    kernels: str = field(default="xnnpack", validator=one_of(tuple(_RESOLVERS)))
    threads: int = field(default=0, validator=integer(0))

    def missing(self) -> str:
        """Return "" if it can run, else the missing package."""
        return not_installed("ai_edge_litert", "ai-edge-litert")

    def run(self, artifact: Any, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs for one batch of inputs, in the model's order.

        Raises:
            VerifyError: LiteRT is not installed.
        """
        return self.session(file_of(artifact.files, "model.tflite")).run(inputs)

    def inside(self, artifact: Any) -> ModelWithCodes:
        """Return the model with its tensors of codes as outputs.

        Raises:
            VerifyError: LiteRT is not installed.
        """
        plain = self.session(file_of(artifact.files, "model.tflite"))
        exposed, last = with_outputs(artifact, "LiteRtRunner")
        return ModelWithCodes(plain.run, self.session(exposed).run, last)

    def comparable(self, artifact: Any = None) -> str:
        """Return "" if this CPU computes as the targets describe, else the reason why it may not."""
        return other_kernels()

    def session(self, model: bytes) -> Session:
        """Return a loaded model, which runs many batches.

        Raises:
            VerifyError: LiteRT is not installed.
        """
        require(self.missing(), "LiteRtRunner", "litert", "ai-edge-litert 2.3")
        litert = importlib.import_module("ai_edge_litert.interpreter")
        resolver = getattr(litert.OpResolverType, _RESOLVERS[self.kernels])
        with loading("LiteRtRunner", "LiteRT"):
            interpreter = litert.Interpreter(
                model_content=model, num_threads=self.threads or None, experimental_op_resolver_type=resolver
            )
        return Session(interpreter)


@frozen(eq=False)
class Session:
    """An interpreter of one model."""

    interpreter: Any

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs for one batch."""
        details = self.interpreter.get_input_details()
        arrays = [np.ascontiguousarray(i) for i in inputs]
        for detail, array in zip(details, arrays, strict=True):
            self.interpreter.resize_tensor_input(detail["index"], array.shape)
        self.interpreter.allocate_tensors()
        for detail, array in zip(details, arrays, strict=True):
            self.interpreter.set_tensor(detail["index"], array)
        self.interpreter.invoke()
        return [self.interpreter.get_tensor(o["index"]) for o in self.interpreter.get_output_details()]


def with_outputs(artifact: Any, runner: str) -> tuple[bytes, dict[str, bool]]:
    """Return (the file with its tensors of codes as additional outputs, tensor -> True if its channels are last)."""
    flatbuffers: Any = importlib.import_module("flatbuffers")
    schema = importlib.import_module("ai_edge_litert.schema_py_generated")
    with loading(runner, "TensorFlow Lite"):
        model = schema.ModelT.InitFromPackedBuf(file_of(artifact.files, "model.tflite"), 0)
        graph = model.subgraphs[0]
        names = [t.name.decode() for t in graph.tensors]
    indices: dict[str, int] = with_code_outputs(artifact, zip(names, range(len(names)), strict=True))
    graph.outputs = np.array([*graph.outputs, *indices.values()], np.int32)
    builder = flatbuffers.Builder(1 << 16)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output()), {n: names[i].endswith(".nhwc") for n, i in indices.items()}


__all__ = ["LiteRtRunner", "with_outputs"]
