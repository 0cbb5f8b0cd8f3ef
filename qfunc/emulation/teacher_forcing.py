"""Run an emulation on what a runtime shows: its codes, and the real results of its float units."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from torch import Tensor, fx

from qfunc.emulation.builder import codes_names
from qfunc.execution.joined_examples import in_model_order
from qfunc.placement.encoding import Encoding
from qfunc.placement.partition import Partition


class TeacherForced(fx.Interpreter):
    """Run the emulation with each tensor of codes and each result of a float unit replaced by the runtime's.

    `pairs` has both codes, `real_pairs` both real results of units with a known arithmetic, by node.  `values` has the value of
    each node by name, `codes_of` and `reals_of` those of the runtime.

    Args:
        encodings: (name, encoding) by node, of the tensors of codes.
        reals: The runtime's name of each real tensor that it shows, by node; the examples are joined along its first axis.
        unknown: The nodes of `reals` without a known arithmetic.
        shown: What the runtime shows, by its names.
    """

    def __init__(
        self, emulation: fx.GraphModule, encodings: dict[str, tuple[str, Encoding]], reals: dict[str, str],
        unknown: Set[str], shown: dict[str, Any], examples: int, joined: bool,
    ) -> None:  # fmt: skip
        super().__init__(emulation)
        self.encodings, self.reals, self.unknown = encodings, reals, unknown
        self.shown, self.examples, self.joined = shown, examples, joined
        self.pairs: list[tuple[str, Tensor, Tensor]] = []
        self.real_pairs: list[tuple[str, Tensor, Tensor]] = []
        self.values: dict[str, Any] = {}
        self.codes_of: dict[str, Tensor] = {}
        self.reals_of: dict[str, Tensor] = {}

    def run_node(self, n: fx.Node) -> Any:
        """Return the node's value, or the runtime's."""
        value = super().run_node(n)
        if n.name in self.reals and isinstance(value, Tensor) and value.is_floating_point():
            real = in_model_order(self.shown[self.reals[n.name]], value, self.examples, joined=True)
            if real.shape == value.shape:  # a runtime may keep a tensor in another layout
                self.reals_of[n.name] = real
                if n.name not in self.unknown:
                    self.real_pairs.append((n.name, value, real))
                value = real
        if n.name not in self.encodings:
            self.values[n.name] = value
            return value
        name, _ = self.encodings[n.name]
        actual = in_model_order(self.shown[f"{name}.codes"], value, self.examples, joined=self.joined).float()
        self.pairs.append((name, value, actual))
        self.values[n.name] = self.codes_of[n.name] = actual
        return actual


def same(a: Tensor, b: Tensor) -> bool:
    """Return True if no element differs; NaN equals NaN."""
    return bool(((a == b) | (a.isnan() & b.isnan())).all())


def code_nodes(partition: Partition, emulation: fx.GraphModule, shown: Set[str]) -> dict[str, tuple[str, Encoding]]:
    """Return (name, encoding) by node of the emulation, for each tensor of codes whose name, "NAME.codes", is in `shown`."""
    names = {n.name for n in emulation.graph.nodes}
    integer = {u.group.output for u in partition.units if u.integer}
    of_tensor: dict[str, Encoding] = {}
    for each in partition.at_path.values():
        of_tensor.setdefault(each.quantizer.tensor, each)
    found: dict[str, tuple[str, Encoding]] = {}
    coded = codes_names(partition.network.graph)
    for node, tensor in partition.names.items():
        if f"{tensor}.codes" not in shown or node.op == "get_attr":
            continue
        output = partition.output_encoding(node)
        encoding = output or of_tensor.get(node.name)
        name = node.name if node in integer and output is not None else coded[node.name]
        if encoding is not None and name in names:
            found[name] = (tensor, encoding)
    return found
