"""The HTP's artifact: scales and codes read back from the file by their formulas; bounds are codes, and change nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from attrs import evolve
from onnx import numpy_helper
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.errors import DeployError
from qfunc.graph.sites import quantizer_nodes
from qfunc.lowering import ExplicitQdqLowering
from qfunc.specs import Int, PerTensor, Scale, Scheme, edit
from qfunc.targets.runtimes import OnnxRuntimeRunner, QnnHtpLowering

TARGET = targets.qnn_htp


class Net(nn.Module):
    """A convolution with a bias, a clip, and a linear layer; every size differs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.conv, self.head = nn.Conv2d(3, 4, (3, 2)), nn.Linear(4 * 6 * 5, 7)

    def forward(self, x: Tensor) -> Tensor:
        """[N, 3, 8, 6] -> [N, 7]."""
        return self.head(F.relu6(self.conv(x)).flatten(1))


def calibrated(model: nn.Module, x: Tensor, target: Any = TARGET) -> Any:
    """On a target."""
    return qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(model.eval()))


def held(model: bytes) -> dict[str, Any]:
    """Constants by name."""
    return {i.name: numpy_helper.to_array(i) for i in onnx.load_from_string(model).graph.initializer}


def ranged(values: Tensor) -> tuple[np.float32, int]:
    """(scale, zero point) of uint8 for a range that holds 0: (max - min) / 255 and round(-min / scale)."""
    low, high = min(0.0, float(values.min())), max(0.0, float(values.max()))
    scale = np.float32(max(high - low, 1e-4) / 255)
    return scale, int(np.clip(np.rint(np.float32(-low) / scale), 0, 255))


def test_the_file_holds_the_models_qparams_and_codes() -> None:
    net, x = Net(), torch.randn(2, 3, 8, 6)
    files = qfunc.deploy(TARGET)(calibrated(net, x)).files
    assert sorted(files) == ["model.onnx", "qfunc.json"]
    found, inner = held(files["model.onnx"]), F.relu6(net.conv(x)).detach()
    for name, values in (("x", x), ("relu6", inner), ("head", net(x).detach())):
        scale, zero = ranged(values)
        assert found[f"{name}.scale"] == pytest.approx(scale, rel=1e-6)  # a range in float32, its two ends rounded apart
        assert int(found[f"{name}.zero_point"]) == zero
    for layer, reads in (("conv", "x"), ("head", "relu6")):
        weight, bias = (getattr(net, layer).get_parameter(n).detach().numpy() for n in ("weight", "bias"))
        rows = weight.reshape(len(weight), -1)
        scale = (np.abs(rows).max(1) / np.float32(127)).astype(np.float32)
        assert np.array_equal(found[f"{layer}.weight.scale"], scale)
        codes = found[f"{layer}.weight.codes"].reshape(rows.shape)
        assert codes.dtype == np.int8
        assert np.array_equal(codes, np.rint(rows / scale[:, None]))
        steps = found[f"{reads}.scale"].astype(np.float64) * scale.astype(np.float64)
        assert np.array_equal(found[f"{layer}.bias.scale"], steps.astype(np.float32))
        assert np.abs(found[f"{layer}.bias.codes"] - bias / steps).max() < 0.501  # to the nearest
        assert not found[f"{layer}.bias.zero_point"].any()


def test_ranges_are_not_narrower_than_the_smallest() -> None:
    found = held(qfunc.deploy(TARGET)(calibrated(nn.Linear(3, 2), torch.full((1, 3), 1e-6))).files["model.onnx"])
    assert found["input.scale"] == np.float32(1e-4 / 255)


@pytest.mark.parametrize("kernel", [nn.Conv2d(3, 4, 2), nn.ConvTranspose2d(3, 4, 2), nn.Linear(6, 4)], ids=str)
def test_a_bias_has_as_many_scales_as_its_weight(kernel: nn.Module) -> None:
    """Of several equal ones the HTP makes others."""
    for shared in (Scale(), TARGET.rules[0].weight.scale):
        rule = evolve(TARGET.rules[0], weight=Scheme(Int(8, low=-127), shared))
        target = evolve(TARGET, rules=(rule, *TARGET.rules[1:]))
        done = calibrated(nn.Sequential(kernel), torch.randn(2, 3, 5, 6), target)
        found = held(qfunc.deploy(target)(done).files["model.onnx"])
        shape = () if shared.shared == PerTensor() else (4,)
        assert [found[f"0.{n}.{k}"].shape for n in ("weight", "bias") for k in ("scale", "zero_point")] == [shape] * 4


BOUNDS = {
    "relu": nn.ReLU(), "relu6": nn.ReLU6(), "around 0": nn.Hardtanh(-0.3, 0.7), "above": nn.Hardtanh(0.2, 0.9),
    "below": nn.Hardtanh(-0.9, -0.2),
}  # fmt: skip
STEPS = [  # a bound, its scale and zero point, and the codes that are left of it: none where the codes end inside
    (nn.ReLU(), 0.05, 0, {}), (nn.ReLU(), 0.05, 100, {"Max": 100}), (nn.ReLU6(), 0.02, 0, {}),
    (nn.ReLU6(), 0.05, 0, {"Min": 120}), (nn.Hardtanh(-0.3, 0.7), 0.05, 128, {"Max": 122, "Min": 142}),
    (nn.Hardtanh(0.2, 0.9), 0.01, 0, {"Max": 20, "Min": 90}), (nn.Hardtanh(-9.0, 0.7), 0.05, 128, {"Min": 142}),
]  # fmt: skip


