"""Packages for other machines with ONNX Runtime: the codes after each QuantizeLinear."""

from __future__ import annotations

from qfunc.lowering.artifact import Artifact
from qfunc.lowering.checked_runtime import CheckedRuntime, names_of_nodes

_MODEL = "model.onnx"


def checked_runtime(optimise: bool) -> CheckedRuntime:
    """Return the runtime with or without ONNX Runtime's optimisations."""
    return CheckedRuntime("onnxruntime", (_MODEL,), _shown, lambda _: {"optimise": optimise}, page=True)


def _shown(artifact: Artifact) -> dict[str, str]:
    return {name: name for name in names_of_nodes(artifact, _MODEL, "QuantizeLinear", lambda node: str(node.output[0]))}


__all__ = ["checked_runtime"]
