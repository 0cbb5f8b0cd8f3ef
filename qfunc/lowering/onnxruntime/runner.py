"""ONNX Runtime as a runner of artifacts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import field, frozen

from qfunc.lowering.artifact import file_of
from qfunc.lowering.onnxruntime.optimized import OptimizedModel, optimized_model
from qfunc.lowering.onnxruntime.session import Session
from qfunc.lowering.onnxruntime.unoptimized import UnoptimizedModel, unoptimized_model
from qfunc.lowering.runner_support import SATURATES, has, loading, other_kernels
from qfunc.specs._check import instance_of, integer


@frozen
class OnnxRuntimeRunner:
    """ONNX Runtime, CPUExecutionProvider, with all its graph optimisations or none.

    `threads=0` leaves the number to the runtime.  Needs the artifact's "model.onnx".

    >>> OnnxRuntimeRunner()
    OnnxRuntimeRunner(optimise=True, threads=0)
    """

    optimise: bool = field(default=True, validator=instance_of(bool))
    threads: int = field(default=0, validator=integer(0))

    def run(self, artifact: Any, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs for one batch of inputs, in the model's order."""
        with loading("OnnxRuntimeRunner", "ONNX Runtime"):
            session = self.session(_whole(file_of(artifact.files, "model.onnx")))
        return session.run(inputs)

    def session(self, model: bytes) -> Session:
        """Return a loaded model, for many batches."""
        return Session(model, optimise=self.optimise, threads=self.threads)

    def inside(self, artifact: Any) -> OptimizedModel | UnoptimizedModel:
        """Return a view of the tensors of codes inside: those that stay in the optimised graph, or all as written."""
        view = optimized_model if self.optimise else unoptimized_model
        with loading("OnnxRuntimeRunner", "ONNX Runtime"):
            return view(file_of(artifact.files, "model.onnx"), self.threads)

    def comparable(self, artifact: Any = None) -> str:
        """ "" where integer kernels compute an artifact (None: any) exactly, else why they may not on this CPU.

        Without optimisation all kernels are float.
        """
        if not self.optimise:
            return ""
        exact = has("vnni") or (artifact is not None and not _beyond_seven_bits(file_of(artifact.files, "model.onnx")))
        return other_kernels() or ("" if exact else SATURATES)

    def unlike(self) -> tuple[str, ...]:
        """Return the kinds of ops that this CPU computes in float in another order than is emulated: curves of AVX-512."""
        return () if has("avx512f") else ("softmax", "gelu", "erf", "silu")


def _whole(model: bytes) -> bytes:
    # onnx is imported here, where it is first needed.
    from qfunc.lowering.onnx_file import read_model

    read_model(model)  # ONNX Runtime itself would open the files that a model names
    return model


def _beyond_seven_bits(model: bytes) -> bool:
    import onnx

    from qfunc.lowering.onnx_file import read_model

    stored = read_model(model).graph.initializer
    arrays = (onnx.numpy_helper.to_array(t) for t in stored if t.data_type == onnx.TensorProto.INT8 and len(t.dims) > 1)
    return any(a.size and max(a.max(), -int(a.min())) > 64 for a in arrays)
