"""What the documentation of each hardware says, checked on quantized models rather than on the specs' text."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx, nn

import qfunc
from qfunc import targets
from qfunc.graph.sites import QuantizerNode, quantizer_nodes
from qfunc.targets.onnxruntime.target import onnxruntime


class Net(nn.Module):
    """Convolutions, a concat, a softmax and a linear layer; weights whose extreme is negative."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.a, self.b, self.fc = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3), nn.Linear(8, 5)
        with torch.no_grad():
            for layer in (self.a, self.b, self.fc):
                outputs, *rest = layer.weight.shape
                layer.weight[:, 0] = -1.5 * torch.arange(1, outputs + 1).reshape(-1, *[1] * (len(rest) - 1))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.cat([self.a(x), 3 * self.b(x)], 1)
        return torch.softmax(self.fc(y.mean((2, 3))), -1)


def calibrated(target: Any) -> fx.GraphModule:
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(3))
    return qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(Net().eval()))


def of_slot(model: fx.GraphModule, *slots: str) -> dict[str, QuantizerNode]:
    return {s.module.site.name: s for s in quantizer_nodes(model) if s.module.site.slot in slots}


def codes(model: fx.GraphModule, name: str) -> Tensor:
    seat = of_slot(model, "weight")[name]
    site = seat.module.site
    return site.function.export(seat.module.qparams(), model.get_parameter(name).detach(), site.scheme)[0]


def test_weights_are_symmetric_per_channel_without_the_lowest_code() -> None:
    """ONNX Runtime and TensorRT: int8, one scale an output channel, [-127, 127], every channel filled."""
    for target in (onnxruntime, targets.tensorrt):
        model = calibrated(target)
        for name, seat in of_slot(model, "weight").items():
            found = codes(model, name).flatten(1)
            assert found.amin(1).tolist() == [-127.0] * len(found)
            assert (seat.module.site.scheme.format.qmin, seat.module.site.scheme.format.qmax) == (-127, 127)
            assert not seat.module.zero_point.any()
            assert seat.module.scale.unique().numel() == len(found)


def test_onnxruntime_activations_are_affine_bytes() -> None:
    """uint8, one scale and zero point per tensor, asymmetric."""
    for seat in of_slot(calibrated(targets.onnxruntime), "input", "output").values():
        fmt = seat.module.site.scheme.format
        assert (fmt.qmin, fmt.qmax, seat.module.scale.ndim) == (0, 255, 0)
        assert 0 <= int(seat.module.zero_point) <= 255


def test_a_softmax_has_the_scale_of_the_datasheet() -> None:
    """Probabilities are codes / 256 with zero point 0, whatever was seen in calibration."""
    last = list(of_slot(calibrated(targets.onnxruntime), "output").values())[-1].module
    assert (float(last.scale), int(last.zero_point)) == (1 / 256, 0)


def test_tensorrt_activations_are_symmetric_and_outputs_stay_float() -> None:
    """int8 without zero points, scale amax / 127; weighted ops quantize their inputs only, biases are float."""
    model = calibrated(targets.tensorrt)
    assert of_slot(model, "output", "bias") == {}
    found = of_slot(model, "input")
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(3))
    assert float(found["x"].module.scale) == float((x.abs().max().double() / 127).float())
    for seat in found.values():
        fmt = seat.module.site.scheme.format
        assert (fmt.qmin, fmt.qmax, float(seat.module.zero_point)) == (-128, 127, 0.0)


def test_tensorrt_inputs_of_a_concat_share_one_scale() -> None:
    model = calibrated(targets.tensorrt)
    scales = [float(s.module.scale) for s in of_slot(model, "input").values() if s.module.site.op == "cat"]
    assert len(scales) == 2
    assert scales[0] == scales[1]
