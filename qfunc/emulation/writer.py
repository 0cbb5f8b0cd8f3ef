"""Build the graph that computes the integers of a runtime from a partition.

The units that ONNX Runtime stores with channels last decide the order of some sums.
"""

from __future__ import annotations

from collections.abc import Set

from attrs import evolve
from torch import fx, nn

from qfunc.emulation.builder import Codes, EmulationBuilder, Real, Value, codes_names
from qfunc.emulation.computation import computed
from qfunc.emulation.context import UnitContext
from qfunc.graph.constants import UniqueNames, read_attr
from qfunc.graph.module import CapturedModule
from qfunc.graph.record import attach
from qfunc.graph.stages import require_stage
from qfunc.ops.node import returns_several, slots
from qfunc.placement.encoding import require_codes
from qfunc.placement.partition import Partition
from qfunc.placement.shift_limits import require_limits
from qfunc.placement.units import Unit
from qfunc.specs.protocols import BuildingLowering, BuiltNetwork

# The ops through which ONNX Runtime passes its blocked layout: a choice of the runtime, no trait of the ops.
_KEEPS_LAYOUT = ("add", "mul", "max_pool", "avg_pool", "global_avg_pool", "concat", "sigmoid", "leaky_relu", "relu", "clip")


def build_emulation(partition: Partition) -> fx.GraphModule:
    """Return the emulation of a partitioned model; each node has the name of the float tensor whose codes it computes.

    Raises:
        SpecError: a site whose format has no codes.
        CalibrationError: scales outside of a limit of the target, as training may leave them.
    """
    for encoding in partition.at_path.values():
        if not partition.in_blocks(encoding):
            require_codes(encoding.quantizer)
    require_limits(partition)
    lowering = partition.target.lowering
    return _Emulation(partition).build(lowering.network(partition) if isinstance(lowering, BuildingLowering) else None)


