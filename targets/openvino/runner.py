"""Run artifacts with OpenVINO."""

from __future__ import annotations

import importlib
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from attrs import field, frozen

from qfunc.lowering.artifact import Artifact, file_of
from qfunc.lowering.checked_runtime import CheckedRuntime, names_of_nodes
from qfunc.lowering.report_fields import read_quantized
from qfunc.lowering.runner_support import (
    AMX, FOURS, SATURATES, files_of, has, loading, not_installed, other_kernels, require, uses_amx,
)  # fmt: skip
from qfunc.targets.openvino.units import float_products

_MODEL = "model.onnx"
_RUNS = 20
_ADDED = re.compile(r"/WithoutBiases$|(_[a-z]{2,6}){2}_.*$")
"""What OpenVINO adds to the name of a layer without its bias, and to the name of a tensor whose layout changes."""


@frozen
class OpenVinoRunner:
    """OpenVINO on the CPU: int8 between FakeQuantize nodes, float32 elsewhere.

    Install the extra `openvino`.  Needs the artifact's "model.onnx", from `OpenVinoLowering`.  INFERENCE_PRECISION_HINT is
    f32, because OpenVINO's default computes the float ops in bfloat16 on CPUs that have it.

    >>> OpenVinoRunner()
    OpenVinoRunner()
    """

    @property
    def flips(self) -> float:
        """The share of codes that it may round differently: some of its float32 sums have another order."""
        return 1e-3

    def missing(self) -> str:
        """Return "" if it can run, else the missing package."""
        return not_installed("openvino", "openvino")

    def run(self, artifact: Any, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs for one batch of inputs, in the model's order.

        Raises:
            VerifyError: OpenVINO is not installed.
        """
        return self.loaded(artifact)(inputs)

    def loaded(self, artifact: Any) -> Callable[[Sequence[Any]], list[Any]]:
        """Return `run` of one artifact, which is compiled once for each size of its inputs.

        Raises:
            VerifyError: OpenVINO is not installed.
        """
        return partial(_values, SizedModel(self, file_of(files_of(artifact, "OpenVinoRunner"), _MODEL)))

    def inside(self, artifact: Any) -> ObservedModel:
        """Return the model with the activations after each FakeQuantize as codes.

        Raises:
            VerifyError: OpenVINO is not installed.
        """
        # Import here, so that `import qfunc` does not import onnx.
        from qfunc.files.onnx_model import read_model

        model = file_of(files_of(artifact, "OpenVinoRunner"), _MODEL)
        activations = [site for site in read_quantized(artifact.report) if site["role"] == "activation"]
        pairs = [(tensor, site) for site in activations for tensor in site["tensors"]]
        counts = Counter(name for name, _ in pairs)  # a tensor with two sites is left out: its name is not unique
        sites = {name: site for name, site in pairs if counts[name] == 1}
        proto = read_model(model)
        nodes = proto.graph.node
        results = {n.input[0]: n.output[0] for n in nodes if n.op_type == "FakeQuantize" and n.input[0] in sites}
        observed = {name: (output, sites[name]) for name, output in results.items()}
        plain, exposed = SizedModel(self, model), SizedModel(self, model, tuple(results))
        calibrated = [tuple(i["shape"]) for i in artifact.report["inputs"]]
        executed, others = (float_products(each.of(calibrated), proto, results) for each in (plain, exposed))
        return ObservedModel(plain, exposed, observed, executed, _difference(executed, others))

    def checked(self) -> CheckedRuntime:
        """Return what a package for another machine needs."""
        return CheckedRuntime("openvino", (_MODEL,), _shown, _settings)

    def comparable(self, artifact: Any = None) -> str:
        """Return "" if this CPU computes the artifact exactly, else the reason why it may not; None stands for any artifact."""
        weights = [] if artifact is None else [s for s in read_quantized(artifact.report) if s["role"] == "weight"]
        exact = artifact is not None and all(max(-s["low"], s["high"]) <= 64 for s in weights)
        return other_kernels() or (AMX if uses_amx() else "" if exact or has(*FOURS) else SATURATES)

    def profiled(self, artifact: Any, inputs: Sequence[Any]) -> dict[str, float]:
        """Return the seconds of each operation, by the names of the file; a change of layout counts for the tensor it moves."""
        model = file_of(files_of(artifact, "OpenVinoRunner"), _MODEL)
        request = self.compiled(model, shapes=_shapes(inputs), profiled=True).create_infer_request()
        times: dict[str, list[float]] = defaultdict(list)
        for _ in range(_RUNS):
            request.infer(_arrays(inputs))
            taken: dict[str, float] = defaultdict(float)
            for row in request.profiling_info:
                taken[_ADDED.sub("", row.node_name)] += row.real_time.total_seconds()
            for name, seconds in taken.items():
                times[name].append(seconds)
        return {name: min(seconds) for name, seconds in times.items()}

    def compiled(
        self, model: bytes, observed: Sequence[str] = (), shapes: Sequence[tuple[int, ...]] = (), profiled: bool = False
    ) -> Any:
        """Return a compiled model with the quantized values of the tensors in `observed` as additional outputs.

        Axes that vary, the first apart, get their sizes from `shapes` before the model is compiled: with unknown sizes
        OpenVINO computes more ops in float32, and 2026.4 may lose a bias.

        Raises:
            VerifyError: OpenVINO is not installed.
        """
        require(self.missing(), "OpenVinoRunner", "openvino", "openvino 2026.4")
        core: Any = importlib.import_module("openvino").Core()
        # As users load it. From bytes OpenVINO 2026.4 omits the inputs that no op reads.
        with TemporaryDirectory() as folder, loading("OpenVinoRunner", "OpenVINO"):
            path = Path(folder, _MODEL)
            path.write_bytes(model)
            network = core.read_model(path)
        producers = {
            n: op for op in network.get_ops() if op.get_type_name() == "FakeQuantize" for n in op.input_value(0).get_names()
        }
        network.add_outputs([producers[name].output(0) for name in observed])
        fixed = {
            port: [
                n if k and axis.is_dynamic else axis for k, (axis, n) in enumerate(zip(port.partial_shape, shape, strict=True))
            ]
            for port, shape in zip(network.inputs, shapes, strict=False)
            if any(axis.is_dynamic for axis in list(port.partial_shape)[1:])
        }
        if fixed:
            network.reshape(fixed)
        counts = {"PERF_COUNT": "YES"} if profiled else {}
        return core.compile_model(network, "CPU", {"INFERENCE_PRECISION_HINT": "f32", **counts})


@frozen(eq=False)
class SizedModel:
    """A model with additional outputs, compiled for each size of its inputs when it is first called with it."""

    runner: OpenVinoRunner
    model: bytes = field(repr=False)
    observed: tuple[str, ...] = ()
    by_shape: dict[tuple[tuple[int, ...], ...], Any] = field(factory=dict, init=False, repr=False)

    def of(self, shapes: Sequence[tuple[int, ...]]) -> Any:
        """Return the compiled model for inputs of these shapes and any batch."""
        key = tuple(tuple(shape[1:]) for shape in shapes)
        if key not in self.by_shape:
            self.by_shape[key] = self.runner.compiled(self.model, self.observed, shapes)
        return self.by_shape[key]

    def __call__(self, inputs: Sequence[Any]) -> Any:
        """Return the outputs for one batch, by name."""
        return self.of(_shapes(inputs))(inputs)


@frozen(eq=False)
class ObservedModel:
    """A compiled model, and the same model with the values after each FakeQuantize as outputs.

    `sites` maps a tensor to the name of its quantized value and its qparams.  `executed` are the products in float, and
    `difference` describes products that the additional outputs move between integers and float, or is "".
    """

    plain: Any = field(repr=False)
    exposed: Any = field(repr=False)
    sites: dict[str, tuple[str, Any]] = field(repr=False)
    executed: dict[str, str]
    difference: str
    units: None = None

    @property
    def tensors(self) -> frozenset[str]:
        """The names of the tensors of codes."""
        return frozenset(f"{t}.codes" for t in self.sites)

    def run(self, inputs: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return (the outputs of the model as deployed, code tensor -> codes)."""
        values = self.exposed(_arrays(inputs))
        codes = {}
        for name, (output, site) in self.sites.items():
            value = values[output]
            shape = [-1 if i == (site["axis"] or 0) % value.ndim else 1 for i in range(value.ndim)]
            scale, zero = (np.float64(site[k]).reshape(shape if len(site[k]) > 1 else ()) for k in ("scale", "zero_point"))
            codes[f"{name}.codes"] = np.rint(value / scale) + zero
        return _values(self.plain, inputs), codes


def _difference(plain: dict[str, str], exposed: dict[str, str]) -> str:
    changed = sorted(plain.keys() ^ exposed.keys())
    return f"reading the inner tensors changes the kernels of {', '.join(changed)}" if changed else ""


def _values(compiled: Any, inputs: Sequence[Any]) -> list[Any]:
    return [v.copy() for v in compiled(_arrays(inputs)).values()]


def _shapes(arrays: Sequence[Any]) -> list[tuple[int, ...]]:
    return [tuple(a.shape) for a in arrays]


def _arrays(inputs: Sequence[Any]) -> list[Any]:
    return [np.asarray(i) for i in inputs]


def _shown(artifact: Artifact) -> dict[str, str]:
    # The real tensors of codes before each FakeQuantize.  A tensor with two quantizers is left out: its name is not unique.
    counts = Counter(names_of_nodes(artifact, _MODEL, "FakeQuantize", lambda node: str(node.input[0])))
    return {f"{name}.codes": name for name in counts if counts[name] == 1}


def _settings(artifact: Artifact) -> dict[str, Any]:
    sites = [site for site in read_quantized(artifact.report) if site["role"] == "activation"]
    return {"qparams": {name: _qparams(site) for site in sites for name in site["tensors"]}}


def _qparams(site: dict[str, Any]) -> dict[str, Any]:
    axis = site["axis"] if len(site["scale"]) > 1 else None
    return {"scale": site["scale"], "zero_point": site["zero_point"], "axis": axis}
