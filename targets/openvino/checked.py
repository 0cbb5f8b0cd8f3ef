"""Packages for other machines with OpenVINO: the real tensors of codes before each FakeQuantize, with their qparams."""

from __future__ import annotations

from collections import Counter
from typing import Any

from qfunc.lowering.artifact import Artifact
from qfunc.lowering.checked_runtime import CheckedRuntime, names_of_nodes
from qfunc.lowering.report_fields import read_quantized

_MODEL = "model.onnx"


def checked_runtime() -> CheckedRuntime:
    """Return the runtime."""
    return CheckedRuntime("openvino", (_MODEL,), _shown, _settings)


def _shown(artifact: Artifact) -> dict[str, str]:
    # A tensor with two quantizers is left out: its name is not unique.
    counts = Counter(names_of_nodes(artifact, _MODEL, "FakeQuantize", lambda node: str(node.input[0])))
    return {f"{name}.codes": name for name in counts if counts[name] == 1}


def _settings(artifact: Artifact) -> dict[str, Any]:
    sites = [site for site in read_quantized(artifact.report) if site["role"] == "activation"]
    return {"qparams": {name: _qparams(site) for site in sites for name in site["tensors"]}}


def _qparams(site: dict[str, Any]) -> dict[str, Any]:
    axis = site["axis"] if len(site["scale"]) > 1 else None
    return {"scale": site["scale"], "zero_point": site["zero_point"], "axis": axis}


__all__ = ["checked_runtime"]
