"""Positions and masks of programs of fixed sizes become constants, and the network computes what the program does."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, fx, nn

from qfunc.frontend.capture import capture
from qfunc.ops.node import kind_of
from qfunc.passes.fold_positions import fold_positions

ROWS, COLUMNS = 2, 5


class Masked(nn.Module):
    """x where a mask, indexed by constants, and a condition of positions hold."""

    def __init__(self, places: tuple[Tensor, Tensor], condition: Tensor) -> None:
        super().__init__()
        self.places, self.condition = places, condition

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        rows, columns = (p + 0 for p in self.places)
        return torch.where(mask.bool()[rows, columns] & (self.condition >= 1), x, -1.0)


def folded(module: nn.Module, *inputs: Tensor) -> fx.GraphModule:
    return fold_positions(capture()(torch.export.export(module.eval(), inputs, strict=False)))


def kinds(network: fx.GraphModule) -> list[str]:
    return [kind_of(n) for n in network.graph.nodes if n.op == "call_function"]


@pytest.mark.thorough
@settings(max_examples=60, deadline=None)
@given(
    st.permutations(range(COLUMNS)), st.sampled_from(((2, 1, 1, 1), (2, 1, 1), (1, 2))), st.booleans(),
    st.lists(st.integers(0, 2), min_size=COLUMNS, max_size=COLUMNS), st.integers(0, 99),
)  # fmt: skip
def test_the_network_computes_what_the_program_does(order, shape, in_order, condition, seed):
    """Only a grid in order is a view: permuted columns, or rows after columns, stay an index."""
    order = list(range(COLUMNS)) if in_order else order
    rows = torch.arange(ROWS).reshape(shape)
    columns = torch.tensor(order).reshape((COLUMNS, 1) if shape == (1, 2) else (COLUMNS,))
    generator = torch.Generator().manual_seed(seed)
    mask = torch.randint(0, 3, (ROWS, COLUMNS), generator=generator)
    result = torch.broadcast_shapes(tuple(rows.shape), tuple(columns.shape))
    held = torch.tensor(condition).reshape((COLUMNS, 1) if shape == (1, 2) else (COLUMNS,))
    module = Masked((rows, columns), held)
    x = torch.randn(*result, generator=generator)

    network = folded(module, x, mask)

    for other in (mask, mask.flip(1)):
        assert torch.equal(network(x, other), module(x, other))
    grid = order == list(range(COLUMNS)) and shape != (1, 2)
    assert ("index" in kinds(network)) == (not grid)
    assert ("logic" in kinds(network)) == (not grid or min(condition) < 1)
    assert "compare" not in kinds(network)


def test_networks_of_any_size_keep_their_positions():
    class Positions(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + torch.arange(x.shape[1])

    axes = ({1: torch.export.Dim.AUTO},)
    program = torch.export.export(Positions(), (torch.randn(2, 5),), dynamic_shapes=axes, strict=False)

    network = fold_positions(capture()(program))

    assert "arange" in kinds(network)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_created_numbers_have_their_dtype(dtype):
    class Created(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x.new_full((2,), 3, dtype=dtype), torch.arange(3, dtype=dtype) + x.to(dtype).sum()

    module, x = Created(), torch.ones(3)

    found, wanted = folded(module, x)(x), module(x)

    assert [v.dtype for v in found] == [v.dtype for v in wanted]
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
