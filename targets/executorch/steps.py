"""The nodes in float32 inside of one operator of TFLite."""

from __future__ import annotations

from typing import Any

import numpy as np

from qfunc.lowering.nhwc.tensor import NhwcTensor
from qfunc.targets.executorch.builder import XnnpackBuilder


class Steps:
    """Writes nodes whose results have the shape of `out`."""

    def __init__(self, graph: XnnpackBuilder, out: NhwcTensor) -> None:
        self.graph, self.out, self.count = graph, out, 0

    def node(self, kind: str, *operands: NhwcTensor, into: NhwcTensor | None = None) -> NhwcTensor:
        """Write a node of one or two operands into a new tensor, or into a given one, and return it."""
        self.count += 1
        output = into or self.graph.tensor(f"{self.out.name}.step{self.count}", self.out.shape)
        names = ("input_id",) if len(operands) == 1 else ("input1_id", "input2_id")
        fields: dict[str, Any] = dict(zip(names, operands, strict=True))
        self.graph.node(kind, output, **fields)
        return output

    def number(self, value: float) -> NhwcTensor:
        """Return a constant number."""
        self.count += 1
        return self.graph.tensor(f"{self.out.name}.number{self.count}", (1,), value=np.array([value], np.float32))
