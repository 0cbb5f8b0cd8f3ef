"""ONNX Runtime as a runner: outputs, the integer tensors inside, and the partition it chose itself."""

from __future__ import annotations

import os
import platform
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attrs import field, frozen

from qfunc.specs._check import instance_of, integer

_INTEGER_TYPES = (2, 3)  # TensorProto.UINT8, INT8
_PAIR = ("QuantizeLinear", "DequantizeLinear")


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
        return Session(self, model)

    def inside(self, artifact: Any) -> Inside | None:
        """A view of the integer tensors inside; None without optimisation, where there are no integer kernels."""
        return look_inside(self, artifact.files["model.onnx"]) if self.optimise else None

    def comparable(self) -> str:
        """ "" where integer kernels compute exactly, else the reason why they may not on this CPU."""
        if platform.machine() not in ("x86_64", "AMD64"):
            return f"{platform.machine()} has other kernels than x86-64"
        flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else "avx_vnni"
        if "vnni" not in flags:
            return "without VNNI the kernels saturate sums of two products to 16 bits"
        return ""


class Session:
    """One model in ONNX Runtime."""

    def __init__(self, runner: OnnxRuntime, model: bytes, *, saved: bool = False) -> None:
        import onnxruntime as ort

        options = ort.SessionOptions()
        levels = ort.GraphOptimizationLevel
        options.graph_optimization_level = levels.ORT_ENABLE_ALL if runner.optimise else levels.ORT_DISABLE_ALL
        options.intra_op_num_threads, options.log_severity_level = runner.threads, 3
        self.optimised: Any = None
        with tempfile.TemporaryDirectory() as folder:
            if saved:
                options.optimized_model_filepath = os.path.join(folder, "optimised.onnx")
            self.ort = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
            if saved:
                import onnx

                self.optimised = onnx.load(options.optimized_model_filepath)
        self.names = [i.name for i in self.ort.get_inputs()]
        self.outputs = [o.name for o in self.ort.get_outputs()]

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """The outputs for one batch."""
        feeds = {n: v.numpy() if hasattr(v, "numpy") else v for n, v in zip(self.names, inputs, strict=True)}
        return list(self.ort.run(None, feeds))


