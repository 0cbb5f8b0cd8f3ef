"""OpenVINO's artifact: executed by FakeQuantize's formula, and by OpenVINO itself in int8."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from attrs import evolve
from onnx import helper, numpy_helper
from torch import nn

import qfunc
from qfunc import targets
from qfunc.errors import DeployError
from qfunc.lowering.program import Program
from qfunc.specs import Int, PerChannel, Scale, Scheme, ZeroPoint, edit
from qfunc.targets.runtimes import OnnxRuntimeRunner, OpenVinoLowering
from tests.lowering.onnx.reader import execute
from tests.lowering.onnx.test_qdq_nodes import Net, deployed, parts
from tests.networks import NETWORKS

OPENVINO = targets.openvino
NARROW = edit.weights(bits=7)(OPENVINO)  # exact on CPUs without VNNI too, where two products are added in 16 bits
INSTALLED = importlib.util.find_spec("openvino") is not None
needs_openvino = pytest.mark.skipif(not INSTALLED, reason="openvino is not installed")


def fake_quantized(node: onnx.NodeProto, inputs: list[Any]) -> Any:
    """FakeQuantize-1 in float64, the index half to even; its ranges broadcast over x."""
    assert node.domain == "org.openvinotoolkit"
    assert [a.name for a in node.attribute] == ["levels"]
    x, low, high, out_low, out_high = (np.asarray(v, np.float64) for v in inputs)
    top = node.attribute[0].i - 1
    index = np.round(np.clip((x - low) / (high - low), 0, 1) * top)
    return (index / top * (out_high - out_low) + out_low).astype(np.float32)


def nodes(proto: onnx.ModelProto) -> dict[str, tuple[int, Any, Any]]:
    """Quantized tensor -> (levels, low, high)."""
    held = {i.name: numpy_helper.to_array(i) for i in proto.graph.initializer}
    made = [n for n in proto.graph.node if n.op_type == "FakeQuantize"]
    assert all(n.input[1:3] == n.input[3:5] for n in made)
    return {n.input[0]: (n.attribute[0].i, held[n.input[1]], held[n.input[2]]) for n in made}


def weights(proto: onnx.ModelProto) -> dict[str, tuple[Any, Any, Any, int]]:
    """Weight -> (codes, scale, zero point, axis)."""
    held = {i.name: numpy_helper.to_array(i) for i in proto.graph.initializer}
    made = [n for n in proto.graph.node if n.op_type == "DequantizeLinear"]
    return {n.input[0].removesuffix(".codes"): (*(held[i] for i in n.input), n.attribute[0].i) for n in made}


def test_levels_and_ranges() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 8, 6)
    net = Net()
    _, proto = deployed(OPENVINO, net, x)
    found = nodes(proto)
    assert {o.domain: o.version for o in proto.opset_import}["org.openvinotoolkit"] == 1
    assert {levels for levels, _, _ in found.values()} == {256}
    # The input is signed, 127 steps to its largest magnitude; relus are unsigned, from 0.
    _, low, high = found["x"]
    top = float(x.abs().max())
    assert np.allclose([low, high], [-top * 128 / 127, top], rtol=1e-6)
    relu = next(v for t, v in found.items() if t.startswith("relu"))
    assert float(relu[1]) == 0
    stored = weights(proto)
    assert set(stored) == {"a.weight", "b.weight", "fc.weight"}
    for name, (codes, scale, zero, axis) in stored.items():
        weight = net.get_parameter(name).detach()
        assert (codes.dtype, axis) == (np.int8, 0)
        assert np.allclose(127 * scale, weight.flatten(1).abs().amax(1), rtol=1e-6)
        assert not zero.any()
        assert np.abs(codes * scale.reshape([-1] + [1] * (weight.ndim - 1)) - weight.numpy()).max() <= 0.51 * scale.max()
        assert np.abs(codes).max() == 127


def test_weights_take_a_byte() -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3)), torch.randn(2, 3, 8, 8)
    calibrated = qfunc.calibrate([x], False)(qfunc.quantize(OPENVINO)(net))
    size = len(qfunc.deploy(OPENVINO)(calibrated).files["model.onnx"])
    elements = sum(p.numel() for p in net.parameters() if p.ndim > 1)
    assert elements < size < 1.15 * elements  # scales, biases and nodes are the rest


def test_the_formula_gives_the_simulation() -> None:
    torch.manual_seed(1)
    done, proto = deployed(OPENVINO, Net(), torch.randn(2, 3, 8, 6))
    x = torch.randn(4, 3, 8, 6) * 2
    got = execute(proto.SerializeToString(), x.numpy(), ops={"FakeQuantize": fake_quantized})[0]
    # The same codes; values and float32 sums differ in the last bits.
    assert np.allclose(got, done(x).detach().numpy(), atol=1e-5)


@pytest.mark.parametrize(
    ("fmt", "levels", "ends"),
    [
        (Int(8, low=-64, high=63), 256, (-128, 127)), (Int(7, low=-63), 255, (-127, 127)), (Int(4), 256, (-128, 127)),
        (Int(8, low=-127), 255, (-127, 127)), (Int(8), 256, (-128, 127)), (Int(8, signed=False, high=127), 256, (0, 255)),
        (Int(16), 65536, (-32768, 32767)),
    ],
    ids=repr,
)  # fmt: skip
def test_weights_of_fewer_levels_keep_their_step(fmt: Int, levels: int, ends: tuple[int, int]) -> None:
    """MQBench's rule, 128 levels as 256 of [2 qmin, 2 qmax + 1]: OpenVINO makes integers of 255 or 256 levels only."""
    scheme = Scheme(fmt, Scale(PerChannel()), rounding="half_even_on_index")
    rules = tuple(evolve(r, weight=scheme) if r.weight is not None else r for r in OPENVINO.rules)
    torch.manual_seed(2)
    net = nn.Conv2d(3, 4, (1, 3))
    with torch.no_grad():
        net.weight.abs_() if not fmt.signed else None
    _, model, sites = parts(evolve(OPENVINO, rules=rules, legality=()), net, torch.randn(2, 3, 5, 6))
    proto = onnx.load_from_string(OpenVinoLowering().lower(Program(model, sites))["model.onnx"])
    site = next(s for s in sites if s.role == "weight")
    if fmt.bits <= 8:
        codes, steps, zero, axis = weights(proto)["weight"]
        below = 0 if fmt.signed else 128  # unsigned codes are stored signed
        assert (codes.dtype, axis, zero.tolist()) == (np.dtype(np.int8), 0, [-below] * 4)
        # The codes are the model's own. The step is the float32 step of all levels of the byte, as OpenVINO computes it.
        exact = net.weight.detach().double().numpy() / np.array(site.scale).reshape(-1, 1, 1, 1)
        assert np.array_equal(codes, np.clip(np.rint(exact), fmt.qmin, fmt.qmax) - below)
        ranges = [[np.float32(end * s) for end in ends] for s in site.scale]
        assert steps.tolist() == [float((high - low) / np.float32(levels - 1)) for low, high in ranges]
        return
    found, low, high = nodes(proto)["weight"]
    assert found == levels
    for channel, scale in enumerate(site.scale):
        step = (float(high[channel, 0, 0, 0]) - float(low[channel, 0, 0, 0])) / (found - 1)
        assert step == pytest.approx(scale, rel=1e-6)
        assert float(low[channel, 0, 0, 0]) == pytest.approx(ends[0] * scale, rel=1e-6)
        assert float(high[channel, 0, 0, 0]) == pytest.approx(ends[1] * scale, rel=1e-6)
    # The node leaves the stored weights as they are: they lie on its levels.
    (stored,) = (numpy_helper.to_array(i) for i in proto.graph.initializer if i.name == "weight")
    node = next(n for n in proto.graph.node if n.op_type == "FakeQuantize" and n.input[0] == "weight")
    again = fake_quantized(node, [stored, low, high, low, high])
    assert np.allclose(again, stored, rtol=1e-6, atol=1e-7)


