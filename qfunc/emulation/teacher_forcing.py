"""Run an emulation on the codes that a runtime shows."""

from __future__ import annotations

from typing import Any

from torch import Tensor, fx

from qfunc.execution.joined_examples import in_model_order
from qfunc.placement.encoding import Encoding

__all__ = ["TeacherForced", "same"]


class TeacherForced(fx.Interpreter):
    """Run the emulation with each tensor of codes replaced by the runtime's.

    `pairs` has both, `values` the value of each node by name, and `codes_of` those of the runtime.
    """

    def __init__(
        self, emulation: fx.GraphModule, encodings: dict[str, tuple[str, Encoding]], codes: dict[str, Any], examples: int,
        joined: bool,
    ) -> None:  # fmt: skip
        super().__init__(emulation)
        self.encodings, self.codes, self.examples, self.joined = encodings, codes, examples, joined
        self.pairs: list[tuple[str, Tensor, Tensor]] = []
        self.values: dict[str, Any] = {}
        self.codes_of: dict[str, Tensor] = {}

    def run_node(self, n: fx.Node) -> Any:
        """Return the node's value, or the runtime's codes of it."""
        value = super().run_node(n)
        if n.name not in self.encodings:
            self.values[n.name] = value
            return value
        path, _ = self.encodings[n.name]
        actual = in_model_order(self.codes[f"{path}.codes"], value, self.examples, joined=self.joined).float()
        self.pairs.append((path, value, actual))
        self.values[n.name] = self.codes_of[n.name] = actual
        return actual


def same(a: Tensor, b: Tensor) -> bool:
    """Return True if no element differs; NaN equals NaN."""
    return bool(((a == b) | (a.isnan() & b.isnan())).all())
