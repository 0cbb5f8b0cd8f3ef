"""Vitis AI's table of scales, executed on the float model as the DPU computes: exact, for every scale is a power of two."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from attrs import evolve
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.errors import DeployError
from qfunc.lowering.program import Program
from qfunc.specs import Int
from qfunc.targets.runtimes import OnnxRuntimeRunner, VitisLowering
from tests.lowering.onnx.reader import execute, tensors
from tests.lowering.onnx.test_qdq_nodes import Net, parts


def lowered(net: nn.Module, x: Tensor) -> tuple[Any, dict[str, bytes], dict[str, Any], Any]:
    done, model, sites = parts(targets.vitis, net, x)
    files = dict(VitisLowering().lower(Program(model, sites)))
    assert dict(VitisLowering().lower(Program(model, sites))) == files
    assert set(files) == {"model.onnx", "model_float.onnx", "vitis.json"}
    for name in ("model.onnx", "model_float.onnx"):
        onnx.checker.check_model(onnx.load_from_string(files[name]))
    held = json.loads(files["vitis.json"])
    assert list(held) == ["vitis"]
    return done, files, held["vitis"], sites


def test_every_tensor_has_a_fix_position() -> None:
    torch.manual_seed(0)
    _, files, table, sites = lowered(Net(), torch.randn(2, 3, 8, 6))
    assert set(table) <= tensors(files["model_float.onnx"])
    assert {k for s in sites for k in s.tensors} == set(table)
    assert {"x", "a.weight", "a.bias", "b.weight", "b.bias", "fc.weight", "fc.bias"} <= set(table)
    for entry in table.values():
        assert list(entry) == ["scale"]
        assert math.frexp(entry["scale"])[0] == 0.5


def test_the_table_on_the_float_model_is_the_simulation_and_the_emulation() -> None:
    torch.manual_seed(1)
    net, example = Net(), torch.randn(2, 3, 8, 6)
    done, files, table, _ = lowered(net, example)
    x = torch.randn(4, 3, 8, 6)

    def written(tensor: str, value: Any) -> Any:
        if tensor not in table:
            return value
        scale = table[tensor]["scale"]
        return (np.clip(np.floor(value / scale + 0.5), -128, 127) * scale).astype(np.float32)  # half up

    got = torch.from_numpy(execute(files["model_float.onnx"], x.numpy(), written)[0])
    assert torch.equal(got, done(x))
    twin = qfunc.calibrate([example], progress=False)(qfunc.quantize(targets.vitis)(net))
    assert torch.equal(got, qfunc.emulate(targets.vitis)(twin)(x))


def test_the_quantized_model_is_within_its_ties_of_the_simulation() -> None:
    torch.manual_seed(1)
    done, files, _, sites = lowered(Net(), torch.randn(2, 3, 8, 6))
    x = torch.randn(4, 3, 8, 6)
    got = OnnxRuntimeRunner(optimise=False).session(files["model.onnx"]).run([x])[0]
    # Half to even and half up differ by one code at ties, which a linear layer of 60 inputs can add up.
    last = next(s for s in sites if s.producer == "fc")
    assert np.abs(got - done(x).detach().numpy()).max() <= 4 * last.scale[0]


def test_what_the_dpu_cannot_say_is_refused_by_name() -> None:
    _, model, sites = parts(targets.vitis, nn.Conv2d(3, 2, 1), torch.randn(2, 3, 4, 5))
    x = sites[0]
    do = "Use the schemes of targets.vitis, or edit.deploy(QdqLowering())."
    for changed, said in (
        (
            evolve(x, scale=(0.3,)),
            f"found scale 0.3, wanted a power of two: a fix position is -log2 of the scale. {do}",
        ),
        (evolve(x, zero_point=(3,)), f"found zero point 3, wanted no zero point, because the DPU has none. {do}"),
        (evolve(x, format=Int(4)), f"found Int(4), wanted Int(8), the only format of the DPU. {do}"),
        (evolve(x, format=Int(8, low=-127)), f"found Int(8, low=-127), wanted Int(8), the only format of the DPU. {do}"),
        (
            evolve(x, scale=(1.0, 2.0), zero_point=(0, 0)),
            "found 2 scales, wanted one scale, as the DPU has it. Use granularity=PerTensor().",
        ),
    ):
        with pytest.raises(DeployError) as e:
            VitisLowering().lower(Program(model, [changed, *sites[1:]]))
        assert str(e.value) == f"tensor 'input': {said}"
    narrow = [evolve(s, format=Int(4)) if s.role == "weight" else s for s in sites]
    assert VitisLowering().lower(Program(model, narrow))["model.onnx"]  # written offline, in bytes
