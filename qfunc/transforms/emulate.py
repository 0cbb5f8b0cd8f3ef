"""emulate: the integer arithmetic of the runtime, bit for bit, from the graph and the target alone."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, TypeVar

from attrs import evolve
from torch import fx, nn

from qfunc.errors import EmulationError
from qfunc.graph.captured import CapturedModule
from qfunc.graph.coding import require_codes
from qfunc.graph.fold import read_attr
from qfunc.graph.kept import keep
from qfunc.graph.network import require
from qfunc.graph.parts import rebuilt, require_parts
from qfunc.graph.record import Record, attach
from qfunc.graph.units import Partition, Unit
from qfunc.graph.vocabulary import slots
from qfunc.specs import Target, Unknown, diff
from qfunc.transforms.asked import require_a_target
from qfunc.transforms.emitter import Codes, Emitter, Real, Value
from qfunc.transforms.job import Job
from qfunc.transforms.kernels import write
from qfunc.transforms.limits import require_limits

Model = TypeVar("Model", bound=nn.Module)


def emulate(target: Target) -> Callable[[Model], Model]:
    """A transform from a calibrated model to one that computes what the runtime computes.

    Inputs and outputs are float as the model's; between units travel integer codes.  A unit whose tensors
    all carry qparams and for which the target has a kernel runs in that kernel's arithmetic, accumulators
    exact; any other unit runs in float, between dequantize and quantize.  Neither onnx nor a runtime is
    imported.

    Raises:
        EmulationError: the vendor's arithmetic is not public (names the nearest target that is), or the
            target's hardware is not the one the model was quantized for (prints the difference).
        CalibrationError: the model is not calibrated.

    >>> import qfunc, torch
    >>> from qfunc import targets
    >>> calibrated = qfunc.calibrate([torch.ones(1, 3)])(qfunc.quantize(targets.onnxruntime)(nn.Linear(3, 2)))
    >>> [n.name for n in emulate(targets.onnxruntime)(calibrated).graph.nodes if n.op == "call_function"]
    ['input_1_codes', 'linear_acc', 'linear', 'linear_real']
    """

    require_a_target(target, "emulate")

    def transform(model: Model) -> Model:
        each = require_parts(model, "calibrated", "emulate")
        for part in each.values():
            require_target(part, target, "emulate")
        require_public(target)
        exact = {path: keep(emulated(Partition(copy.deepcopy(part), target)), part) for path, part in each.items()}
        made: Any = rebuilt(model, exact).eval()
        return made  # type: ignore[no-any-return]

    return transform


def require_public(target: Target) -> None:
    """Refuses a target whose arithmetic is not public.

    Raises:
        EmulationError: names the reason and the nearest target that can be emulated.
    """
    for kernel in target.kernels:
        if isinstance(kernel.arithmetic, Unknown):
            nearest = kernel.arithmetic.nearest
            raise EmulationError(
                where=f"emulate({target.name})",
                found=f"no public arithmetic: {kernel.arithmetic.reason}",
                wanted="a target whose kernels are known",
                do=f"The nearest target that can be emulated is targets.{nearest}." if nearest else "Use the simulation.",
            )


def require_target(model: fx.GraphModule, target: Target, step: str) -> Record:
    """Refuses a target whose hardware half is not the model's.

    Raises:
        EmulationError: prints the difference like two datasheets.
    """
    record = require(model, "quantized", step)
    assert record.target is not None
    if record.target.hardware() != target.hardware():
        raise EmulationError(
            where=f"{step}({target.name})",
            found=f"a model quantized for other hardware:\n{diff(record.target, target.with_algorithm_of(record.target))}\n",
            wanted=f"the hardware of {record.target.name!r}",
            do="Pass the target that the model was quantized for, or quantize for this one.",
        )
    return record


def emulated(partition: Partition) -> fx.GraphModule:
    """The emulation of a partitioned model; its nodes are named after the float tensors whose codes they are.

    Raises:
        SpecError: a site that is simulated only.
        CalibrationError: scales that training has moved beyond a limit of the target.
    """
    for coding in partition.at_path.values():
        require_codes(coding.seat)
    require_limits(partition)
    return _Emulation(partition).build()


class _Emulation:
    def __init__(self, partition: Partition) -> None:
        self.partition, self.network = partition, partition.network
        self.emitter = Emitter(nn.Module(), partition.target, frozenset(n.name for n in self.network.graph.nodes))
        self.emitter.graph.set_codegen(self.network.graph._codegen)
        self.values: dict[str, Value] = {}
        self.at_edge: dict[tuple[str, str], Codes] = {}
        self.units = {u.group.output.name: u for u in partition.units}
        self.inside = {n.name for u in partition.units for n in u.group.nodes[:-1]}

    def build(self) -> fx.GraphModule:
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
        record = require(self.network, "captured", "emulate")
        return attach(result.eval(), evolve(record, facts={}, target=self.partition.target, stage="captured"))

    def _step(self, node: fx.Node) -> None:
        if node.op == "output":
            self.emitter.graph.output(fx.map_arg(node.args[0], lambda n: self._real(n, node)))
        elif node.op in ("placeholder", "get_attr"):
            made = self.emitter.graph.node_copy(node, lambda n: n)
            self.values[node.name] = Real(made)
        else:
            self._unit(self.units[node.name])

    def _unit(self, unit: Unit) -> None:
        output, last = self.partition.output_coding(unit.group.output), unit.group.output.name
        if unit.kernel is not None:
            inputs: dict[str, Value] = {p.name: self._codes(p, n) for n in unit.group.nodes for p in self._activations(n, unit)}
            others = {p.name: self.values[p.name] for n in unit.group.nodes for p in n.all_input_nodes if p.name in self.values}
            job = Job(unit, self.partition, self.emitter, others | inputs, output if unit.integer else None)
            self.values[last] = Real(write(job)) if job.made is None else Codes(write(job), job.made)
        else:
            for node in unit.group.nodes:
                made = self.emitter.graph.node_copy(node, lambda n, node=node: self._real(n, node))  # type: ignore[misc]
                self.values[node.name] = Real(made)
        if output is not None and not unit.integer:
            self.values[last] = Codes(self.emitter.codes(self.values[last], output, f"{last}_codes"), output)

    def _activations(self, node: fx.Node, unit: Unit) -> list[fx.Node]:
        return [p for s, p in slots(node) if s == "input" and p not in unit.group.nodes and self.partition.coding(p, node)]

    def _codes(self, producer: fx.Node, reader: fx.Node) -> Codes:
        coding = self.partition.coding(producer, reader)
        assert coding is not None
        value = self.values[producer.name]
        if isinstance(value, Codes) and value.coding.same(coding):
            return value
        key = (producer.name, coding.seat.path)
        if key not in self.at_edge:
            self.at_edge[key] = Codes(self.emitter.codes(value, coding, f"{producer.name}_codes"), coding)
        return self.at_edge[key]

    def _real(self, producer: fx.Node, reader: fx.Node) -> fx.Node:
        # What a float op reads: through the quantizer on its edge, if there is one.
        value = self.values[producer.name]
        coding = self.partition.coding(producer, reader)
        if coding is None:
            return self.emitter.real(value, producer.name)
        if producer.op == "get_attr":
            return self._constant(producer, coding.seat.path)
        return self.emitter.real(self._codes(producer, reader), producer.name)

    def _constant(self, producer: fx.Node, path: str) -> fx.Node:
        key = (producer.name, path)
        if key not in self.at_edge:
            coding = self.partition.at_path[path]
            held = coding.seat.module(read_attr(self.network, producer).detach())
            self.at_edge[key] = Codes(self.emitter.constant(held, str(producer.target)), coding)
        return self.at_edge[key].node


def summary(units: tuple[Unit, ...]) -> list[dict[str, Any]]:
    """The units as plain data, for reports."""
    return [{"path": u.path, "tensor": u.tensor, "kind": u.kind, "integer": u.integer, "reason": u.reason} for u in units]


__all__ = ["emulate", "emulated", "require_public", "require_target", "summary"]
