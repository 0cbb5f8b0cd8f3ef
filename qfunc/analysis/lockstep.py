"""Run a quantized model in float and in simulation side by side, op by op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import fx

from qfunc.errors import QfuncError
from qfunc.graph.interpreter import run_error
from qfunc.graph.module import in_evaluation_mode
from qfunc.ops.node import kind_of
from qfunc.quantizers.fake_quantize import FakeQuantize

TRANSPARENT = ("fake_quantize", "dropout")
"""The kinds of ops that the float network does not have."""


class Pair(NamedTuple):
    """A value of the float network and of the simulation; the same object if they cannot differ."""

    real: Any
    simulated: Any


class Ops:
    """The ops of a quantized model in evaluation mode; the caller stores their values."""

    def __init__(self, model: fx.GraphModule) -> None:
        self.model, self.interpreter = model, fx.Interpreter(model)
        self.nodes = tuple(model.graph.nodes)
        calls = {str(n.target) for n in self.nodes if n.op == "call_module"}
        self.modules = {path: in_evaluation_mode(model.get_submodule(path)) for path in calls}

    def inputs(self, arguments: tuple[Any, ...]) -> dict[fx.Node, Any]:
        """Return the values of the placeholders; placeholders without an argument get their defaults."""
        given = iter(self.model.graph.process_inputs(*arguments))
        places = [n for n in self.nodes if n.op == "placeholder"]
        return {n: next(given, n.args[0] if n.args else None) for n in places}

    def returned(self, value: Any) -> Any:
        """Return the model's result for the value of its output node."""
        return self.model.graph.process_outputs(value)

    def module(self, node: fx.Node) -> FakeQuantize:
        """Return the quantizer at a node."""
        quantizer: Any = self.modules[str(node.target)]
        return quantizer  # type: ignore[no-any-return]

    def call(self, node: fx.Node, value: Callable[[fx.Node], Any]) -> Any:
        """Return the value of a node, computed from the values of its inputs; of the output node, its argument."""
        args, kwargs = fx.map_arg(node.args, value), fx.map_arg(node.kwargs, value)
        if node.op == "call_module":
            return self.modules[str(node.target)](*args, **kwargs)
        return getattr(self.interpreter, node.op)(node.target, args, kwargs)


class Lockstep:
    """Runs a calibrated model and its float network side by side.

    `see(node, values)` is called after each node, with the values that later nodes read.  Values are dropped after
    their last reader.  Ops before the first quantizer run only once; quantized constants are reused for later batches.
    """

    def __init__(self, model: fx.GraphModule, see: Callable[[fx.Node, dict[fx.Node, Pair]], None]) -> None:
        self.ops, self.see = Ops(model), see
        self.constants: dict[fx.Node, Pair] = {}
        last = {n: reader for reader in self.ops.nodes for n in reader.all_input_nodes}
        self.done: dict[fx.Node, list[fx.Node]] = {}
        for node, reader in last.items():
            self.done.setdefault(reader, []).append(node)

    def run(self, arguments: tuple[Any, ...], where: str) -> Any:
        """Run one batch and return the output of the float network.

        Raises:
            CalibrationError: an op fails on the arguments.
        """
        env = {n: Pair(v, v) for n, v in self.ops.inputs(arguments).items()}
        for node in self.ops.nodes:
            try:
                env[node] = env[node] if node.op == "placeholder" else self._pair(node, env)
                self.see(node, env)
            except QfuncError:
                raise
            except Exception as e:
                raise run_error(self.ops.model, node, where, e) from e
            for value in self.done.get(node, ()):
                del env[value]
        return self.ops.returned(env[self.ops.nodes[-1]].real)

    def _pair(self, node: fx.Node, env: dict[fx.Node, Pair]) -> Pair:
        kind = kind_of(node)
        if kind in TRANSPARENT:
            given = env[node.all_input_nodes[0]]
            return given if kind == "dropout" else self._quantized(node, given)
        real = self.ops.call(node, lambda n: env[n].real)
        if all(env[n].real is env[n].simulated for n in node.all_input_nodes):
            return Pair(real, real)
        return Pair(real, self.ops.call(node, lambda n: env[n].simulated))

    def _quantized(self, node: fx.Node, given: Pair) -> Pair:
        if node.all_input_nodes[0].op != "get_attr":
            return Pair(given.real, self.ops.module(node)(given.simulated))
        if node not in self.constants:
            self.constants[node] = Pair(given.real, self.ops.module(node)(given.simulated))
        return self.constants[node]
