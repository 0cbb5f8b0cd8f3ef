"""Packages for other machines with LiteRT: the tensors of the file by their names in the model."""

from __future__ import annotations

from collections import Counter

from qfunc.lowering.artifact import Artifact, file_of
from qfunc.lowering.checked_runtime import CheckedRuntime

_MODEL = "model.tflite"


def checked_runtime(kernels: str) -> CheckedRuntime:
    """Return the runtime with one set of kernels."""
    return CheckedRuntime("litert", (_MODEL,), _shown, lambda _: {"kernels": kernels})


def _shown(artifact: Artifact) -> dict[str, str]:
    from qfunc.targets.litert.builder import schema

    graph = schema().ModelT.InitFromPackedBuf(file_of(artifact.files, _MODEL), 0).subgraphs[0]
    names = [t.name.decode() for t in graph.tensors]
    counts = Counter(names)
    return {name.removesuffix(".nhwc"): name for name in reversed(names) if counts[name] == 1}


__all__ = ["checked_runtime"]
