"""A model that runs in parts: bit-equal to one session of the whole, in linear time, with the ONNX checker's errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import qfunc
from qfunc import targets
from qfunc.errors import DeployError
from qfunc.lowering.onnx.writer import write_program
from qfunc.lowering.onnxruntime import parts
from qfunc.lowering.onnxruntime.parts import PartwiseModel
from qfunc.lowering.onnxruntime.session import Session
from qfunc.transforms.deploy import deployment
from tests.transforms.checks import arguments, calibrated
from tests.transforms.nets import NAMES


def written(name: str) -> tuple[onnx.ModelProto, list[Any]]:
    """The Q/DQ model of a network and its inputs."""
    _, batch, done = calibrated(name)
    made = deployment(done, targets.onnxruntime)
    return write_program(made.partition, made.inputs).model, [t.numpy() for t in arguments(batch)]


def whole(model: onnx.ModelProto, batch: list[Any]) -> list[Any]:
    """The outputs of one session of the model as it is."""
    return list(Session(model.SerializeToString(), optimise=False).run(batch))


@pytest.mark.parametrize("most", [1, 3, 10_000])
@pytest.mark.parametrize("name", NAMES)
def test_parts_compute_what_the_whole_does(name: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "MOST_NODES", most)
    model, batch = written(name)
    found = PartwiseModel(model).run(batch)
    assert [found[o.name].tobytes() for o in model.graph.output] == [v.tobytes() for v in whole(model, batch)]


@pytest.mark.parametrize("target", [targets.gguf("Q4_0"), targets.executorch_8da4w(32), targets.onnxruntime_nbits(4)], ids=str)
def test_parts_with_functions_of_the_model(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 32)).eval(), torch.randn(3, 64)
    made = deployment(qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(net)), target)
    model = write_program(made.partition, made.inputs).model
    for most in (1, 30):
        monkeypatch.setattr(parts, "MOST_NODES", most)
        (found,) = PartwiseModel(model).run([x.numpy()]).values()
        assert np.array_equal(found, whole(model, [x.numpy()])[0])


def test_a_part_holds_its_own_constants_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four layers of 4 KB of codes, parts that end after 4 KB: no part has the weights of two."""
    monkeypatch.setattr(parts, "MOST_BYTES", 4096)
    net = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4))).eval()
    x = torch.randn(2, 64)
    made = deployment(qfunc.calibrate([x], progress=False)(qfunc.quantize(targets.qdq)(net)), targets.qdq)
    model = write_program(made.partition, made.inputs).model
    sizes, check = [], onnx.checker.check_model
    monkeypatch.setattr(onnx.checker, "check_model", lambda m: (sizes.append(m.ByteSize()), check(m)))
    values = PartwiseModel(model).run([x.numpy()], ["1.real"])
    assert len(sizes) >= 4
    assert max(sizes) < 2 * 4096
    assert values["1.real"].shape == (2, 64)


BROKEN = {
    "float[2] y": "op 'y': found two tensors 'y', wanted each tensor computed once, then read.",
    "z": "op 'y': found the tensor 'z', which no node before computes, wanted each tensor computed once, then read.",
}


def test_nodes_out_of_order() -> None:
    """The checker sees each part alone; the order of all nodes is checked beside it."""
    model = onnx.parser.parse_model('<ir_version: 10, opset_import: ["": 21]> g (float[2] x) => (float[2] y) { y = Relu(x) }')
    node = model.graph.node[0]
    node.name, node.input[0] = "y", "z"
    with pytest.raises(DeployError) as e:
        PartwiseModel(model)
    assert str(e.value) == f"{BROKEN['z']} Report this model: its ops are written wrongly."
    node.input[0] = "x"
    model.graph.node.append(node)
    with pytest.raises(DeployError) as e:
        PartwiseModel(model)
    assert str(e.value) == f"{BROKEN['float[2] y']} Report this model: its ops are written wrongly."


def test_each_part_is_checked() -> None:
    model = onnx.parser.parse_model('<ir_version: 10, opset_import: ["": 21]> g (float[2] x) => (float[2] y) { y = Relu(x) }')
    model.graph.node[0].op_type = "Rely"
    with pytest.raises(onnx.checker.ValidationError, match="No Op registered for Rely"):
        PartwiseModel(model).run([np.zeros(2, np.float32)])


def test_a_loop_reads_a_tensor_around_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The inner graph of an op reads `a`, which another part computes and which is no input of the op."""
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 21]> g (bool c, float[2] x) => (float[2] y) {
        a = Relu(x)
        b = Neg(x)
        y = If(c) <then_branch = t () => (float[2] p) { p = Add(a, a) }, else_branch = e () => (float[2] q) { q = Neg(b) }>
        }"""
    )
    monkeypatch.setattr(parts, "MOST_NODES", 1)
    batch = [np.array(True), np.float32([1, 2])]
    assert np.array_equal(PartwiseModel(model).run(batch)["y"], whole(model, batch)[0])
