"""Single nodes of XNNPACK, run by ExecuTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from qfunc.lowering.nhwc.tensor import NhwcTensor
from qfunc.targets.executorch.builder import XnnpackBuilder
from qfunc.targets.executorch.ops import NODES
from qfunc.targets.executorch.session import Session

Write = Callable[[XnnpackBuilder, list[NhwcTensor], NhwcTensor], None]


def run(write: Write, inputs: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
    """Return what the nodes that `write` writes compute of real inputs."""
    graph = XnnpackBuilder(NODES)
    given = [graph.tensor(f"x{i}", x.shape) for i, x in enumerate(inputs)]
    out = graph.tensor("y", shape)
    write(graph, given, out)
    session = Session(graph.serialize(given, [out]))
    assert not session.facts["refused"]
    result: Tensor = session.method([x.contiguous() for x in inputs])[0].clone()
    return result


def operator(name: str, *constants: Any, **fields: Any) -> Write:
    """Write an operator of TFLite."""

    def write(graph: XnnpackBuilder, inputs: list[NhwcTensor], out: NhwcTensor) -> None:
        given = [graph.tensor(f"c{i}", c.shape, value=c) for i, c in enumerate(constants)]
        graph.operator(name, [*inputs, *given], [out], **fields)

    return write


def differ(found: Tensor, wanted: Tensor) -> int:
    """Return the number of entries that differ; two that are no number are equal."""
    return int(((found != wanted) & ~(found.isnan() & wanted.isnan())).sum())
