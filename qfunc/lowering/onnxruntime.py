"""ONNX Runtime as a runner of artifacts."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attrs import field, frozen

from qfunc.lowering.as_written import AsWritten, as_written
from qfunc.lowering.inside import Inside, look_inside
from qfunc.lowering.session import Session
from qfunc.specs._check import instance_of, integer


@frozen
class OnnxRuntime:
    """ONNX Runtime, CPUExecutionProvider, with all its graph optimisations or none.

    `threads=0` leaves the number to the runtime.  Needs the artifact's "model.onnx".

    >>> OnnxRuntime()
    OnnxRuntime(optimise=True, threads=0)
    """

    optimise: bool = field(default=True, validator=instance_of(bool))
    threads: int = field(default=0, validator=integer(0))

    def run(self, artifact: Any, inputs: Sequence[Any]) -> list[Any]:
        """The outputs for one batch of inputs, in the model's order."""
        return self.session(artifact.files["model.onnx"]).run(inputs)

    def session(self, model: bytes) -> Session:
        """A loaded model, for many batches."""
        return Session(model, optimise=self.optimise, threads=self.threads)

    def inside(self, artifact: Any) -> Inside | AsWritten:
        """A view of the tensors of codes inside: those that stay in the optimised graph, or all as written."""
        view = look_inside if self.optimise else as_written
        return view(artifact.files["model.onnx"], self.threads)

    def comparable(self, artifact: Any = None) -> str:
        """ "" where integer kernels compute an artifact (None: any) exactly, else why they may not on this CPU.

        Without VNNI, AVX2 adds pairs of products u8 * s8 in 16 bits: 2 * 255 * |w| <= 2^15 - 1 holds up to
        |w| = 64, so weights of 7 bits are exact.  Without optimisation all kernels are float.
        """
        if not self.optimise:
            return ""
        if platform.machine() not in ("x86_64", "AMD64"):
            return f"{platform.machine()} has other kernels than x86-64"
        flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else "avx_vnni"
        if "vnni" not in flags and (artifact is None or _beyond_seven_bits(artifact.files["model.onnx"])):
            return "without VNNI the kernels saturate sums of two products to 16 bits"
        return ""


def _beyond_seven_bits(model: bytes) -> bool:
    import onnx

    stored = onnx.load_from_string(model).graph.initializer
    arrays = (onnx.numpy_helper.to_array(t) for t in stored if t.data_type == onnx.TensorProto.INT8 and len(t.dims) > 1)
    return any(a.size and max(a.max(), -int(a.min())) > 64 for a in arrays)