class _Emulation:
    def __init__(self, partition: Partition) -> None:
        self.partition, self.network = partition, partition.network
        self.codes_names = codes_names(self.network.graph)
        results = frozenset(self.codes_names) | frozenset(self.codes_names.values())
        holder = UniqueNames(set(dir(self.network))).fresh("integers")
        self.emitter = EmulationBuilder(nn.Module(), partition.target, results, holder)
        self.emitter.graph.set_codegen(self.network.graph._codegen)
        self.values: dict[str, Value] = {}
        self.at_edge: dict[tuple[str, str], Codes] = {}
        self.constants: dict[tuple[str, str], fx.Node] = {}
        self.units = partition.units_by_output
        self.inside = {n.name for u in partition.units for n in u.group.nodes[:-1]}

    def build(self, network: BuiltNetwork | None) -> fx.GraphModule:
        if network is not None:
            self._built(network)
        else:
            for node in self.network.graph.nodes:
                if node.name not in self.inside:
                    self._step(node)
        for name, module in self.network.named_children():
            self.emitter.root.add_module(name, module)
        for name, tensor in [*self.network.named_parameters(recurse=False), *self.network.named_buffers(recurse=False)]:
            setattr(self.emitter.root, name, tensor)
        result = CapturedModule(self.emitter.root, self.emitter.graph)
        result.graph.eliminate_dead_code(is_impure_node=lambda n: n.op in ("placeholder", "output"))
        result.recompile()
        record = require_stage(self.network, "captured", "emulate")
        return attach(result.eval(), evolve(record, facts={}, target=self.partition.target, stage="captured"))

    def _built(self, network: BuiltNetwork) -> None:
        for node in self.network.graph.nodes:
            if node.op in ("placeholder", "get_attr"):
                self._step(node)

        def product(unit: Unit, x: fx.Node) -> fx.Node:
            (read,) = (n for n in unit.group.root.all_input_nodes if n.op != "get_attr")
            self.values[read.name] = Real(x)
            self._unit(unit)
            return self.values[unit.group.output.name].node

        outputs = network.write(product, lambda n: self.values[n.name].node, self.emitter.call)
        self.emitter.graph.output(fx.map_arg(network.output.args[0], lambda n: outputs[n]))

    def _step(self, node: fx.Node) -> None:
        if node.op == "output":
            self.emitter.graph.output(fx.map_arg(node.args[0], lambda n: self._real(n, node)))
        elif node.op in ("placeholder", "get_attr"):
            copy = self.emitter.graph.node_copy(node, lambda n: n)
            self.values[node.name] = Real(copy)
        else:
            self._unit(self.units[node.name])

    def _unit(self, unit: Unit) -> None:
        output, last = self.partition.output_encoding(unit.group.output), unit.group.output.name
        if unit.kernel is not None:
            inputs: dict[str, Value] = {p.name: self._codes(p, n) for n in unit.group.nodes for p in self._activations(n, unit)}
            others = {p.name: self.values[p.name] for n in unit.group.nodes for p in n.all_input_nodes if p.name in self.values}
            job = UnitContext(unit, self.partition, self.emitter, others | inputs, output if unit.integer else None)
            if _writes_channels_last(unit, self.emitter.channels_last):
                self.emitter.channels_last.add(last)
            node = computed(job)
            self.values[last] = Real(node) if job.output_encoding is None else Codes(node, job.output_encoding)
        else:
            for node in unit.group.nodes:
                copy = self.emitter.graph.node_copy(node, lambda n, node=node: self._real(n, node))  # type: ignore[misc]
                self.values[node.name] = Real(copy)
        # Of several results, as a split returns them, each has its codes where it is read.
        if output is not None and not unit.integer and not returns_several(unit.group.output):
            constant = unit.group.root in self.partition.constants
            self.values[last] = Codes(self.emitter.codes(self.values[last], output, self.codes_names[last], constant), output)

    def _activations(self, node: fx.Node, unit: Unit) -> list[fx.Node]:
        read = [p for s, p in slots(node) if s == "input" and p not in unit.group.nodes and not self._is_real_tuple(p)]
        return [p for p in read if self.partition.encoding(p, node)]

    def _is_real_tuple(self, producer: fx.Node) -> bool:
        return returns_several(producer) and isinstance(self.values.get(producer.name), Real)

    def _codes(self, producer: fx.Node, reader: fx.Node) -> Codes:
        encoding = self.partition.encoding(producer, reader)
        assert encoding is not None
        value = self.values[producer.name]
        if isinstance(value, Codes) and value.encoding.same(encoding):
            return value
        key = (producer.name, encoding.quantizer.path)
        if key not in self.at_edge:
            constant = producer in self.partition.constants
            self.at_edge[key] = Codes(self.emitter.codes(value, encoding, self.codes_names[producer.name], constant), encoding)
        return self.at_edge[key]

    def _real(self, producer: fx.Node, reader: fx.Node) -> fx.Node:
        # The input of a float op: if its edge has a quantizer, the dequantized codes.
        if producer.name not in self.values:  # inside of a unit, where only its size is read
            copy = self.emitter.graph.node_copy(producer, lambda n: self._real(n, producer))
            self.values[producer.name] = Real(copy)
        value = self.values[producer.name]
        encoding = self.partition.encoding(producer, reader)
        if self._is_real_tuple(producer):
            return value.node
        if encoding is None:
            return self.emitter.real(value, producer.name)
        if producer.op == "get_attr":
            return self._constant(producer, encoding.quantizer.path)
        return self.emitter.real(self._codes(producer, reader), producer.name)

    def _constant(self, producer: fx.Node, path: str) -> fx.Node:
        key = (producer.name, path)
        if key not in self.constants:
            quantizer = self.partition.at_path[path].quantizer.module
            quantized = quantizer(read_attr(self.network, producer).detach())
            self.constants[key] = self.emitter.constant(quantized, str(producer.target))
        return self.constants[key]


def _writes_channels_last(unit: Unit, before: Set[str]) -> bool:
    """Return True if an integer unit writes the layout of a convolution; `before` are the outputs before it that have it."""
    return unit.integer and (unit.kind == "conv" or (unit.kind in _KEEPS_LAYOUT and _reads(unit, before)))


def _reads(unit: Unit, outputs: Set[str]) -> bool:
    return any(n.name in outputs for node in unit.group.nodes for _, n in slots(node))
