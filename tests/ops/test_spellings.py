"""Both roads bring every spelling of an op to its kind, and compute what the model computes."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import fx

from qfunc.frontend.capture import capture
from qfunc.ops.node import kind_of, op_of
from qfunc.ops.opset import BY_TARGET, OPS
from tests.ops.float_spellings import ELSEWHERE, FLOAT_GROUPS
from tests.ops.index_spellings import INDEX_GROUPS
from tests.ops.spellings import GROUPS as OPS_OF_LAYERS
from tests.ops.spellings import Group

GROUPS = {**OPS_OF_LAYERS, **INDEX_GROUPS, **FLOAT_GROUPS}
ROUNDED = {"global_avg_pool"}  # adaptive_avg_pool2d sums in another order than mean, which stands for both


def outputs(model: fx.GraphModule) -> list[fx.Node]:
    return list(next(n for n in model.graph.nodes if n.op == "output").args[0])


def check(group: Group, name: str, captured: fx.GraphModule, example: torch.Tensor) -> None:
    expected, found = group.model()(example.clone()), captured(example.clone())
    assert [kind_of(n) for n in outputs(captured)] == [group.kind] * len(expected)
    for i, (a, b) in enumerate(zip(expected, found, strict=True)):
        if name in ROUNDED:
            # 35 summands: each order is within 35 half-ulps of the exact sum of |x|.
            assert (a - b).abs().max() <= 35 * torch.finfo(a.dtype).eps * example.abs().mean((2, 3)).max(), i
        else:
            assert torch.equal(a.nan_to_num(), b.nan_to_num()), f"spelling {i}"
    for node in captured.graph.nodes:
        if node.target in BY_TARGET and group.kind != "unknown":
            assert op_of(node) is not None, node.format_node()


@pytest.mark.parametrize("name", GROUPS)
def test_fx_road(name: str) -> None:
    group = GROUPS[name]
    check(group, name, capture()(group.model()), group.input())


@pytest.mark.thorough
@pytest.mark.parametrize("name", GROUPS)
@pytest.mark.filterwarnings("ignore")  # torch.export warns of its own use of deprecated names
def test_export_road_at_another_batch(name: str) -> None:
    group = GROUPS[name]
    captured = capture((group.input(),))(group.model())
    check(group, name, captured, group.input())
    check(group, name, pickle.loads(pickle.dumps(copy.deepcopy(captured))), group.input())


def test_every_kind_of_the_vocabulary_is_tried() -> None:
    elsewhere = {"split", "chunk", "unbind", *ELSEWHERE}  # as sources of slices here
    assert {op.kind for op in OPS} - {g.kind for g in GROUPS.values()} == elsewhere
