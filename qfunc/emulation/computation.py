"""Write the computation of an arithmetic as nodes of the emulation."""

from __future__ import annotations

from typing import Any

from attrs import field, frozen
from torch import fx

from qfunc.arithmetic import Computation, Constant, Operand, OpItself, Real, Size
from qfunc.emulation.builder import Codes
from qfunc.emulation.context import UnitContext
from qfunc.errors import EmulationError
from qfunc.placement.unit_spec import Edge
from qfunc.specs.protocols import Arithmetic


def computed(job: UnitContext) -> fx.Node:
    """Return the node with the result of a unit.

    Raises:
        EmulationError: the arithmetic does not take the unit's scales, or returns no computation.
    """
    assert job.unit.kernel is not None
    arithmetic, described = job.unit.kernel.arithmetic, job.described()
    assert isinstance(arithmetic, Arithmetic)  # conversions are bound to "quantize" and "dequantize", which are no units
    found = arithmetic.kernel(described.unit)
    if not isinstance(found, Computation | OpItself):
        do = "Return qfunc.arithmetic.Computation(function, arguments)."
        where = f"unit {job.unit.path!r}, {type(arithmetic).__name__}.kernel"
        raise EmulationError(where=where, found=f"a result of type {type(found).__name__}", wanted="a Computation", do=do)
    return _Nodes(job, described.edges).write(found, job.name, result=True)


@frozen(eq=False)
class _Nodes:
    job: UnitContext
    edges: dict[Operand, Edge]
    written: dict[Any, fx.Node] = field(factory=dict)
    """The nodes of computations, constants and real operands, which occur several times in a computation."""

    def write(self, computation: Computation | OpItself, name: str, result: bool = False) -> fx.Node:
        if isinstance(computation, OpItself):
            values = {self.edges[o].producer: self._argument(v) for o, v in computation.values.items()}
            inputs = self.job.inputs
            return self.job.emitter.copy_op(self.job.root, lambda n: values.get(n) or inputs[n.name].node, name, result)
        arguments = [self._argument(a) for a in computation.arguments]
        return self.job.emitter.call(computation.function, *arguments, name=name, result=result)

    def _argument(self, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(self._argument(v) for v in value)
        if isinstance(value, dict):
            return {k: self._argument(v) for k, v in value.items()}
        if isinstance(value, Size):
            return self.job.inputs[value.name].node
        if not isinstance(value, Computation | Constant | Operand | OpItself | Real):
            return value
        if value not in self.written:
            self.written[value] = self._node(value)
        return self.written[value]

    def _node(self, value: Computation | Constant | Operand | OpItself | Real) -> fx.Node:
        job = self.job
        if isinstance(value, Computation | OpItself):
            of = value.of if isinstance(value, Computation) else None
            return self.write(value, f"{job.name if of is None else of.name}_{value.name or 'inner'}")
        if isinstance(value, Constant):
            path = f"{job.unit.path}.{value.name}" if value.of is None else value.of.name
            return job.emitter.constant(value.value, path)
        if isinstance(value, Real):
            return (job.wide if value.wide else job.real)(*self.edges[value.operand])
        if value.coding is None:
            return job.real(*self.edges[value])
        held = job.inputs.get(self.edges[value].producer.name)
        return held.node if isinstance(held, Codes) else job.emitter.constant(value.constant, value.name)
