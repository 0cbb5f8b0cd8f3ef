"""An interpreter that shows every value of a graph to an observer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx

from qfunc.errors import CalibrationError, QfuncError, first_line
from qfunc.graph.record import path_of

__all__ = ["ObservingInterpreter", "run_error"]


class ObservingInterpreter(fx.Interpreter):
    """Runs a network and shows each named node's value to `see(name, value)`."""

    def __init__(self, network: fx.GraphModule, see: Callable[[str, Any], None], names: set[str] | None = None) -> None:
        super().__init__(network)
        self.network, self.see, self.names = network, see, names
        self.at: fx.Node | None = None

    def run_node(self, n: fx.Node) -> Any:
        """The node's value, shown if its name is wanted."""
        self.at = n
        value = super().run_node(n)
        if self.names is None or n.name in self.names:
            self.see(n.name, value)
        return value

    def guarded(self, arguments: tuple[Any, ...], where: str) -> Any:
        """The network's value; what the user's own ops refuse is told by the op's path.

        Raises:
            CalibrationError: an op cannot take the arguments.
        """
        self.extra_traceback = False  # it would write into the messages of our own errors
        try:
            return self.run(*arguments)
        except QfuncError:
            raise
        except Exception as e:
            raise run_error(self.network, self.at, where, e) from e


def run_error(network: fx.GraphModule, node: fx.Node | None, where: str, error: Exception) -> CalibrationError:
    """What the user's own op says of its arguments, told by the op's path."""
    return CalibrationError(
        where=f"{where}, op {path_of(network, node) if node else 'inputs'!r}",
        found=first_line(error),
        wanted="inputs on which the model runs",
        do="Give batches as the model's forward takes them.",
    )
