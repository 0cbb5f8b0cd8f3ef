"""Run artifacts with the HTP emulator in onnxruntime-qnn."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from attrs import field, frozen

from qfunc.errors import VerifyError, first_line
from qfunc.lowering.artifact import file_of
from qfunc.lowering.runner_support import files_of, not_installed, require
from qfunc.specs._check import integer

EP = "QNNExecutionProvider"
NOT_PUBLIC = "the rounding of the HTP is not published"


@frozen
class QnnHtpRunner:
    """The Hexagon HTP of version `arch`, for which ONNX Runtime's QNN provider compiles; on x86-64 its emulator runs.

    Install the extra `qnn`.  No op falls back to ONNX Runtime's own kernels; the examples of a batch run one by one.  Needs
    the artifact's "model.onnx", from `QnnHtpLowering`.

    >>> QnnHtpRunner()
    QnnHtpRunner(arch=73)
    """

    arch: int = field(default=73, validator=integer(68))

    def missing(self) -> str:
        """Return "" if it can run, else the missing package."""
        return not_installed("onnxruntime_qnn", "onnxruntime-qnn")

    def run(self, artifact: Any, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs for one batch of inputs, in the model's order.

        Raises:
            VerifyError: onnxruntime-qnn is not installed, or the HTP rejects the model.
        """
        return self.loaded(artifact)(inputs)

    def loaded(self, artifact: Any) -> Callable[[Sequence[Any]], list[Any]]:
        """Return `run` of one artifact, which is loaded once.

        Raises:
            VerifyError: onnxruntime-qnn is not installed, or the HTP rejects the model.
        """
        return self.session(files_of(artifact, "QnnHtpRunner")).run

    def comparable(self, artifact: Any = None) -> str:
        """Return the reason why no target describes its codes exactly."""
        return NOT_PUBLIC

    def session(self, files: Mapping[str, bytes]) -> Session:
        """Return a loaded model, which runs many batches.

        Raises:
            VerifyError: onnxruntime-qnn is not installed.
        """
        require(self.missing(), "QnnHtpRunner", "qnn", "onnxruntime-qnn 2.7")
        # Import here, so that `import qfunc` does not import onnx.
        from qfunc.files.onnx_model import read_model

        model = file_of(files, "model.onnx")
        inputs = read_model(model).graph.input
        axes = {i.name: [d.dim_param for d in i.type.tensor_type.shape.dim] for i in inputs}
        return Session(model, axes, self.arch)


@frozen(eq=False)
class Session:
    """A model with the names of its inputs' axes, and one session for each shape, because the HTP has fixed shapes."""

    model: bytes = field(repr=False)
    axes: dict[str, list[str]]
    arch: int
    sessions: dict[tuple[tuple[int, ...], ...], Any] = field(factory=dict, init=False, repr=False)

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs for one batch; the examples run one by one if the length of the first axis may vary.

        Raises:
            VerifyError: the HTP rejects the model.
        """
        arrays = [np.asarray(i) for i in inputs]
        if not all(names and names[0] for names in self.axes.values()):
            return self._run(arrays)
        results = [self._run([a[i : i + 1] for a in arrays]) for i in range(len(arrays[0]))]
        return [np.concatenate([np.atleast_1d(p) for p in parts]) for parts in zip(*results, strict=True)]

    def _run(self, arrays: list[Any]) -> list[Any]:
        shapes = tuple(a.shape for a in arrays)
        if shapes not in self.sessions:
            self.sessions[shapes] = self._session(shapes)
        return list(self.sessions[shapes].run(None, dict(zip(self.axes, arrays, strict=True))))

    def _session(self, shapes: tuple[tuple[int, ...], ...]) -> Any:
        import onnxruntime as ort

        qnn: Any = importlib.import_module("onnxruntime_qnn")
        if EP not in {d.ep_name for d in ort.get_ep_devices()}:
            ort.register_execution_provider_library(EP, qnn.get_library_path())
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        for names, shape in zip(self.axes.values(), shapes, strict=True):
            for name, size in zip(names, shape, strict=True):
                if name:
                    options.add_free_dimension_override_by_name(name, size)
        devices = [d for d in ort.get_ep_devices() if d.ep_name == EP]
        options.add_provider_for_devices(devices, {"backend_path": qnn.get_qnn_htp_path(), "htp_arch": str(self.arch)})
        try:
            return ort.InferenceSession(self.model, options)
        except Exception as e:  # onnxruntime's own classes share no other base
            do = (
                "Skip the ops that the HTP does not run by edit.skip, or verify with ONNX Runtime: "
                "runtime=targets.runtimes.OnnxRuntimeRunner(False)."
            )
            wanted = "a model whose ops all run on the HTP"
            raise VerifyError(where="QnnHtpRunner", found=first_line(e), wanted=wanted, do=do) from e