@frozen(eq=False)
class Inside:
    """A default-optimised model whose integer tensors are visible, and proof that it runs the same kernels.

    `units` maps each code tensor to "integer", "float" (quantized from a float tensor) or "gone" (neither
    op nor codes stayed), as ONNX Runtime partitioned the model itself.
    """

    plain: Session
    exposed: Session
    units: dict[str, str]
    difference: str

    @property
    def tensors(self) -> frozenset[str]:
        """The names of the tensors of codes."""
        return frozenset(self.exposed.outputs) - frozenset(self.plain.outputs)

    def run(self, inputs: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """(the outputs of the model as deployed, code tensor -> codes)."""
        values = self.exposed.run(inputs)
        return self.plain.run(inputs), dict(zip(self.exposed.outputs, values, strict=True))


def look_inside(runner: OnnxRuntime, model: bytes) -> Inside:
    """Opens a model twice: as deployed, and with every code tensor that the runtime still has as an output.

    A tensor that left the graph (of a slice over everything, of transposes that cancel) would come back if
    it were read, so it stays hidden; `units` calls it "gone".  Reading any other could still change what is
    fused; `difference` says where the two optimised graphs differ, or is "".
    """
    import onnx

    original = onnx.load_from_string(model)
    plain = Session(runner, model, saved=True)
    units = _units(original, plain.optimised)
    exposed = onnx.ModelProto()
    exposed.CopyFrom(original)
    element = {i.name: i.data_type for i in original.graph.initializer}
    for node in original.graph.node:
        if node.op_type == "QuantizeLinear" and units.get(node.output[0]) != "gone":
            info = onnx.helper.make_tensor_value_info(node.output[0], element[node.input[2]], None)
            exposed.graph.output.append(info)
    opened = Session(runner, exposed.SerializeToString(), saved=True)
    return Inside(plain, opened, units, _difference(original, units, plain, opened))


def _difference(original: Any, units: dict[str, str], plain: Session, opened: Session) -> str:
    own = {n.name for n in original.graph.node}
    left, right = (_kinds(s.optimised, own) for s in (plain, opened))
    differs = [f"{op}: {left.get(op, 0)} and {right.get(op, 0)}" for op in sorted(left.keys() | right.keys())
               if left.get(op, 0) != right.get(op, 0)]  # fmt: skip
    again = _units(original, opened.optimised)
    differs += [f"{q}: {units[q]} and {again.get(q)}" for q in units if units[q] != again.get(q)]
    return f"reading the inner tensors changes what is fused: {'; '.join(differs)}" if differs else ""


def _kinds(model: Any, own: set[str]) -> dict[str, int]:
    # Layout changes move with the outputs: transposes, and the pairs that the runtime puts around them.
    counts: dict[str, int] = {}
    for node in model.graph.node:
        if node.op_type == "Transpose" or (node.op_type in _PAIR and _own(node.name) not in own):
            continue
        name = {"NhwcMaxPool": "MaxPool"}.get(node.op_type, node.op_type)
        counts[name] = counts.get(name, 0) + 1
    return counts


def _own(name: str) -> str:
    # Layout passes rename what they touch: x_token_3.
    return re.sub(r"(_token_\d+)+$", "", name)


def _units(original: Any, optimised: Any) -> dict[str, str]:
    """Code tensor -> what became of the op that produces it, joined by node names."""
    readers: dict[str, list[Any]] = {}
    for node in original.graph.node:
        for tensor in node.input:
            readers.setdefault(tensor, []).append(node)
    codes_of = {n.name: codes for n in original.graph.node if n.op_type not in _PAIR and (codes := _codes_of(n, readers))}
    own = {n.name for n in original.graph.node}
    element = _elements(optimised)
    found: dict[str, str] = {}
    for node in optimised.graph.node:
        name = _own(node.name)
        if node.op_type in _PAIR or (node.op_type == "Transpose" and name not in own):
            continue
        is_integer = element.get(node.output[0]) in _INTEGER_TYPES
        for q in codes_of.get(name, ()):
            found[q] = "integer" if is_integer and found.get(q) != "float" else "float"
    kept = {_own(n.name) for n in optimised.graph.node if n.op_type == "QuantizeLinear"}
    return {q: found.get(q, "float" if q in kept else "gone") for codes in codes_of.values() for q in codes}


def _codes_of(node: Any, readers: dict[str, list[Any]]) -> list[str]:
    """The code tensors made of an op's values, perhaps behind an activation; the first of each value."""
    found = []
    for output in node.output:
        following = readers.get(output, [])
        while len(following) == 1 and following[0].op_type in ("Relu", "Clip"):
            following = readers.get(following[0].output[0], [])
        found += [r.output[0] for r in following if r.op_type == "QuantizeLinear"][:1]
    return found


def _elements(model: Any) -> dict[str, int]:
    """Element types in an optimised graph; contributed ops carry no shape inference, so by their inputs."""
    graph = model.graph
    element = {i.name: i.data_type for i in graph.initializer}
    element |= {v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.value_info, *graph.output)}
    at = {
        "QLinearConv": 7,
        "QLinearMatMul": 7,
        "QGemm": 8,
        "QLinearAdd": 7,
        "QLinearMul": 7,
        "QLinearConcat": 1,
        "QuantizeLinear": 2,
    }
    for node in graph.node:
        index = at.get(node.op_type, 0)
        source = node.input[index] if index < len(node.input) else ""
        kind = 1 if node.op_type == "DequantizeLinear" or not source else element.get(source, 1)
        for output in node.output:
            element.setdefault(output, kind)
    return element
