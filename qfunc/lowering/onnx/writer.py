"""Write a partitioned model as standard ONNX with Q/DQ: one pair for each quantized tensor."""

from __future__ import annotations

import json
from typing import Any

import onnx
import torch
from torch import Tensor, fx

from qfunc.errors import DeployError
from qfunc.execution.varying_sizes import Axes
from qfunc.graph.arguments import flatten
from qfunc.graph.constants import parameter_shapes, read_attr
from qfunc.graph.record import TensorInfo
from qfunc.graph.selectors import matches
from qfunc.graph.sites import QuantizerNode
from qfunc.lowering.onnx.builder import GraphBuilder
from qfunc.lowering.onnx.context import OpContext
from qfunc.lowering.onnx.custom_ops import write_op
from qfunc.lowering.onnx.normalization import write_norm_module
from qfunc.lowering.onnx.opset import OPSET
from qfunc.lowering.onnx.qdq_nodes import write_constant, write_quantizer
from qfunc.lowering.onnx.shape_inference import Shape, shapes_of
from qfunc.lowering.onnx_quantizers.dynamic import write_dynamic_quantizer
from qfunc.lowering.program import Program, ProgramUnit
from qfunc.lowering.quantized_tensor import Place, quantized_tensor
from qfunc.ops.definition import Trait
from qfunc.ops.indexing import element
from qfunc.ops.node import op_of
from qfunc.placement.codes import on_codes
from qfunc.placement.encoding import Encoding
from qfunc.placement.partition import Partition
from qfunc.placement.units import INNER_PREFIX, Unit
from qfunc.specs import InputRatios, PerTensor
from qfunc.specs.file_format import format_of

_QUANTIZERS = ("QuantizeLinear", "DequantizeLinear")


def write_program(partition: Partition, inputs: tuple[TensorInfo, ...], opset: int = OPSET, axes: Axes | None = ()) -> Program:
    """Return a partition as an ONNX model: weights stored as codes, names that follow the model, dynamic batch.

    A tensor named `p` is written as `p` (float), `p.codes` (after QuantizeLinear) and `p.real` (after
    DequantizeLinear); an op that only moves codes has the same qparams on both sides.

    Raises:
        DeployError: an op or type without an ONNX form.
    """
    writer = _Writer(partition, inputs, opset, axes)
    model = writer.write()
    tensors = (quantized_tensor(partition, path, tuple(places)) for path, places in writer.places.items())
    return Program(model, tensors, map(writer.program_unit, partition.units))


