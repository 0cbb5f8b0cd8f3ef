"""Packages for other machines with ncnn: the blobs of codes, and the blobs of the inputs and outputs."""

from __future__ import annotations

from itertools import count, takewhile
from typing import Any

from qfunc.files.ncnn_param import read_param
from qfunc.lowering.artifact import Artifact, file_of
from qfunc.lowering.checked_runtime import CheckedRuntime

_PARAM, _BIN = "model.ncnn.param", "model.ncnn.bin"


def checked_runtime() -> CheckedRuntime:
    """Return the runtime."""
    return CheckedRuntime("ncnn", (_PARAM, _BIN), _shown, _settings)


def _shown(artifact: Artifact) -> dict[str, str]:
    # Without those whose examples are along another axis than the first.
    lines = read_param(file_of(artifact.files, _PARAM), _PARAM)
    return {blob: blob for line in lines for blob in line.outputs if blob.endswith(".codes")}


def _settings(artifact: Artifact) -> dict[str, Any]:
    lines = read_param(file_of(artifact.files, _PARAM), _PARAM)
    blobs = {(line.kind, line.name): line.outputs[0] for line in lines if line.outputs}
    inputs, outputs = (
        list(takewhile(bool, (blobs.get((kind, f"{name}{i}"), "") for i in count())))
        for kind, name in (("Input", "in"), ("Noop", "out"))
    )  # fmt: skip
    return {"blobs": inputs, "outputs": outputs}


__all__ = ["checked_runtime"]
