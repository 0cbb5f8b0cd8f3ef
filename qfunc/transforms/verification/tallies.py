"""The counts of a check: how many elements of each tensor differ, and which tensors must not differ at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, fx

from qfunc.analysis.verification_report import Comparison, Tally
from qfunc.emulation.float_units import Bounded
from qfunc.placement.partition import Partition
from qfunc.transforms.verification.outputs import encoding_of_output, outputs_of


class Tallies:
    """The running counts of all comparisons, over batches.

    Args:
        partition: The units of the model.
        unlike: Kinds of ops that the runner computes in another order.
        shown: The runtime's name of each real result that it shows, by node.
    """

    def __init__(self, partition: Partition, unlike: tuple[str, ...], shown: Mapping[str, str]) -> None:
        self.partition = partition
        self.rounded = 0
        """The number of elements that differ within the bounds of float32."""
        self._found: dict[str, Tally] = {}
        self._exact = partition.exact_nodes(unlike, shown)
        # A runtime that shows real values may round those that it does not show in another order.
        self._exact_outputs = partition.exact_nodes(unlike)
        self._named: dict[str, list[fx.Node]] = {}
        for node, name in partition.names.items():
            if node.op != "get_attr":
                self._named.setdefault(name, []).append(node)

    def of(self, name: str, kind: str) -> Tally:
        """Return the tally of a tensor; the kinds are the kinds of `Comparison`."""
        return self._found.setdefault(f"{kind}:{name}", Tally(name, kind))

    def add_alone(
        self, name: str, emulated: Tensor, actual: Tensor, lsb: float, batch: int, bounds: Mapping[tuple[str, bool], Bounded]
    ) -> None:
        """Count what differs with the runtime's own inputs; a difference within the bounds of float32 does not count."""
        exact = self.exact(name)
        bounded = bounds.get((name, exact))
        if bounded is not None and (explained := bounded.explains(emulated)) is not None:
            if exact:
                self.rounded += int(((emulated != actual) & explained).sum())
            emulated = torch.where(explained, actual.to(emulated.dtype), emulated)
        self.of(name, "alone").add(emulated, actual, lsb, batch)

    def any_mismatch(self, *kinds: str) -> bool:
        """Return True if an element of a tensor differs."""
        return any(t.mismatches for t in self._found.values() if t.kind in kinds)

    def names(self, *kinds: str) -> set[str]:
        """Return the names of the tensors that were compared."""
        return {t.name for t in self._found.values() if t.kind in kinds}

    def rows(self) -> Iterator[Comparison]:
        """Yield the rows of the report."""
        for t in self._found.values():
            yield Comparison(t.name, t.kind, t.elements, t.mismatches, t.largest, self.exact(t.name), t.mean, t.first)

    def exact(self, name: str) -> bool:
        """Return True if emulation computes every bit of a tensor: for units with kernels, quantizers of inputs, and moves."""
        if name.startswith("output "):
            leaves = outputs_of(self.partition)[1]
            index = int(name.removeprefix("output "))
            if index >= len(leaves):  # one of several values of an op that is returned as a whole
                return False
            return encoding_of_output(self.partition, index) is not None or leaves[index] in self._exact_outputs
        return all(n in self._exact for n in self._named.get(name, ()))