@pytest.mark.parametrize(("bound", "scale", "zero", "wanted"), STEPS, ids=str)
def test_of_a_bound_there_are_the_codes_that_it_cuts_off(bound: Any, scale: float, zero: int, wanted: Any) -> None:
    done = calibrated(nn.Sequential(nn.Conv2d(3, 5, 2), bound), torch.randn(2, 3, 6, 7))
    *_, last = (s.module for s in quantizer_nodes(done) if not s.module.site.constant)
    last.scale.fill_(scale)
    last.zero_point.fill_(zero)
    model = qfunc.deploy(TARGET)(done).files["model.onnx"]
    constants, nodes = held(model), {n.output[0]: n for n in onnx.load_from_string(model).graph.node}
    found = {
        n.op_type: int(constants[nodes[n.input[1]].input[0]].item()) for n in nodes.values() if n.op_type in ("Max", "Min")
    }
    assert found == wanted
    assert not {"Relu", "Clip"} & {n.op_type for n in nodes.values()}


class Shown(nn.Module):
    """A relu that is an output as well."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second = nn.Conv2d(3, 5, 2), nn.Conv2d(5, 4, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[N, 3, 6, 7] -> [N, 5, 5, 6], [N, 4, 4, 5]."""
        inner = F.relu(self.first(x))
        return self.second(inner), inner


def test_a_relu_that_is_an_output_in_float_stays_one() -> None:
    x = torch.randn(2, 3, 6, 7)
    target = edit.skip(edit.name("first"))(TARGET)
    done = calibrated(Shown(), x, target)
    model = qfunc.deploy(target)(done).files["model.onnx"]
    assert "Relu" in {n.op_type for n in onnx.load_from_string(model).graph.node}
    found = OnnxRuntimeRunner(optimise=False).session(model).run([x])
    assert all(np.allclose(f, w.detach(), atol=1e-5) for f, w in zip(found, done(x), strict=True))


PRODUCTS = {
    "conv": (nn.Conv2d(3, 4, 2), (2, 3, 5, 6)), "transposed": (nn.ConvTranspose2d(3, 4, 2), (2, 3, 5, 6)),
    "linear": (nn.Linear(3, 4), (5, 3)),
}  # fmt: skip


@pytest.mark.parametrize("kind", PRODUCTS)
def test_products_of_2_to_the_8_steps_or_more_are_refused(kind: str) -> None:
    """The largest s_x s_w / s_y of a channel counts: 128 * (1 / 128) / s_y."""
    layer, shape = PRODUCTS[kind]
    layer.weight.data.fill_(0.25)
    layer.weight.data.select(1 if kind == "transposed" else 0, 2)[:] = 127 / 128
    done = calibrated(nn.Sequential(layer), torch.randn(shape))
    given, made = (s.module for s in quantizer_nodes(done) if not s.module.site.constant)
    given.scale.fill_(128.0)
    made.scale.fill_(1 / 255)
    assert sorted(qfunc.deploy(TARGET)(done).files) == ["model.onnx", "qfunc.json"]
    made.scale.fill_(1 / 256)
    with pytest.raises(DeployError) as e:
        qfunc.deploy(TARGET)(done)
    assert str(e.value) == (
        "tensor '0': found s_x * s_w / s_y = 256, wanted a ratio below 2^8. Calibrate on inputs of the deployed range."
    )


def test_products_of_two_tensors_have_steps_too() -> None:
    class Pair(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            """[N, 5, 3] -> [N, 5, 5]."""
            return x @ x.transpose(1, 2)

    done = calibrated(Pair(), torch.randn(2, 5, 3))
    first, *_, last = (s.module for s in quantizer_nodes(done))
    first.scale.fill_(2.0)
    last.scale.fill_(1 / 64)
    with pytest.raises(DeployError, match=r"found s_x \* s_w / s_y = 256, wanted a ratio below 2\^8"):
        qfunc.deploy(TARGET)(done)


MOVED = {  # (scale, zero point) that training may give: ends of the codes inside the bounds, at them, and beyond
    "as calibrated": None, "narrow": (0.001, 100), "wide": (0.05, 128), "at 0": (0.03, 0), "at the end": (0.03, 255),
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("moved", MOVED)
@pytest.mark.parametrize("bound", BOUNDS)
def test_bounds_of_codes_are_those_of_the_values(bound: str, moved: str, bits: int) -> None:
    """The same numbers, bit for bit, as from the model with its Relu or Clip."""
    x, models = torch.randn(4, 3, 9, 8, generator=torch.Generator().manual_seed(1)), {}
    for lowering in (ExplicitQdqLowering(), QnnHtpLowering()):
        target = evolve(edit.activations(bits=bits)(TARGET), lowering=lowering)
        torch.manual_seed(2)
        net = nn.Sequential(nn.Conv2d(3, 5, 3), BOUNDS[bound], nn.MaxPool2d(2), BOUNDS[bound])
        done = calibrated(net, x, target)
        for seat in quantizer_nodes(done):
            if not seat.module.site.constant and seat.tensor != "input_1" and (to := MOVED[moved]) is not None:
                seat.module.scale.fill_(to[0])
                seat.module.zero_point.fill_(to[1])
        models[lowering] = qfunc.deploy(target)(done).files["model.onnx"]
    kinds = [{n.op_type for n in onnx.load_from_string(m).graph.node} for m in models.values()]
    assert [bool(k & {"Relu", "Clip"}) for k in kinds] == [True, False]
    wanted, found = (OnnxRuntimeRunner(optimise=False).session(m).run([3 * x])[0] for m in models.values())
    assert np.array_equal(wanted, found)
