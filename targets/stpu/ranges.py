"""The ranges of an STPU artifact, and the fold of products into convolutions."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from qfunc.errors import DeployError
from qfunc.lowering.format_checks import format_error, require_integers, require_per_tensor, require_symmetric
from qfunc.lowering.onnx.remove_quantizers import prune
from qfunc.lowering.qdq.reader import QdqModel
from qfunc.lowering.quantized_tensor import QuantizedTensor
from qfunc.lowering.side_file import by_tensor, derived, tensors_of
from qfunc.specs import Int

_ARTIFACT = "STPU"
_UNIT = float(np.float32(1 / 127))
_CONVS = ("Conv", "ConvTranspose")
_SUMS = (*_CONVS, "Gemm")


class StpuRanges:
    """A float model, whose products are folded in place, and the largest value of each tensor."""

    def __init__(self, model: onnx.ModelProto, sites: Iterable[QuantizedTensor]) -> None:
        self.model, self.graph = model, model.graph
        self.source = QdqModel(model)
        self.constants = self.source.initializers
        self.largest: dict[str, float] = {}
        self.weights: dict[str, float] = {}
        for tensor, site in by_tensor(model, sites).items():
            if not derived(site):
                (self.weights if site.role == "weight" else self.largest)[tensor] = _largest(site, tensor)
        self._fold()
        self._propagate()

    def entries(self) -> dict[str, dict[str, float]]:
        """Return the content of the file."""
        names = tensors_of(self.model)
        entries = {t: {"min": -v, "max": v} for t, v in self.largest.items() if t in names}
        for node in self.graph.node:
            self._constants(node, entries)
            self._emin(node, entries)
        return entries

    def _constants(self, node: onnx.NodeProto, entries: dict[str, dict[str, float]]) -> None:
        constants: dict[str, dict[str, float]] = {}
        for name in node.input:
            if name in self.weights:
                constants[f"{node.name}_weights"] = {"min": -self.weights[name], "max": self.weights[name]}
        if node.op_type in _SUMS and len(node.input) == 3 and constants and node.input[0] in self.largest:
            alpha = self.weights[node.input[1]] / 127 * (self.largest[node.input[0]] / 127)
            constants[f"{node.name}_bias"] = {"alpha": alpha, "zero_point": 0}
        for name, entry in constants.items():
            if name in entries:
                found = "a tensor of that name"
                wanted = f"another name: the constant of node {node.name!r} has this entry"
                raise DeployError(where=f"entry {name!r}", found=found, wanted=wanted, do="Rename the module.")
            entries[name] = entry

    def _emin(self, node: onnx.NodeProto, entries: dict[str, dict[str, float]]) -> None:
        entry = entries.get(node.output[0])
        if node.op_type in _CONVS and node.input[1] in self.weights:
            input_max = self.largest.get(node.input[0])
            if entry is None or input_max is None:
                found = f"no range of its {'output' if input_max is not None else 'input'}"
                do = "Quantize it by the target's rules, or skip the whole op."
                raise DeployError(where=f"node {node.name!r}", found=found, wanted="ranges of input and output", do=do)
            total = math.sqrt(self._products(node)) * input_max * self.weights[node.input[1]]
            entry["emin"] = exponent(max(total, entry["max"])) - 10
        elif entry is not None and node.op_type == "Resize":
            entry["emin"] = exponent(entry["max"]) - 20
        elif entry is not None and node.op_type == "Gemm":
            entry["emin"] = 128

    def _products(self, node: onnx.NodeProto) -> int:
        # Weights are [out, in / groups, ...], of transposed convolutions [in, out / groups, ...].
        dims = list(self.constants[node.input[1]].dims)
        if node.op_type == "Conv":
            return math.prod(dims[1:])
        groups = next((a.i for a in node.attribute if a.name == "group"), 1)
        return int(dims[0] // groups * math.prod(dims[2:]))

    def _propagate(self) -> None:
        for node in self.graph.node:
            if node.op_type == "Concat" and node.output[0] in self.largest:
                for name in node.input:
                    self._require_same_range(name, node.output[0])
        for node in reversed(self.graph.node):
            if node.op_type in ("Relu", "Clip") and node.output[0] in self.largest:
                self.largest.setdefault(node.input[0], self.largest[node.output[0]])

    def _require_same_range(self, name: str, output: str) -> None:
        wanted = self.largest[output]
        if self.largest.setdefault(name, wanted) != wanted:
            raise DeployError(
                where=f"activation {name!r}",
                found=f"the range +-{self.largest[name]:.6g}",
                wanted=f"+-{wanted:.6g}, that of {output!r}, which concatenates it",
                do='Give the target Tie(Op("concat"), ("input", "output"), "output").',
            )

    def _fold(self) -> None:
        producers = self.source.producers
        for mul in [n for n in self.graph.node if n.op_type == "Mul"]:
            for factor, name in (mul.input, reversed(mul.input)):
                conv = producers.get(name)
                if factor not in self.constants or conv is None or conv.op_type not in _CONVS:
                    continue
                if name in self.largest or self.source.uses(name) > 1 or conv.input[1] not in self.weights:
                    continue
                scalar = self._factor(factor, mul.name)
                largest = self.weights[conv.input[1]] * abs(scalar)
                for index in range(1, len(conv.input)):
                    conv.input[index] = self._multiply(conv.input[index], scalar, conv.name)
                self.weights[conv.input[1]] = largest
                conv.output[0] = mul.output[0]
                producers[conv.output[0]] = conv
                self.graph.node.remove(mul)
                break
        prune(self.model)

    def _factor(self, name: str, node: str) -> float:
        values = np.unique(numpy_helper.to_array(self.constants[name]))
        if values.size > 1:
            raise DeployError(
                where=f"node {node!r}, factor {name!r}",
                found=f"{values.size} factors",
                wanted="one factor, because the weights have one scale",
                do="Multiply the weights of the convolution by the factors before quantizing.",
            )
        return float(values[0])

    def _multiply(self, name: str, scalar: float, node: str) -> str:
        value: np.ndarray[Any, Any] = numpy_helper.to_array(self.constants[name]) * np.float32(scalar)
        target = name if self.source.uses(name) == 1 else f"{name}.of.{node}"
        proto = numpy_helper.from_array(value, target)
        if target == name:
            self.constants[name].CopyFrom(proto)
        else:
            self.graph.initializer.append(proto)
            self.constants[target] = self.graph.initializer[-1]
        return target


def _largest(site: QuantizedTensor, tensor: str) -> float:
    fmt = require_integers(site, tensor, _ARTIFACT)
    require_symmetric(site, tensor, _ARTIFACT)
    require_per_tensor(site, tensor, _ARTIFACT)
    if site.role == "bias":
        raise format_error(
            site, tensor, repr(fmt), "a bias of scale s_w s_x: STPU has no other", "Give its rule bias=DerivedQParams()."
        )
    if fmt != Int(8, low=-127):
        raise format_error(
            site,
            tensor,
            repr(fmt),
            "Int(8, low=-127): ranges of STPU are 127 steps",
            "Edit the scheme: format=Int(8, low=-127).",
        )
    return 1.0 if site.scale[0] == _UNIT else site.scale[0] * 127


def exponent(value: float) -> int:
    """Return e(v), the biased exponent of a float32 v >= 0, at most 254.

    >>> exponent(0.0), exponent(1.0), exponent(1.99), exponent(2.0), exponent(2.0**-126), exponent(1e-45), exponent(1e39)
    (0, 127, 127, 128, 1, 1, 254)
    """
    if value == 0:
        return 0
    return min(max(math.frexp(value)[1] - 1 + 127, 1), 254)
