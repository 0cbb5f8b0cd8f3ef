"""Concatenations with tensors without elements: a cache before the first token, the rest of a rotation of whole heads."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.ops.node import kind_of


def cached(x: Tensor) -> Tensor:
    return torch.cat([torch.tensor([]), x], 1)


def rotated(x: Tensor) -> Tensor:
    return torch.cat([-x[..., 2:], x[..., :2], x[..., 4:]], -1)


def alone(x: Tensor) -> Tensor:
    return torch.cat([x.new_zeros(0), x[:, :0]], 1)


class Net(nn.Module):
    """A layer, a concatenation, and a layer."""

    def __init__(self, join) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.join = nn.Linear(3, 4), nn.Linear(4, 2), join

    def forward(self, x: Tensor) -> Tensor:
        """[N, T, 3] -> [N, T, 2]."""
        return self.last(self.join(self.first(x)))


def exported(join) -> torch.export.ExportedProgram:
    both = {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}
    return torch.export.export(Net(join).eval(), (torch.randn(2, 5, 3),), dynamic_shapes=(both,))


@pytest.mark.parametrize(("join", "joins"), [(cached, 0), (rotated, 1)])
def test_empty_tensors_are_not_joined(join, joins) -> None:
    program, x = exported(join), torch.randn(3, 7, 3)
    captured = qfunc.capture()(program)
    assert torch.equal(captured(x), program.module()(x))
    assert [kind_of(n) for n in captured.graph.nodes].count("concat") == joins
    quantized = qfunc.calibrate([x], progress=False)(qfunc.quantize(targets.onnxruntime)(program))
    assert qfunc.verify(targets.onnxruntime)(quantized, [x, x[:1, :3]]).mismatches == 0


def test_a_join_of_nothing_but_empty_tensors_stays() -> None:
    captured, x = qfunc.capture()(exported(alone)), torch.randn(2, 5, 3)
    assert captured(x).shape == (2, 0, 2)
