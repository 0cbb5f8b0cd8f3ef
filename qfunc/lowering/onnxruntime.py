"""ONNX Runtime as a runner of artifacts."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attrs import field, frozen

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

    def inside(self, artifact: Any) -> Inside | None:
        """A view of the integer tensors inside; None without optimisation, where there are no integer kernels."""
        return look_inside(artifact.files["model.onnx"], self.threads) if self.optimise else None

    def comparable(self) -> str:
        """ "" where integer kernels compute exactly, else the reason why they may not on this CPU."""
        if platform.machine() not in ("x86_64", "AMD64"):
            return f"{platform.machine()} has other kernels than x86-64"
        flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else "avx_vnni"
        if "vnni" not in flags:
            return "without VNNI the kernels saturate sums of two products to 16 bits"
        return ""
