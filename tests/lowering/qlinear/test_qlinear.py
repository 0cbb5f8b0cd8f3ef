"""TVM's artifact: QLinear operators on bytes, run by ONNX Runtime, equal to the emulation in every code."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from attrs import evolve
from onnx import TensorProto, numpy_helper
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.errors import DeployError
from qfunc.lowering.program import Program
from qfunc.specs import Int
from qfunc.targets.runtimes import OnnxRuntimeRunner, QLinearLowering
from tests.lowering.onnx.test_qdq_nodes import Net, deployed, parts

TVM = targets.onnx_qnn


def same(done: Any, proto: onnx.ModelProto, x: Tensor, target: Any = TVM) -> None:
    """Every output is the emulation's, with the runtime's optimisations and without."""
    wanted = qfunc.emulate(target)(done)(x)
    for optimise in (False, True):
        got = torch.from_numpy(OnnxRuntimeRunner(optimise=optimise).session(proto.SerializeToString()).run([x])[0])
        assert torch.equal(got, wanted)


def kinds(proto: onnx.ModelProto) -> list[str]:
    return [n.op_type for n in proto.graph.node]


def test_every_op_is_on_codes_and_every_code_is_the_emulation_s() -> None:
    torch.manual_seed(0)
    done, proto = deployed(TVM, Net(), torch.randn(2, 3, 8, 6))
    assert kinds(proto) == [
        "QuantizeLinear", "QLinearConv", "QLinearConv", "QLinearAdd", "MaxPool", "Flatten", "QGemm", "DequantizeLinear",
    ]  # fmt: skip
    same(done, proto, torch.randn(9, 3, 8, 6) * 2)
    held = {i.name: i.data_type for i in proto.graph.initializer}
    operands = [
        (n.input[0], n.input[3], n.input[8 if n.op_type == "QLinearConv" else 6])
        for n in proto.graph.node
        if n.op_type in ("QLinearConv", "QGemm")
    ]
    assert [(held[w], held[b]) for _, w, b in operands] == [(TensorProto.UINT8, TensorProto.INT32)] * 3


def test_weights_saturate_and_biases_are_rounded_half_to_even() -> None:
    net = nn.Conv2d(2, 3, 1)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[-1.0, 254.0], [1.5, 2.5], [0.0, 3.5]]).reshape(3, 2, 1, 1) / 64)
        net.bias.copy_(torch.tensor([2.5, -3.5, 1e3]) / 64 / 64)
    # Scales are 1/64: the weight's of 255 steps, and the input's.
    _, proto = deployed(TVM, net, torch.tensor([-255.0, 0.0]).reshape(1, 2, 1, 1) / 64)
    (conv,) = (n for n in proto.graph.node if n.op_type == "QLinearConv")
    held = {i.name: numpy_helper.to_array(i) for i in proto.graph.initializer}
    x_scale, w, w_scale, w_zero, bias = (held[conv.input[k]] for k in (1, 3, 4, 5, 8))
    assert (x_scale, w_scale, w_zero) == (1 / 64, 1 / 64, 1)
    assert w.reshape(3, 2).tolist() == [[0, 255], [3, 3], [1, 5]]  # 1.5 + 1 and 2.5 + 1: to even, before the zero point
    assert bias.tolist() == [2, -4, 1000]  # MQBench truncates: 2, -3
    assert bias.dtype == np.int32


class Moves(nn.Module):
    """What moves codes, between ops that compute."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 2, 1), nn.Conv2d(4, 2, 1)
        self.fc = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.a(x))
        left, right = y.split((1, 3), 1)
        z = nn.functional.max_pool2d(torch.cat([self.b(right), self.c(y), left], 1), 2, ceil_mode=True)
        z = nn.functional.avg_pool2d(z, 3, 1, padding=1)
        return self.fc(z.transpose(2, 3)[:, 1:3].reshape(-1, 6))


def test_moves_run_on_codes() -> None:
    torch.manual_seed(1)
    done, proto = deployed(TVM, Moves(), torch.randn(2, 3, 7, 8))
    computed = {"QLinearConv", "QLinearConcat", "QLinearAveragePool", "QGemm"}
    assert set(kinds(proto)) - {"QuantizeLinear", "DequantizeLinear"} == computed | {
        "Split",
        "MaxPool",
        "Transpose",
        "Slice",
        "Reshape",
    }
    assert kinds(proto).count("QuantizeLinear") == kinds(proto).count("DequantizeLinear") == 1
    same(done, proto, torch.randn(5, 3, 7, 8) * 2)


class Clamps(nn.Module):
    """Relu6 in reach and out of it, and a clamp within the codes."""

    def __init__(self, low: float, high: float, factor: float) -> None:
        super().__init__()
        self.conv, self.low, self.high, self.factor = nn.Conv2d(3, 4, 1), low, high, factor
        with torch.no_grad():
            self.conv.weight.mul_(factor)
            self.conv.bias.mul_(factor)  # type: ignore[union-attr]

    def forward(self, x: Tensor) -> Tensor:
        return torch.clamp(self.conv(x), self.low, self.high)


@pytest.mark.parametrize(("low", "high", "factor"), [(0.0, 6.0, 0.1), (0.0, 6.0, 30.0), (-1.0, 3.0, 30.0)])
def test_a_clamp_that_the_codes_imply_is_dropped(low: float, high: float, factor: float) -> None:
    torch.manual_seed(2)
    done, proto = deployed(TVM, Clamps(low, high, factor), torch.randn(4, 3, 5, 6))
    assert kinds(proto) == ["QuantizeLinear", "QLinearConv", "DequantizeLinear"]
    x = torch.randn(6, 3, 5, 6) * 3
    same(done, proto, x)
    session = OnnxRuntimeRunner().session(proto.SerializeToString())
    assert session.run([x])[0].max() <= high + 1e-6