def test_ranges_of_zero_points() -> None:
    scheme = Scheme(Int(8, signed=False), zero_point=ZeroPoint(), rounding="half_even_on_index")
    rules = tuple(evolve(r, input=scheme) if r.weight is not None else r for r in OPENVINO.rules)
    x = torch.linspace(-1, 3, 24).reshape(1, 2, 3, 4)
    _, model, sites = parts(evolve(OPENVINO, rules=rules, legality=()), nn.Conv2d(2, 3, 1), x)
    found = nodes(onnx.load_from_string(OpenVinoLowering().lower(Program(model, sites))["model.onnx"]))
    levels, low, high = found["input"]
    step = 4 / 255  # zero point round(255 / 4) = 64
    assert levels == 256
    assert (low, high) == (pytest.approx(-64 * step, rel=1e-6), pytest.approx(191 * step, rel=1e-6))


def test_transposed_convolutions_have_ranges_along_their_second_axis() -> None:
    torch.manual_seed(3)
    net = nn.ConvTranspose2d(3, 5, 2)
    scheme = Scheme(Int(8, low=-127), Scale(PerChannel(1)), rounding="half_even_on_index")
    rules = tuple(evolve(r, weight=scheme) if r.weight is not None else r for r in OPENVINO.rules)
    _, model, sites = parts(evolve(OPENVINO, rules=rules, legality=()), net, torch.randn(2, 3, 5, 6))
    proto = onnx.load_from_string(OpenVinoLowering().lower(Program(model, sites))["model.onnx"])
    codes, scale, _, axis = weights(proto)["weight"]
    assert (axis, scale.shape, codes.shape) == (1, (5,), (3, 5, 2, 2))
    assert np.allclose(127 * scale, net.weight.detach().abs().amax((0, 2, 3)), rtol=1e-6)
    assert np.abs(codes).max((0, 2, 3)).tolist() == [127] * 5


