"""An interpreter that passes every value of a graph to an observer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, fx

from qfunc.errors import CalibrationError, QfuncError, first_line
from qfunc.graph.record import path_of, record_of


class ObservingInterpreter(fx.Interpreter):
    """Run a network and call `observe(name, value)` for each node, or for the nodes in `names`."""

    def __init__(self, network: fx.GraphModule, observe: Callable[[str, Any], None], names: set[str] | None = None) -> None:
        super().__init__(network)
        self.network, self.observe, self.names = network, observe, names
        self.current: fx.Node | None = None

    def run_node(self, n: fx.Node) -> Any:
        """Return the node's value after passing it to the observer."""
        self.current = n
        value = super().run_node(n)
        if self.names is None or n.name in self.names:
            self.observe(n.name, value)
        return value

    def run_batch(self, arguments: tuple[Any, ...], where: str) -> Any:
        """Run the network.  If an op raises, name its path.

        Raises:
            CalibrationError: an op does not accept the arguments.
        """
        self.extra_traceback = False  # torch.fx would modify the messages of our errors
        try:
            return self.run(*arguments)
        except QfuncError:
            raise
        except Exception as e:
            raise run_error(self.network, self.current, where, e) from e


def run_with_sizes(network: fx.GraphModule, arguments: tuple[Any, ...], where: str) -> tuple[Any, dict[str, tuple[int, ...]]]:
    """Run a network, and return its value and the sizes of its tensors by the names of their nodes.

    Raises:
        CalibrationError: an op does not accept the arguments.
    """
    sizes: dict[str, tuple[int, ...]] = {}

    def observe(name: str, value: Any) -> None:
        if isinstance(value, Tensor):
            sizes[name] = tuple(value.shape)

    return ObservingInterpreter(network, observe).run_batch(arguments, where), sizes


def run_error(network: fx.GraphModule, node: fx.Node | None, where: str, error: Exception) -> CalibrationError:
    """Return the error for an op that raised, with the op's path and the first line of its message."""
    record, do = record_of(network), "Pass batches with the arguments of the model's forward."
    if record is not None and record.axes:  # torch.export has fixed sizes
        do = (
            "Pass batches with the arguments of the model's forward, of the sizes of example_inputs; for other sizes, quantize "
            "torch.export.export(model, args, dynamic_shapes=...) with these axes dynamic."
        )
    return CalibrationError(
        where=f"{where}, op {path_of(network, node) if node else 'inputs'!r}",
        found=first_line(error),
        wanted="inputs on which the model runs",
        do=do,
    )