class _Writer:
    def __init__(self, partition: Partition, inputs: tuple[TensorInfo, ...], opset: int, axes: Axes | None) -> None:
        self.partition, self.network = partition, partition.network
        self.unit_of = {node: unit for unit in partition.units for node in unit.group.nodes}
        self.shapes = shapes_of(self.network, inputs, axes)
        # The other names of the file must not be those by which runners and reports find the tensors of the network.
        computed = [name for node, name in partition.names.items() if node.op != "get_attr"]
        self.graph = GraphBuilder(opset, {*computed, *(f"{name}.codes" for name in computed)})
        self.raw: dict[str, str] = {}  # node -> float tensor
        self.real: dict[tuple[str, str], str] = {}  # (node, quantizer) -> dequantized tensor
        self.done: dict[str, str] = {}  # activation already written -> the op that it follows
        self.parts: dict[str, list[str]] = {}  # node with several values -> their tensors
        self.places: dict[str, list[Place]] = {}  # quantizer -> the places in the model where its qparams apply
        self.nodes: dict[str, list[str]] = {}  # tensor of a unit -> its nodes in the model

    def write(self) -> onnx.ModelProto:
        for node in self.network.graph.nodes:
            if node.op == "placeholder":
                self._input(node)
            elif node.op == "output":
                self._outputs(node)
            elif node.op != "get_attr" and self._has_tensors(node):
                self._op(node)
        made = self.graph.model("model")
        if format_of(self.partition.target.lowering).parameters:
            onnx.helper.set_model_props(made, {"parameters": json.dumps(parameter_shapes(self.network))})
        return made

    def program_unit(self, unit: Unit) -> ProgramUnit:
        nodes = tuple(self.nodes.get(unit.tensor, ()))
        codes = on_codes(self.partition, unit)
        return ProgramUnit(unit.path, unit.kind, unit.integer, unit.kernel, codes, unit.host, nodes)

    def name(self, node: fx.Node) -> str:
        return self.partition.names[node]

    def _has_tensors(self, node: fx.Node) -> bool:
        # Sizes, and values computed from them, are constants in the shapes of their readers.
        value = self.shapes[node.name]
        if isinstance(node.target, type):  # the user's tuple
            return False
        return isinstance(value, Shape) or (isinstance(value, tuple) and any(isinstance(v, Shape) for v in value))

    def _input(self, node: fx.Node) -> None:
        shape = self.shapes[node.name]
        if isinstance(shape, Shape):
            self.raw[node.name] = self.graph.fresh(self.graph.free(str(node.target)))
            self.graph.declare(self.raw[node.name], shape)
            self._pair(node)

    def _outputs(self, node: fx.Node) -> None:
        for leaf in flatten(node.args[0]):
            self._output(leaf, node)

    def _output(self, leaf: Any, node: fx.Node) -> None:
        if not isinstance(leaf, fx.Node):
            return  # None and numbers are no outputs of the artifact
        shape = self.shapes.get(leaf.name)
        if isinstance(leaf.target, type):  # the user's tuple or dataclass
            for inner in flatten((leaf.args, leaf.kwargs)):
                self._output(inner, leaf)
        elif isinstance(shape, tuple) and leaf.name in self.parts:
            for name, part in zip(self.parts[leaf.name], shape, strict=True):
                self.graph.declare(name, part, output=True)
        elif isinstance(shape, Shape):
            name = self._read(leaf, node)
            if any(o.name == name for o in (*self.graph.outputs, *self.graph.inputs)) or name in self.graph.initializers:
                name = self.graph.node("Identity", [name], f"{self.name(leaf)}.output")
            elif self._is_read_moved(leaf, node, shape):
                # A copy: ONNX Runtime moves quantizers before moves, although the model returns the value between the two.
                name = self.graph.node("Max", [name], f"{self.name(leaf)}.output")
            self.graph.declare(name, shape, output=True)
        else:
            raise DeployError(where="output", found=repr(leaf), wanted="a tensor", do="Return tensors only.")

    def _is_read_moved(self, leaf: fx.Node, output: fx.Node, shape: Shape) -> bool:
        # True for a real value that a move returns, and that another op reads.
        real = shape.dtype == torch.float32 and self.partition.encoding(leaf, output) is None
        return real and len(leaf.users) > 1 and self.partition.context.has(leaf, Trait.MOVES_VALUES)

    def _op(self, node: fx.Node) -> None:
        kind = self.partition.kinds[node]
        if node.name in self.done:
            self.raw[node.name] = self.raw[self.done[node.name]]
            self._pair(node)
            return
        if isinstance(self.shapes.get(_source(node)), tuple) and (kind == "slice" or node.target is element):
            part = self.parts[_source(node)][node.args[1]]  # type: ignore[index]
            recurrent = self.partition.context.has(node.all_input_nodes[0], Trait.RECURRENT)
            # A copy: ONNX Runtime would move the quantizer between the recurrence and the ops that move its values.
            self.raw[node.name] = self.graph.node("Max", [part], self._own_name(node)) if recurrent else part
            self._pair(node)
            return
        first = len(self.graph.nodes)
        self._compute(node, kind)
        written = [n.name for n in self.graph.nodes[first:] if n.op_type not in _QUANTIZERS]
        self.nodes.setdefault(self.unit_of[node].tensor, []).extend(written)

    def _compute(self, node: fx.Node, kind: str) -> None:
        module = self.network.get_submodule(str(node.target)) if node.op == "call_module" else None
        user_op = self.partition.context.user_op(node)
        call = OpContext(
            self.graph, node, lambda n: self._read(n, node), self.shapes, self._own_name(node), self._quantize_inner(node),
            lambda n: read_attr(self.network, n), lambda n, rows: self._permuted_constant(n, node, rows), module,
            user_op if op_of(node) is None else None,
        )  # fmt: skip
        # These modules have running statistics; the ops of the same kinds are functions of their inputs.
        if kind in ("batch_norm", "instance_norm") and module is not None:
            names: str | list[str] = write_norm_module(call, kind)
        else:
            names = write_op(call, kind, user_op, self.partition.paths[node])
        if isinstance(names, list):
            self.parts[node.name] = names
            return
        self.raw[node.name] = names
        self._pair(node)

    def _own_name(self, node: fx.Node) -> str:
        return self.graph.free(self.name(node))

    def _quantize_inner(self, node: fx.Node) -> Any:
        def pair(tensor: str, place: str) -> str:
            if place == "before":
                producer = next(n for s, n in self.partition.slots(node) if s == "input")
                encoding, name = self.partition.encoding(producer, node), f"{self.name(node)}.rows_in"
            else:
                tensor, encoding, name = self._inner(node, tensor)
            if encoding is None or encoding.quantizer.module.site.by_channel:  # no runtime computes on such codes
                return tensor
            return self._quantized(tensor, encoding, name)

        return pair

    def _inner(self, node: fx.Node, tensor: str) -> tuple[str, Encoding | None, str]:
        # The unit ends here, before the ops that only move its codes; its activations are before its quantizer.
        # Float units with a copy before their quantizer (see _copy_of_float) have none inside.
        unit = self.unit_of[node]
        group, encoding = unit.group, self.partition.output_encoding(unit.group.output)
        rest = group.nodes[1:]
        clamps = all(self.partition.context.has(n, Trait.CLAMPS) for n in rest)
        if encoding is None or self._has_float_weights(unit) or self._limits_scales(unit) or not clamps:
            return tensor, None, ""
        if self.partition.is_appended(unit.group.output):  # the operator of the cache rounds it, from the real value
            return tensor, None, ""
        name = f"{self.name(group.output)}.{INNER_PREFIX}"
        for step in rest:
            own = self.partition.context.user_op(step)
            call = OpContext(
                self.graph, step, lambda _, t=tensor: t, self.shapes, f"{self.name(step)}.{INNER_PREFIX}", lambda t, _: t,  # type: ignore[misc]
                lambda n: read_attr(self.network, n), lambda n, _, s=step: self._read(n, s),  # type: ignore[misc]
                own=own if op_of(step) is None else None,
            )  # fmt: skip
            tensor = str(write_op(call, self.partition.kinds[step], own, self.partition.paths[step]))
            self.done[step.name] = node.name
        return tensor, encoding, name

    def _pair(self, node: fx.Node) -> None:
        encoding = self.partition.output_encoding(node)
        if encoding is not None:
            self._coded(node, encoding)
        if node.name in self.partition.units_by_output:  # the readers of a tensor inside of a unit would divide the unit
            name = self.raw[node.name] if encoding is None else self._coded(node, encoding)
            self.graph.note(name, self.shapes[node.name])

    def _coded(self, node: fx.Node, encoding: Encoding) -> str:
        key = (node.name, encoding.quantizer.path)
        if key not in self.real:
            self.graph.free(f"{self.name(node)}.codes")
            self.real[key] = self._quantized(self._copy_of_float(node), encoding, self.name(node), self.raw[node.name])
        return self.real[key]

    def _quantized(self, tensor: str, encoding: Encoding, name: str, place: str = "") -> str:
        real = write_quantizer(self.graph, tensor, encoding, name, not self.partition.computes_on(encoding))
        self._add_place(encoding, place or tensor, real)
        return real

    def _add_place(self, encoding: Encoding, tensor: str, real: str) -> None:
        self.places.setdefault(encoding.quantizer.path, []).append(Place(tensor, real))

    def _copy_of_float(self, node: fx.Node) -> str:
        # Between DequantizeLinear and QuantizeLinear, ONNX Runtime quantizes float weights and biases
        # (WeightBiasQuantization).  It does not look through a Max of one tensor, which is a copy.
        # It removes a Relu or Clip that the ends of the codes imply, so that the op before those decides.
        source = node
        while self.partition.context.has(source, Trait.CLAMPS) and isinstance(source.args[0], fx.Node):
            source = source.args[0]
        units = [self.partition.units_by_output.get(n.name) for n in (node, source)]
        # It fuses all quantized pools, and then refuses those whose ratio of scales its kernel does not take.
        if not any(unit is not None and self._would_run_on_codes(unit) for unit in units):
            return self.raw[node.name]
        return self.graph.node("Max", [self.raw[node.name]], f"{self.name(node)}.float")

    def _would_run_on_codes(self, unit: Unit) -> bool:
        kept = not unit.integer and self.partition.keeps_float(unit.group)
        return kept or self._has_float_weights(unit) or self._limits_scales(unit)

    def _has_float_weights(self, unit: Unit) -> bool:
        root = unit.group.root
        if unit.integer or not self.partition.context.has(root, Trait.WEIGHTED):
            return False
        return any(self.partition.encoding(n, root) is None for s, n in self.partition.slots(root) if s in ("weight", "bias"))

    def _limits_scales(self, unit: Unit) -> bool:
        kernels = [k for k in self.partition.target.kernels if matches(k.unit, unit.group.root, self.partition.context)]
        return not unit.integer and any(isinstance(c, InputRatios) for k in kernels for c in k.integer_if)

    def _read(self, producer: fx.Node, reader: fx.Node) -> str:
        encoding = self.partition.encoding(producer, reader)
        if producer.op == "get_attr":
            constant = self._constant(producer, encoding)
            weight = encoding is not None and (("weight", producer) in self.partition.slots(reader))
            if weight and self._is_float_product(reader):
                # A copy: ONNX Runtime would multiply codes, or fuse it into MatMulNBits, which quantizes the activation.
                return self.graph.node("Max", [constant], f"{self.name(reader)}.weight")
            return constant
        quantizer = self.partition.run_time(producer, reader)
        if quantizer is not None:
            return self._at_run_time(producer, quantizer)
        if encoding is None:
            return self.raw[producer.name]
        real = self._coded(producer, encoding)
        # A copy: ONNX Runtime multiplies two tensors of codes on integers, whatever the type of the result.
        return self.graph.node("Max", [real], f"{self.name(reader)}.first") if self._is_first_factor(producer, reader) else real

    def _is_first_factor(self, producer: fx.Node, reader: fx.Node) -> bool:
        if not self._is_float_product(reader) or self._float_input(reader):
            return False
        factors = [n for s, n in self.partition.slots(reader) if s == "input"]
        return len(factors) == 2 and factors[0] is producer

    def _is_float_product(self, node: fx.Node) -> bool:
        return self.partition.kinds[node] == "matmul" and (self._float_input(node) or not self.unit_of[node].integer)

    def _at_run_time(self, node: fx.Node, quantizer: QuantizerNode) -> str:
        key, width = (node.name, quantizer.path), self.shapes[node.name].dims[-1]
        if key not in self.real:
            scheme, name = quantizer.module.site.scheme, self.name(node)
            if width is None and not isinstance(scheme.scale.shared, PerTensor):
                do = "Pass inputs of one width."
                raise DeployError(
                    where=f"tensor {self.partition.paths[node]!r}", found="a last axis that varies", wanted="a fixed one", do=do
                )
            outer = float(quantizer.module.outer) if quantizer.module.site.outer else 1.0
            group = None if width is None else int(width)
            self.real[key] = write_dynamic_quantizer(self.graph, self.raw[node.name], scheme, group, name, outer)
        return self.real[key]

    def _float_input(self, node: fx.Node) -> bool:
        # Of codes on which the runtime does not compute, the copy behind DequantizeLinear is a float tensor, too.
        inputs = [n for s, n in self.partition.slots(node) if s == "input" and self.partition.run_time(n, node) is None]
        encodings = [self.partition.encoding(n, node) for n in inputs]
        return any(e is None or not self.partition.computes_on(e) for e in encodings)

    def _permuted_constant(self, node: fx.Node, reader: fx.Node, rows: Tensor) -> str:
        encoding, value = self.partition.encoding(node, reader), read_attr(self.network, node).detach()
        name = self._constant_name(node)
        if encoding is None:
            return self.graph.constant(value[rows][None], name)
        real = write_constant(self.graph, value, encoding, name, rows)
        self._add_place(encoding, real if real in self.graph.initializers else self.graph.fresh(name), real)
        return real

    def _constant_name(self, node: fx.Node) -> str:
        # The name in this network, which may be a part of the user's model.
        own = self.partition.names[node] == self.partition.paths[node]
        return str(node.target) if own else self.name(node)

    def _constant(self, node: fx.Node, encoding: Encoding | None) -> str:
        key = (node.name, encoding.quantizer.path if encoding else "")
        if key not in self.real:
            value = read_attr(self.network, node).detach()
            name = self._constant_name(node)
            if encoding is None:
                self.real[key] = self.graph.constant(value, name)
            else:
                self.real[key] = write_constant(self.graph, value, encoding, name)
                stored = self.real[key] in self.graph.initializers
                self._add_place(encoding, self.real[key] if stored else self.graph.fresh(name), self.real[key])
        return self.real[key]


def _source(node: fx.Node) -> str:
    first = node.args[0] if node.args else None
    return first.name if isinstance(first, fx.Node) else ""