def test_other_formats_are_refused_by_name() -> None:
    _, model, sites = parts(OPENVINO, nn.Conv2d(3, 2, 1), torch.randn(2, 3, 4, 5))
    x = evolve(next(s for s in sites if s.role == "activation"), format=Int(32))
    with pytest.raises(DeployError) as e:
        OpenVinoLowering().lower(Program(model, [x]))
    assert str(e.value) == (
        f"tensor '{x.name}': found Int(32), wanted an integer format of at most 16 bits: FakeQuantize has no others. "
        "Edit the scheme: format=Int(8), or deploy Q/DQ ONNX by edit.deploy(QdqLowering())."
    )


def compiled(proto: onnx.ModelProto) -> Any:
    import openvino

    core = openvino.Core()
    return core.compile_model(core.read_model(proto.SerializeToString()), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})


def primitives(model: Any) -> dict[str, set[str]]:
    """Kind of layer -> its kernels' names."""
    found: dict[str, set[str]] = {}
    for op in model.get_runtime_model().get_ordered_ops():
        info = op.get_rt_info()
        found.setdefault(str(info["layerType"].astype(str)), set()).add(str(info["primitiveType"].astype(str)))
    return found


def inner(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, float]]:
    """The model with every quantized activation as an output, and the step of each."""
    shown = onnx.ModelProto()
    shown.CopyFrom(proto)
    ranges = nodes(proto)
    stored = {i.name for i in proto.graph.initializer}
    taken = [n for n in proto.graph.node if n.op_type == "FakeQuantize" and n.input[0] not in stored]
    for node in taken:
        shown.graph.output.append(helper.make_tensor_value_info(node.output[0], onnx.TensorProto.FLOAT, None))
    steps = {n.output[0]: ranges[n.input[0]] for n in taken}
    return shown, {name: float(high - low) / (levels - 1) for name, (levels, low, high) in steps.items()}


@needs_openvino
@pytest.mark.parametrize("name", ["net", "squeezenet1_0", "resnet18"])
def test_openvino_computes_in_bytes_what_the_simulation_does(name: str) -> None:
    torch.manual_seed(4)
    net = Net() if name == "net" else NETWORKS[name]().eval()
    shape = (3, 8, 6) if name == "net" else (3, 32, 32)
    example = torch.randn(2, *shape)
    _, proto = deployed(NARROW, net, example)
    assert all(kernel.endswith("_I8") for kernel in primitives(compiled(proto))["Convolution"])
    x = torch.randn(8, *shape)
    shown, steps = inner(proto)
    found = compiled(shown)(x.numpy())
    _, model, _ = parts(NARROW, net, example)  # Q/DQ, which is the simulation
    model.graph.output.extend(helper.make_tensor_value_info(t, onnx.TensorProto.FLOAT, None) for t in steps)
    session = OnnxRuntimeRunner(optimise=False).session(model.SerializeToString())
    wanted = dict(zip(session.outputs, session.run([x]), strict=True))
    elements = differ = 0
    for tensor, step in steps.items():
        codes = np.abs(np.rint((np.asarray(found[tensor]) - wanted[tensor]) / step))
        elements, differ = elements + codes.size, differ + int((codes > 0).sum())
        # A tie that float32 breaks otherwise is one code, which the layers behind it can double.
        assert codes.max() <= 2
    # Measured with openvino 2026.4.1: 0 of 5,952, 116,744 and 52,480 codes; sums in another order differ more.
    assert differ <= elements / 1000


@needs_openvino
def test_openvino_runs_without_outputs_inside() -> None:
    torch.manual_seed(5)
    done, proto = deployed(NARROW, Net(), torch.randn(2, 3, 8, 6))
    x = torch.randn(16, 3, 8, 6)
    # The last layer is float: equal codes before it, so equal to float32's rounding of a sum of 60.
    assert np.allclose(compiled(proto)(x.numpy())[0], qfunc.emulate(NARROW)(done)(x).detach().numpy(), atol=1e-6)
