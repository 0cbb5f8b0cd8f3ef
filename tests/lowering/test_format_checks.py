"""What the files of LiteRT, ExecuTorch and TOSA cannot hold is refused by the name of the tensor or of the input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from attrs import evolve
from torch import nn

from qfunc import targets
from qfunc.errors import DeployError
from qfunc.lowering.program import Program
from qfunc.specs import Int
from qfunc.targets.executorch.builder import XnnpackBuilder
from qfunc.targets.tosa.builder import TosaBuilder
from tests.lowering.onnx.test_qdq_nodes import parts

WANTED = "wanted Int(8), for weights Int(8) or narrower, for biases Int(32). Use the schemes of targets."


@pytest.mark.parametrize(
    ("name", "tensor", "fields", "message"),
    [
        ("litert", "0.weight", {"format": Int(8, signed=False)}, f"found Int(8, signed=False), {WANTED}litert"),
        ("executorch_xnnpack", "input", {"format": Int(8, low=-127)}, f"found Int(8, low=-127), {WANTED}executorch_xnnpack"),
        ("tosa", "0.bias", {"format": Int(16)}, f"found Int(16), {WANTED}tosa"),
        ("tosa", "0", {"scale": (0.5, 0.5), "zero_point": (0, 0), "axis": 1},
         "found 2 scales, wanted one scale, as TOSA has it. Use granularity=PerTensor()."),
    ],
)  # fmt: skip
def test_other_formats_are_refused(name: str, tensor: str, fields: dict[str, Any], message: str) -> None:
    target = getattr(targets, name)
    _, model, sites = parts(target, nn.Sequential(nn.Conv2d(3, 2, 1)), torch.randn(1, 3, 5, 4))
    assert tensor in {s.name for s in sites}
    with pytest.raises(DeployError) as caught:
        target.lowering.lower(Program(model, [evolve(s, **fields) if s.name == tensor else s for s in sites]))
    cure = "" if message.endswith(".") else ", or edit.deploy(QdqLowering())."
    assert str(caught.value) == f"tensor {tensor!r}: {message}{cure}"


@pytest.mark.parametrize(("builder", "wanted"), [(TosaBuilder, "float32, or integers as indices"), (XnnpackBuilder, "float32")])
def test_other_inputs_are_refused(builder: Any, wanted: str) -> None:
    with pytest.raises(DeployError) as caught:
        builder({}).tensor("x", (1, 3), varies=0, dtype=np.float64)
    assert str(caught.value) == (
        f"input 'x': found float64 values, wanted {wanted}. Move the ops that read it out of the deployed model."
    )
    with pytest.raises(DeployError) as caught:
        builder({}).tensor("x", (3, 1), varies=1, dtype=np.float32)
    assert str(caught.value) == "input 'x': found examples along axis 1, wanted axis 0. Make the batch the first axis."
    assert builder({}).tensor("x", (1, 3), varies=0, dtype=np.float32).shape == (1, 3)
