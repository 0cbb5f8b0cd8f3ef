"""The runtimes that conformance.py compares with: how each loads the file of a target, and what is expected of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

Call = Callable[[Sequence[Any]], Any]


class Place(NamedTuple):
    """A runtime.

    Attributes:
        load: Load a target's file once, for many runs.
        interprets: True if its kernels interpret.
        exact: True if it must agree with the emulation.
        real: True if it also runs the network in float, with meaningful times.
        public: True if its arithmetic is public.
    """

    load: Callable[[Any, Any], Call]
    interprets: bool = False
    exact: bool = True
    real: bool = True
    public: bool = True


def _onnx(runner: Any, files: Any) -> Call:
    return runner.session(files["model.onnx"]).run  # type: ignore[no-any-return]


def _openvino(runner: Any, files: Any) -> Call:
    compiled = runner.compiled(files["model.onnx"])
    return lambda inputs: compiled([np.asarray(i) for i in inputs])


def _litert(runner: Any, files: Any) -> Call:
    return runner.session(files["model.tflite"]).run  # type: ignore[no-any-return]


def _executorch(runner: Any, files: Any) -> Call:
    return runner.session(files["model.pte"]).run  # type: ignore[no-any-return]


def _tosa(runner: Any, files: Any) -> Call:
    return runner.session(files).run  # type: ignore[no-any-return]


def _ncnn(runner: Any, files: Any) -> Call:
    return runner.session(files).run  # type: ignore[no-any-return]


def _qnn_htp(runner: Any, files: Any) -> Call:
    return runner.session(files).run  # type: ignore[no-any-return]


PLACES = {
    "onnxruntime": Place(_onnx),
    "onnx_qnn": Place(_onnx),
    "openvino": Place(_openvino, exact=False),
    "litert": Place(_litert),
    "litert_reference": Place(_litert, interprets=True),
    "litert_optimised": Place(_litert),
    "executorch_xnnpack": Place(_executorch),
    "ncnn": Place(_ncnn),
    "qnn_htp": Place(_qnn_htp, exact=False, real=False, public=False),
    "tosa": Place(_tosa, interprets=True, real=False),
}
"""Runtimes by target name.  The target's own runner runs its files."""

__all__ = ["PLACES", "Call", "Place"]
