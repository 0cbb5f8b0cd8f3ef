"""Modules that a model calls twice train as one: one weight, one scale, one BatchNorm."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import qfunc
from qfunc import recipes, targets

NORMS = {qfunc.FoldBatchNorm(): ["0.0.weight", "0.0.bias"], qfunc.TrainBatchNorm(): ["0.0.weight", "0.1.weight", "0.1.bias"]}


@pytest.mark.parametrize("norms", NORMS, ids=lambda n: type(n).__name__)
def test_a_block_that_is_called_twice_trains_as_one(norms: Any) -> None:
    torch.manual_seed(0)
    block = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU())
    model = nn.Sequential(block, block)
    block[1].running_var.uniform_(0.5, 2.0)
    x = torch.randn(4, 4, 5, 6)
    student = qfunc.quantize(recipes.lsq()(targets.onnxruntime), batch_norm=norms)(model.eval())
    student = qfunc.calibrate([x], progress=False)(student).train()
    own = [name for name, _ in student.named_parameters() if not name.startswith("quantizers")]
    assert own == NORMS[norms]
    assert [s.tensor for s in qfunc.explain(student).sites if s.slot == "weight"] == ["0.0.weight"]
    optimizer = torch.optim.SGD(student.parameters(), 0.1)
    for _ in range(2):
        optimizer.zero_grad()
        student(x).square().mean().backward()
        optimizer.step()
    folded = qfunc.fold_batch_norm()(student.eval())
    assert torch.equal(folded(x), student(x))
    assert [n for n, _ in folded.named_parameters() if n.startswith("0")] == ["0.0.weight", "0.0.bias"]
