"""What the ONNX writer must get right although shapes alone would not tell."""

from __future__ import annotations

import torch
from torch import nn

import qfunc
from qfunc import targets

TARGET = targets.onnxruntime


def test_a_square_linear() -> None:
    """A square weight fits transposed too, so only the values tell."""
    torch.manual_seed(0)
    net, batches = nn.Linear(6, 6), [torch.randn(5, 6)]
    done = qfunc.calibrate(batches, progress=False)(qfunc.quantize(TARGET)(net))
    assert qfunc.verify(TARGET)(done, batches).verdict.startswith("bit-exact: 0 of")
