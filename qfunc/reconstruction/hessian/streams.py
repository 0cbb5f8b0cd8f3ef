"""Run a network on all batches from one op to the next, with only the values that later ops read in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx

from qfunc.errors import QfuncError
from qfunc.graph.interpreter import run_error
from qfunc.ops.node import attribute


class Stream:
    """A network that runs on several batches at once, up to an op; `values` has what later ops read, for each batch.

    >>> import torch
    >>> from qfunc.frontend.capture import capture
    >>> network = capture()(torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Tanh(), torch.nn.ReLU()))
    >>> stream = Stream(network, [{"input_1": torch.tensor([-1.0])}, {"input_1": torch.tensor([1.0])}], "test")
    >>> stream.run_to("_2")
    >>> [sorted(values) for values in stream.values], stream.values[1]["_1"]
    ([['_1'], ['_1']], tensor([0.7616]))
    """

    def __init__(self, network: fx.GraphModule, calls: Sequence[dict[str, Any]], step: str) -> None:
        self.network, self.step = network, step
        self.interpreter = fx.Interpreter(network, garbage_collect_values=False)
        self.nodes = [n for n in network.graph.nodes if n.op != "output"]
        self.position = 0
        self.places = {n.name: i for i, n in enumerate(network.graph.nodes)}
        self.last_read = {n: max((self.places[u.name] for u in n.users), default=-1) for n in self.nodes}
        self.values: list[dict[str, Any]] = [dict(call) for call in calls]
        self._constants: dict[str, Any] = {}

    def run_to(self, name: str) -> None:
        """Run each batch up to an op, which does not run yet."""
        stop = self.places[name]
        for number, values in enumerate(self.values, 1):
            for i in range(self.position, stop):
                self._run(i, values, number)
        self.position = max(self.position, stop)

    def replace(self, name: str, value: Any) -> None:
        """Replace the value of a node for the ops that run later, whether it has run or not."""
        self._constants[name] = value
        for values in self.values:
            if name in values:
                values[name] = value

    def input_of(self, name: str) -> str:
        """Return the name of the input of an op."""
        return str(attribute(self.nodes[self.places[name]], "input").name)

    def _run(self, i: int, values: dict[str, Any], number: int) -> None:
        node = self.nodes[i]
        if node.name in self._constants:
            values[node.name] = self._constants[node.name]
        elif node.op == "placeholder":
            if node.name not in values:
                values[node.name] = node.args[0]  # its default
        else:
            self.interpreter.env = {n: values[n.name] for n in node.all_input_nodes}
            try:
                values[node.name] = self.interpreter.run_node(node)
            except QfuncError:
                raise
            except Exception as e:
                raise run_error(self.network, node, f"{self.step}, batch {number}", e) from e
        for read in (node, *node.all_input_nodes):
            if self.last_read[read] <= i:
                values.pop(read.name, None)