def test_a_clamp_within_the_codes_stays() -> None:
    torch.manual_seed(3)
    net = Clamps(0.0, 6.0, 1.0)
    _, model, sites = parts(TVM, net, torch.randn(4, 3, 5, 6))
    # Codes from -1 on: the relu is no end of theirs.
    zeros = next(n.input[2] for n in model.graph.node if n.op_type == "QuantizeLinear" and n.output[0].startswith("clamp"))
    changed(model, zeros, 9)
    made = lowered(model, sites, torch.randn(2, 3, 5, 6))
    assert "Clip" in kinds(made)
    assert "Conv" in kinds(made)


def changed(model: onnx.ModelProto, name: str, value: Any) -> None:
    held = next(i for i in model.graph.initializer if i.name == name)
    held.CopyFrom(numpy_helper.from_array(np.asarray(value, numpy_helper.to_array(held).dtype), name))


def lowered(model: onnx.ModelProto, sites: Any, x: Tensor) -> onnx.ModelProto:
    """The artifact of a Q/DQ model, which must compute the same."""
    made = onnx.load_from_string(QLinearLowering().lower(Program(model, sites))["model.onnx"])
    runs = [OnnxRuntimeRunner(optimise=False).session(m.SerializeToString()).run([x])[0] for m in (model, made)]
    assert np.array_equal(*runs)
    return made


def test_moves_with_other_qparams_stay() -> None:
    torch.manual_seed(5)
    _, model, sites = parts(
        TVM, nn.Sequential(nn.Conv2d(3, 4, 1), nn.MaxPool2d(2), nn.Conv2d(4, 2, 1)), torch.randn(2, 3, 4, 6)
    )
    pool = next(n for n in model.graph.node if n.op_type == "MaxPool")
    quantizer = next(n for n in model.graph.node if n.input[0] == pool.output[0])
    other = numpy_helper.from_array(np.array(0.25, np.float32), "other")
    model.graph.initializer.append(other)
    for node in model.graph.node:
        if node.output[0] == quantizer.output[0] or node.input[0] == quantizer.output[0]:
            node.input[1] = "other"
    # The second convolution's bias has the scale of the product with the first scale: it stays in float with the pool.
    made = lowered(model, sites, torch.randn(3, 3, 4, 6))
    source = next(n for n in made.graph.node if n.op_type == "MaxPool").input[0]
    assert next(n for n in made.graph.node if n.output[0] == source).op_type == "DequantizeLinear"


def test_a_bias_of_another_scale_keeps_its_convolution_in_float() -> None:
    torch.manual_seed(6)
    _, model, sites = parts(TVM, nn.Conv2d(3, 4, 1), torch.randn(2, 3, 4, 6))
    bias = next(n for n in model.graph.node if n.op_type == "DequantizeLinear" and n.input[0] == "bias.codes")
    scale = next(i for i in model.graph.initializer if i.name == bias.input[1])
    changed(model, bias.input[1], numpy_helper.to_array(scale) * 2)
    made = lowered(model, sites, torch.randn(3, 3, 4, 6))
    assert "Conv" in kinds(made)
    assert "QLinearConv" not in kinds(made)


class Mixed(nn.Module):
    """A sigmoid, for which there is no rule, between two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 1), nn.ConvTranspose2d(4, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.sigmoid(self.a(x)))


def test_what_has_no_operator_stays_in_float() -> None:
    torch.manual_seed(4)
    done, proto = deployed(TVM, Mixed(), torch.randn(2, 3, 5, 6))
    assert [k for k in kinds(proto) if "Linear" not in k] == ["Sigmoid", "ConvTranspose"]
    assert "QLinearConv" in kinds(proto)
    x = torch.randn(3, 3, 5, 6)
    got = OnnxRuntimeRunner(optimise=False).session(proto.SerializeToString()).run([x])[0]
    # One step of the convolution's codes, through a sigmoid of slope 1/4 at most and weights below 1/2.
    assert np.allclose(got, done(x).detach().numpy(), atol=0.02)


def test_what_qlinear_cannot_say_is_refused_by_name() -> None:
    _, model, sites = parts(TVM, nn.Conv2d(3, 2, 1), torch.randn(2, 3, 4, 5))
    x = next(s for s in sites if s.role == "activation")
    do = "Use the schemes of targets.onnx_qnn, or deploy Q/DQ ONNX by edit.deploy(QdqLowering())."
    wanted = "wanted Int(8) or Int(8, signed=False), for biases Int(32): QLinear operators have no others."
    for changed, said in (
        (evolve(x, format=Int(16)), f"found Int(16), {wanted} {do}"),
        (evolve(x, format=Int(8, low=-127)), f"found Int(8, low=-127), {wanted} {do}"),
        (
            evolve(x, scale=(1.0, 2.0), zero_point=(0, 0)),
            "found 2 scales, wanted one scale, as a QLinear operator has it. Use granularity=PerTensor().",
        ),
    ):
        with pytest.raises(DeployError) as e:
            QLinearLowering().lower(Program(model, [changed, *(s for s in sites if s is not x)]))
        assert str(e.value) == f"tensor '{x.name}': {said}"
