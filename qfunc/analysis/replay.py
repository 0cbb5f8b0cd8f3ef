"""Run a network in float, then rerun it from each replaced value on and measure the effect on the outputs."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, fx

from qfunc.analysis.lockstep import TRANSPARENT, Ops
from qfunc.analysis.metrics import Sums
from qfunc.errors import CalibrationError, QfuncError
from qfunc.execution.batches import tensors_of
from qfunc.graph.interpreter import run_error
from qfunc.ops.node import kind_of

Key = TypeVar("Key", bound=Hashable)
Replay = tuple[fx.Node, Callable[[Tensor], Tensor]]
"""The node whose value is replaced, and the function from its float value to the replacement."""


class Replays(Generic[Key]):
    """The running sums of the outputs for each trial; all trials share the float values of a batch."""

    def __init__(self, ops: Ops, trials: Mapping[Key, Replay], step: str) -> None:
        self.ops, self.trials, self.step = ops, trials, step
        self.cones = {node: self._cone(node) for node, _ in trials.values()}
        self.sums: dict[Key, Sums] = {key: Sums() for key in trials}
        self.output = next(n for n in self.ops.nodes if n.op == "output")

    def _cone(self, start: fx.Node) -> tuple[fx.Node, ...]:
        reached = {start}
        for node in self.ops.nodes:  # in topological order
            if any(n in reached for n in node.all_input_nodes):
                reached.add(node)
        return tuple(n for n in self.ops.nodes if n in reached and n is not start)

    def add(self, arguments: tuple[Any, ...], number: int) -> Any:
        """Run one batch and return the output of the float network.

        Raises:
            CalibrationError: an op fails on the arguments, or no output has a floating-point dtype.
        """
        real, where = self.ops.inputs(arguments), f"{self.step}, batch {number}"
        for node in self.ops.nodes:
            if node.op != "placeholder":
                real[node] = self._value(node, real, where)
        require_float_output(real[self.output], self.step)
        for key, (node, replaced) in self.trials.items():
            given = real[node]
            values = ChainMap({node: replaced(given)}, real)
            # If the replacement equals the float value, later values do not change.
            for after in () if torch.equal(values[node], given) else self.cones[node]:
                values[after] = self._value(after, values, where)
            for y, y_hat in zip(outputs_of(real[self.output]), outputs_of(values[self.output]), strict=True):
                self.sums[key].add(y, y_hat)
        return self.ops.returned(real[self.output])

    def _value(self, node: fx.Node, values: Mapping[fx.Node, Any], where: str) -> Any:
        if kind_of(node) in TRANSPARENT:
            return values[node.all_input_nodes[0]]
        try:
            return self.ops.call(node, values.__getitem__)
        except QfuncError:
            raise
        except Exception as e:
            raise run_error(self.ops.model, node, where, e) from e


def outputs_of(value: Any) -> list[Tensor]:
    """Return the outputs with a floating-point dtype."""
    return [v for v in tensors_of(value) if v.is_floating_point()]


def require_float_output(value: Any, step: str, do: str = "") -> None:
    """Raise if no output has a floating-point dtype, because errors of the others are not measured.

    Raises:
        CalibrationError: there is no such output.
    """
    if not outputs_of(value):
        dtypes = dict.fromkeys(str(v.dtype).removeprefix("torch.") for v in tensors_of(value))
        found = f"outputs of {', '.join(dtypes) or 'no dtype'} only"
        do = do or "Return the scores, too, of which they are computed."
        raise CalibrationError(where=f"{step}, outputs", found=found, wanted="at least one floating-point output", do=do)
