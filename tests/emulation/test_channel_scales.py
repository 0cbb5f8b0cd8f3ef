"""Activations with a static scale for each channel: against torch's own per-channel quantizer and loops over channels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

import qfunc
from qfunc import targets
from qfunc.errors import CalibrationError, DeployError
from qfunc.functions import Lsq
from qfunc.graph.sites import quantizer_nodes
from qfunc.quantizers.fake_quantize import FakeQuantize
from qfunc.specs import Int, PerChannel, PerTensor, Scale, Scheme, Target, ZeroPoint, edit
from tests.onnxruntime_target import ONNXRUNTIME
from tests.transforms.checks import equal

BY_CHANNEL = edit.activations(granularity=PerChannel(1))
TARGET = BY_CHANNEL(ONNXRUNTIME)


class Mixed(nn.Module):
    """A depthwise conv beside a pointwise one; their channels joined, pooled, flattened, summed up by a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.depthwise = nn.Conv2d(6, 6, 3, padding=1, groups=6)
        self.pointwise = nn.Conv2d(6, 4, 1)
        self.head = nn.Linear(40, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = F.max_pool2d(torch.cat([self.depthwise(x), self.pointwise(x)], 1), (4, 2))
        return self.head(x.flatten(1))


class Tokens(nn.Module):
    """Linear layers on values of rank 3."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.first, self.last = nn.Linear(6, 5), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.relu(self.first(x)) + 1)


def batch(seed: int, *shape: int) -> Tensor:
    """Values whose channels differ in size by powers of 3."""
    spread = 3.0 ** torch.arange(shape[1]).reshape(1, -1, *[1] * (len(shape) - 2))
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * spread


BATCHES = [batch(0, 2, 3, 8, 4), batch(1, 5, 3, 8, 4)]


def made(target: Target = TARGET, export: bool = False) -> tuple[fx.GraphModule, fx.GraphModule]:
    """A quantized model and the calibrated one."""
    quantized = qfunc.quantize(target, (BATCHES[0],) if export else None)(Mixed())
    return quantized, qfunc.calibrate(BATCHES, progress=False)(quantized)


def shapes(model: fx.GraphModule) -> dict[str, tuple[int, ...]]:
    return {s.module.site.name: tuple(s.module.scale.shape) for s in quantizer_nodes(model) if not s.module.site.constant}


def site(model: fx.GraphModule, name: str) -> FakeQuantize:
    return next(s.module for s in quantizer_nodes(model) if s.module.site.name == name)


WANTED = {
    "x": (1, 3, 1, 1), "relu": (1, 6, 1, 1), "depthwise": (1, 6, 1, 1), "pointwise": (1, 4, 1, 1),
    "cat": (1, 10, 1, 1), "head": (1, 5),
}  # fmt: skip


@pytest.mark.parametrize("export", [False, True])
def test_every_channel_is_quantized_as_torch_does(export: bool) -> None:
    """By scales that are powers of two, for torch multiplies by 1 / s where we divide."""
    quantized = qfunc.quantize(TARGET, (BATCHES[0],) if export else None)(Mixed())
    scale = torch.tensor([0.25, 4.0, 0.0625])
    ends = torch.tensor([[-64.0, 191.0], [0.0, 255.0], [-200.0, 55.0]]) * scale[:, None]
    x = torch.zeros(1, 3, 8, 4)
    x[0, :, 0, :2] = ends
    calibrated = qfunc.calibrate([x], progress=False)(quantized)
    given = torch.randn(2, 3, 8, 4) * 64 * scale.reshape(3, 1, 1)
    zero = torch.tensor([64, 0, 200], dtype=torch.int32)
    assert torch.equal(site(calibrated, "x")(given), torch.fake_quantize_per_channel_affine(given, scale, zero, 1, 0, 255))


def test_scales_are_those_of_the_channels() -> None:
    _, calibrated = made()
    assert shapes(calibrated) == WANTED
    stem = [F.relu(Mixed().stem(b)).detach() for b in BATCHES]
    for channel, scale in enumerate(site(calibrated, "relu").qparams().scale.flatten()):
        high = max(float(v[:, channel].max()) for v in stem)
        # The same convolution, in another order of summation for other batch sizes.
        assert float(scale) == pytest.approx(high / 255, rel=1e-6)


def test_before_calibration_there_is_no_shape_and_no_value() -> None:
    quantized, _ = made()
    assert set(shapes(quantized).values()) == {()}
    assert repr(site(quantized, "x")) == "FakeQuantize('x', Int(8, signed=False), one scale per channel)"
    with pytest.raises(CalibrationError, match="site 'x': found no qparams yet"):
        quantized(BATCHES[0])
    assert {s.scale for s in qfunc.explain(quantized).sites if s.slot != "weight"} == {"not calibrated"}


@pytest.mark.parametrize("export", [False, True])
@pytest.mark.parametrize("function", [None, Lsq()])
def test_a_state_dict_brings_the_shapes(export: bool, function: Any, tmp_path: Path) -> None:
    target = edit.activations(function=function)(TARGET) if function else TARGET
    quantized, calibrated = made(target, export)
    wanted = calibrated(BATCHES[0])
    fresh = qfunc.quantize(target, (BATCHES[0],) if export else None)(Mixed())
    fresh.load_state_dict(calibrated.state_dict())
    assert equal(fresh(BATCHES[0]), wanted)
    for name, model in (("calibrated", calibrated), ("quantized", quantized)):
        qfunc.save(tmp_path / name)(model)
        read = qfunc.load(tmp_path / name, (BATCHES[0],) if export else None)(Mixed())
        assert shapes(read) == shapes(model)
    assert equal(qfunc.load(tmp_path / "calibrated", (BATCHES[0],) if export else None)(Mixed())(BATCHES[0]), wanted)


def test_a_state_dict_of_other_axes_is_none() -> None:
    fresh, calibrated = made()
    state = calibrated.state_dict()
    state["quantizers.x.output.scale"] = torch.ones(3, 1, 1)
    with pytest.raises(RuntimeError, match=r"size mismatch for quantizers\.x\.output\.scale"):
        fresh.load_state_dict(state)


def test_calibrating_again_changes_nothing_but_what_it_sees() -> None:
    quantized, calibrated = made()
    again = qfunc.calibrate(BATCHES, progress=False)(calibrated)
    assert all(torch.equal(a, b) for a, b in zip(calibrated.state_dict().values(), again.state_dict().values(), strict=True))
    assert set(shapes(quantized).values()) == {()}


def test_another_number_of_channels_is_refused_in_use() -> None:
    """One channel would broadcast against three scales."""
    quantizer = site(made()[1], "x")
    with pytest.raises(CalibrationError) as caught:
        quantizer(torch.zeros(2, 1, 8, 4))
    assert str(caught.value) == (
        "site 'x': found a tensor of shape (2, 1, 8, 4), wanted scales of shape (1, 3, 1, 1), as calibrated. "
        "Pass inputs as in calibration, or calibrate again."
    )


@pytest.mark.parametrize("shared", [PerChannel(1), PerTensor()])
def test_another_number_of_channels_is_refused_in_calibration(shared: PerChannel | PerTensor) -> None:
    target = edit.activations(granularity=shared)(targets.onnxruntime)
    model = qfunc.quantize(target)(nn.Sequential(nn.ReLU(), nn.AdaptiveAvgPool2d(1)))
    calibrate = qfunc.calibrate([torch.rand(2, 3, 4, 4), torch.rand(1, 3, 5, 5), torch.rand(2, 7, 4, 4)], progress=False)
    if shared == PerTensor():
        calibrate(model)
        return
    with pytest.raises(CalibrationError) as caught:
        calibrate(model)
    assert str(caught.value) == (
        "site '0': found a tensor of shape (2, 7, 4, 4) in batch 3, wanted scales of shape (1, 3, 1, 1), as in "
        "the batches before. Pass batches that differ only in the axes that share a scale, or use a scale per tensor."
    )


def test_an_axis_that_a_tensor_does_not_have() -> None:
    model = qfunc.quantize(edit.activations(granularity=PerChannel(3))(targets.onnxruntime))(Mixed())
    with pytest.raises(CalibrationError) as caught:
        qfunc.calibrate(BATCHES, progress=False)(model)
    assert str(caught.value) == (
        "site 'head': found a tensor of shape (2, 5) in batch 1, wanted an axis of the tensor. "
        "Replace the axis of PerChannel(3), in a rule for this op if other ops have that axis."
    )


def test_training_is_that_of_each_channel_alone() -> None:
    _, calibrated = made(edit.activations(function=Lsq())(TARGET))
    quantizer = site(calibrated.train(), "relu")
    x, slope = batch(3, 2, 6, 8, 4), torch.randn(2, 6, 8, 4)
    assert isinstance(quantizer.scale, nn.Parameter)
    (quantizer(x) * slope).sum().backward()
    alone = Scheme(Int(8, signed=False), zero_point=ZeroPoint())
    for c in range(6):
        scale = quantizer.scale.detach()[0, c, 0, 0].clone().requires_grad_()
        params = quantizer.params()._replace(scale=scale, zero_point=quantizer.zero_point[0, c, 0, 0])
        (Lsq().apply(params, x[:, c].contiguous(), alone) * slope[:, c]).sum().backward()
        # Sums over the same 64 products, in another order.
        torch.testing.assert_close(quantizer.scale.grad[0, c, 0, 0], scale.grad, rtol=1e-5, atol=1e-6)
    calibrated(BATCHES[0]).square().sum().backward()
    assert all(s.module.scale.grad.abs().max() > 0 for s in quantizer_nodes(calibrated) if s.module.site.name in WANTED)


def sessions(content: bytes) -> list[onnxruntime.InferenceSession]:
    """Without optimisation and with all of it."""
    found = []
    for level in (onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL, onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL):
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = level
        found.append(onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"]))
    return found


NARROW = edit.pipe(
    targets.qdq,
    edit.inputs(edit.op("conv"), Scheme(Int(8, low=-100, high=90), Scale(PerChannel(1)))),
    edit.skip(edit.op("max_pool")),
)


@pytest.mark.parametrize(
    "target",
    [TARGET, BY_CHANNEL(targets.qdq), edit.activations(bits=4)(TARGET), NARROW],
    ids=["uint8", "int8", "uint4", "narrow"],
)
def test_the_artifact_computes_what_the_simulation_does(target: Target) -> None:
    _, calibrated = made(target)
    content = qfunc.deploy(target)(calibrated).files["model.onnx"]
    nodes = [n for n in onnx.load_from_string(content).graph.node if n.op_type == "QuantizeLinear"]
    scales = {i.name: onnx.numpy_helper.to_array(i) for i in onnx.load_from_string(content).graph.initializer}
    axes = {n.name.removesuffix(".codes"): [a.i for a in n.attribute if a.name == "axis"] for n in nodes}
    assert axes["x"] == axes["relu"] == [1]
    assert [scales[n.input[1]].shape for n in nodes if n.name == "relu.codes"] == [(6,)]
    given = batch(5, 7, 3, 8, 4) * 2
    wanted = calibrated.eval()(given).detach()
    for session in sessions(content):
        found = torch.from_numpy(session.run(None, {"x": given.numpy()})[0])
        # Float convolutions in two orders of summation; a code of the last tensor that differs would be 1e-3.
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("axis", [1, 2, -1])
def test_any_axis_of_tokens(axis: int) -> None:
    target = edit.activations(granularity=PerChannel(axis))(targets.onnxruntime)
    batches = [batch(s, 2 + s, 7, 6) for s in range(2)]
    calibrated = qfunc.calibrate(batches, progress=False)(qfunc.quantize(target)(Tokens()))
    assert shapes(calibrated)["x"] == ((1, 7, 1) if axis == 1 else (1, 1, 6))
    wanted = calibrated.eval()(batches[0]).detach()
    assert equal(qfunc.emulate(target)(calibrated)(batches[0]), wanted)
    for session in sessions(qfunc.deploy(target)(calibrated).files["model.onnx"]):
        found = torch.from_numpy(session.run(None, {"x": batches[0].numpy()})[0])
        # As above.
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_units_compute_in_float_and_say_why() -> None:
    _, calibrated = made()
    emulation = qfunc.emulate(TARGET)(calibrated)
    for given in BATCHES:
        assert equal(emulation(given), calibrated(given))
    reasons = {f.op: f.why for f in qfunc.explain(calibrated).floats}
    why = "its input has one scale per channel, which no integer kernel supports"
    assert {op: reasons[op] for op in ("stem", "depthwise", "pointwise", "cat")} == dict.fromkeys(
        ("stem", "depthwise", "pointwise", "cat"), why
    )


def test_a_bias_is_derived_where_its_input_has_one_scale() -> None:
    """Products with a scale for each input channel have no common scale, which the bias could take."""
    one = edit.add(edit.op("linear"), input=Scheme(Int(8, signed=False), zero_point=ZeroPoint()))
    mixed = edit.inputs(edit.op("conv"), Scheme(Int(8, signed=False), Scale(PerChannel(1)), ZeroPoint()))
    quantized = qfunc.quantize(edit.pipe(targets.onnxruntime, mixed, one))(Mixed())
    plain = qfunc.quantize(targets.onnxruntime)(Mixed())
    biases = [{s.module.site.name for s in quantizer_nodes(m) if s.module.site.slot == "bias"} for m in (quantized, plain)]
    assert "stem.bias" in biases[1] - biases[0]


def test_tensors_of_unlike_channels_are_not_tied() -> None:
    """Joined tensors have 6, 4 and 10 channels: no qparams are those of all three."""
    target = BY_CHANNEL(targets.openvino)
    _, calibrated = made(target)
    assert {s.module.site.tie for s in quantizer_nodes(calibrated)} == {None}
    assert shapes(calibrated)["cat"] == (1, 10, 1, 1)


def test_fake_quantize_nodes_have_a_range_a_channel() -> None:
    target = BY_CHANNEL(targets.openvino)
    model = onnx.load_from_string(qfunc.deploy(target)(made(target)[1]).files["model.onnx"])
    values = {i.name: tuple(i.dims) for i in model.graph.initializer}
    found = {n.input[0]: values[n.input[1]] for n in model.graph.node if n.op_type == "FakeQuantize"}
    assert (found["x"], found["cat"]) == ((1, 3, 1, 1), (1, 10, 1, 1))


def test_encodings_have_one_scale_for_an_activation() -> None:
    target = edit.deploy(targets.runtimes.SnpeEncodings())(BY_CHANNEL(targets.qdq))
    with pytest.raises(DeployError, match="3 scales"):
        qfunc.deploy(target)(made(target)[1])
