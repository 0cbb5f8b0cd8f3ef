"""Chains of elementwise nodes: XNNPACK of ExecuTorch 1.5.1 ends the process at ten, so that no file has so many."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.lowering.flatbuffer import Table, table
from qfunc.targets.executorch.chains import with_short_chains

needs_executorch = pytest.mark.skipif(
    importlib.util.find_spec("executorch") is None, reason="executorch is not installed"
)  # fmt: skip


class Chain(nn.Module):
    """Sines, or sums with a number, between two convolutions; `joined` adds the first tensor to the last."""

    def __init__(self, op: str, length: int, joined: bool) -> None:
        super().__init__()
        self.op, self.length, self.joined = op, length, joined
        self.first, self.last = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        """[N, 4, H, W] -> [N, 4, H, W]."""
        x = y = self.first(x)
        for _ in range(self.length):
            y = torch.sin(y) if self.op == "sin" else y + 0.25
        return self.last(y + x if self.joined else y)


@needs_executorch
@pytest.mark.parametrize(
    ("op", "joined", "length"), [("sin", False, 8), ("sin", True, 8), ("add", True, 3), ("sin", False, 19)]
)
def test_the_file_of_a_long_chain_loads(op: str, joined: bool, length: int) -> None:
    """The first three have ten nodes: the process ended when it loaded the file."""
    torch.manual_seed(0)
    target, x = targets.executorch_xnnpack, torch.randn(2, 4, 5, 5)
    model = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(Chain(op, length, joined).eval()))
    assert qfunc.verify(target)(model, [x]).agreement.startswith("bit-exact")


def node(kind: str, out: int, *read: int, clipped: bool = False) -> Table:
    inputs = {"input_id": read[0]} if len(read) == 1 else dict(zip(("input1_id", "input2_id"), read, strict=True))
    union, bounds = table(kind, output_id=out, **inputs), table("MinMax", output_min=0.0, output_max=1.0) if clipped else None
    return table("XNode", xnode_union=union, debug_handle=0, output_min_max=bounds)


def shortened(nodes: list[Table], codes: set[int]) -> list[str]:
    """The kinds of the nodes with copies, whose results have the numbers 100, 101, ..."""
    made: list[Table] = []

    def copied(number: int) -> Table:
        made.append(node("copy", 100 + len(made), number))
        return made[-1]

    result = with_short_chains(nodes, {99}, codes, {-1}, copied)
    known = {0, 99, *codes}
    for each in result:  # each node reads what is computed before it
        union = each["xnode_union"]
        assert {v for k, v in union.fields.items() if k.endswith("_id") and k != "output_id"} <= known
        known.add(union["output_id"])
    return [each["xnode_union"].kind for each in result]


@pytest.mark.parametrize("length", [*range(1, 12), 18, 19, 27, 28])
def test_no_chain_has_ten_nodes(length: int) -> None:
    kinds = shortened([node("XNNSin", i + 1, i) for i in range(length)], {0})
    runs = "".join("." if kind == "XNNSin" else " " for kind in kinds).split()
    assert sum(map(len, runs)) == length
    assert len(runs[0]) == min(length, 9)
    assert len(runs) == 1 + (length > 9)  # after a copy of real numbers no chain starts


def test_what_is_counted() -> None:
    """Clips are nodes; constants are no inputs; two inputs of one function, and no others, continue a chain."""
    clips = [node("XNNAdd", i + 1, i, 99, clipped=True) for i in range(5)]
    assert shortened(clips, {0}).count("copy") == 1
    assert shortened(clips[:4], {0}).count("copy") == 0
    sines = [node("XNNSin", i + 1, i) for i in range(9)]
    assert shortened([*sines, node("XNNAdd", 10, 9, 0)], {0}).count("copy") == 1
    assert shortened([*sines, node("XNNAdd", 10, 9, 50)], {0, 50}).count("copy") == 0
    assert shortened([*sines, node("XNNSoftmax", 10, 9), node("XNNSin", 11, 10)], {0}).count("copy") == 0
    assert shortened([*sines, node("XNNSin", 10, 9)], {99}).count("copy") == 0  # of real numbers no table is made
