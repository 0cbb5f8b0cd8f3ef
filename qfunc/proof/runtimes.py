"""The runtimes of which a package is checked: their files, and the names of the tensors of codes in these files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from itertools import count, takewhile
from typing import Any

from attrs import frozen

from qfunc.errors import VerifyError
from qfunc.files.ncnn_param import read_param
from qfunc.lowering.artifact import Artifact, file_of, name_of_file
from qfunc.lowering.ncnn.runner import NcnnRunner
from qfunc.lowering.onnxruntime.runner import OnnxRuntimeRunner
from qfunc.lowering.openvino.runner import OpenVinoRunner
from qfunc.lowering.report_fields import read_quantized
from qfunc.lowering.tflite.runner import LiteRtRunner
from qfunc.specs import Target

__all__ = ["CheckedRuntime", "by_name", "runtime_of"]

_ONNX, _TFLITE, _PARAM, _BIN = "model.onnx", "model.tflite", "model.ncnn.param", "model.ncnn.bin"


@frozen(eq=False)
class CheckedRuntime:
    """A runtime of `check.py`.

    Attributes:
        name: Its name in proof.json.
        runner: The class of the runner that the same target has here.
        files: The artifact's files that it loads, by their default names.
        shown: Return the name in the file of each tensor of codes, "conv.codes".
        settings: Return the fields of proof.json for this runtime alone, from the runner and the artifact.
    """

    name: str
    runner: type
    files: tuple[str, ...]
    shown: Callable[[Artifact], Mapping[str, str]]
    settings: Callable[[Any, Artifact], dict[str, Any]]

    def names(self, artifact: Artifact) -> list[str]:
        """Return the names of its files in an artifact."""
        return [name_of_file(artifact.files, name) for name in self.files]


def runtime_of(target: Target) -> CheckedRuntime:
    """Return the runtime of a target.

    Raises:
        VerifyError: neither `check.py` nor the page runs it.
    """
    runner = target.runtime.runner
    found = next((r for r in _RUNTIMES if type(runner) is r.runner), None)
    if found is None:
        wanted, do = "ONNX Runtime, LiteRT, ncnn or OpenVINO", "Compare it by qfunc.verify(target, runtime=run)."
        name = target.runtime.name or "none"
        raise VerifyError(where=f"prove({target.name})", found=f"the runtime {name}", wanted=wanted, do=do)
    cpu = target.runtime.cpu
    if cpu is not None and cpu.architecture == "wasm" and found.runner is not OnnxRuntimeRunner:
        wanted = "ONNX Runtime, which the page runs"
        do = f"Compare it by qfunc.verify(target, {found.runner.__name__}(machine=Browser()))."
        raise VerifyError(where=f"prove({target.name})", found=f"{target.runtime.name} on {cpu}", wanted=wanted, do=do)
    return found


def by_name() -> dict[str, CheckedRuntime]:
    """Return the runtimes by their names in proof.json."""
    return {runtime.name: runtime for runtime in _RUNTIMES}


def _of_nodes(artifact: Artifact, op_type: str, place: Callable[[Any], str]) -> list[str]:
    # Import here, so that `import qfunc` does not import onnx.
    from qfunc.files.onnx_model import read_model

    model = read_model(file_of(artifact.files, _ONNX))
    return [place(node) for node in model.graph.node if node.op_type == op_type]


def _in_onnx(artifact: Artifact) -> dict[str, str]:
    return {name: name for name in _of_nodes(artifact, "QuantizeLinear", lambda node: str(node.output[0]))}


def _in_openvino(artifact: Artifact) -> dict[str, str]:
    # A tensor with two quantizers is left out: its name is not unique.
    counts = Counter(_of_nodes(artifact, "FakeQuantize", lambda node: str(node.input[0])))
    return {f"{name}.codes": name for name in counts if counts[name] == 1}


def _in_tflite(artifact: Artifact) -> dict[str, str]:
    from qfunc.lowering.tflite.builder import schema

    graph = schema().ModelT.InitFromPackedBuf(file_of(artifact.files, _TFLITE), 0).subgraphs[0]
    names = [t.name.decode() for t in graph.tensors]
    counts = Counter(names)
    return {name.removesuffix(".nhwc"): name for name in reversed(names) if counts[name] == 1}


def _in_ncnn(artifact: Artifact) -> dict[str, str]:
    # Without those whose examples are along another axis than the first.
    lines = read_param(file_of(artifact.files, _PARAM), _PARAM)
    return {blob: blob for line in lines for blob in line.outputs if blob.endswith(".codes")}


def _of_ncnn(runner: Any, artifact: Artifact) -> dict[str, Any]:
    lines = read_param(file_of(artifact.files, _PARAM), _PARAM)
    blobs = {(line.kind, line.name): line.outputs[0] for line in lines if line.outputs}
    inputs, outputs = (
        list(takewhile(bool, (blobs.get((kind, f"{name}{i}"), "") for i in count())))
        for kind, name in (("Input", "in"), ("Noop", "out"))
    )  # fmt: skip
    return {"blobs": inputs, "outputs": outputs}


def _of_openvino(runner: Any, artifact: Artifact) -> dict[str, Any]:
    sites = [site for site in read_quantized(artifact.report) if site["role"] == "activation"]
    return {"qparams": {name: _qparams(site) for site in sites for name in site["tensors"]}}


def _qparams(site: dict[str, Any]) -> dict[str, Any]:
    axis = site["axis"] if len(site["scale"]) > 1 else None
    return {"scale": site["scale"], "zero_point": site["zero_point"], "axis": axis}


_RUNTIMES = (
    CheckedRuntime("onnxruntime", OnnxRuntimeRunner, (_ONNX,), _in_onnx, lambda runner, _: {"optimise": runner.optimise}),
    CheckedRuntime("litert", LiteRtRunner, (_TFLITE,), _in_tflite, lambda runner, _: {"kernels": runner.kernels}),
    CheckedRuntime("ncnn", NcnnRunner, (_PARAM, _BIN), _in_ncnn, _of_ncnn),
    CheckedRuntime("openvino", OpenVinoRunner, (_ONNX,), _in_openvino, _of_openvino),
)
