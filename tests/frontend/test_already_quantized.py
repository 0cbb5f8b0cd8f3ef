"""Models that torch has prepared or quantized are refused by quantize, and the float model that the message asks for runs."""

import copy
import importlib

import pytest
import torch
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.errors import CaptureError

ao = importlib.import_module("torch.ao.quantization")
fx = importlib.import_module("torch.ao.quantization.quantize_fx")
X = torch.randn(2, 3, 6, 6)
CURE = "Pass the float model from before it was prepared or converted."


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.quant, self.conv, self.relu, self.dequant = ao.QuantStub(), nn.Conv2d(3, 4, 3), nn.ReLU(), ao.DeQuantStub()

    def forward(self, x: Tensor) -> Tensor:
        return self.dequant(self.relu(self.conv(self.quant(x))))


def prepared(net: nn.Module) -> nn.Module:
    net.qconfig = ao.QConfig(ao.MinMaxObserver.with_args(dtype=torch.quint8), ao.default_weight_observer)  # type: ignore
    return ao.prepare(net)


def trained(net: nn.Module) -> nn.Module:
    net.qconfig = ao.get_default_qat_qconfig("fbgemm")  # type: ignore[assignment]
    return ao.prepare_qat(net.train()).eval()


PREPARED = {
    "eager": (prepared, "module 'quant.activation_post_process': found a MinMaxObserver of torch.ao.quantization.observer"),
    "eager, trained": (
        trained,
        "module 'quant.activation_post_process': found a FusedMovingAvgObsFakeQuantize of torch.ao.quantization.fake_quantize",
    ),
    "traced": (
        lambda net: fx.prepare_fx(net, {"": ao.default_qconfig}, (X,)),
        "module 'activation_post_process_0': found a MinMaxObserver of torch.ao.quantization.observer",
    ),
    "dynamic": (
        lambda net: nn.Sequential(net, ao.quantize_dynamic(nn.Sequential(nn.Linear(4, 4)))),
        "module '1.0': found a Linear of torch.ao.nn.quantized.dynamic.modules.linear",
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("inputs", [None, (X,)], ids=["torch.fx", "torch.export"])
@pytest.mark.parametrize("case", PREPARED)
def test_models_that_torch_prepared(case: str, inputs: tuple[Tensor] | None) -> None:
    prepare, message = PREPARED[case]
    net = Net().eval()
    model = prepare(copy.deepcopy(net))
    with pytest.raises(CaptureError) as caught:
        qfunc.quantize(targets.onnxruntime, inputs)(model)
    assert str(caught.value) == f"{message}, wanted a float model, because qfunc places the quantizers. {CURE}"
    done = qfunc.calibrate([X], progress=False)(qfunc.quantize(targets.onnxruntime, inputs)(net))
    assert "model.onnx" in qfunc.deploy(targets.onnxruntime)(done).files


class Rounded(nn.Module):
    """A linear layer with an op that quantizes."""

    def __init__(self, quantize) -> None:
        super().__init__()
        self.linear, self.quantize = nn.Linear(6, 4), quantize

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.quantize(x))


SCALE, ZERO = torch.full((6,), 0.1), torch.zeros(6, dtype=torch.int32)
OPS = {
    "fake_quantize_per_tensor_affine": lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127),
    "fake_quantize_per_channel_affine": lambda x: torch.fake_quantize_per_channel_affine(x, SCALE, ZERO, 3, 0, 255),
    "dequantize": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize(),
}


@pytest.mark.parametrize("inputs", [None, (X,)], ids=["torch.fx", "torch.export"])
@pytest.mark.parametrize("name", OPS)
def test_ops_that_quantize(name: str, inputs: tuple[Tensor] | None) -> None:
    with pytest.raises(CaptureError) as caught:
        qfunc.quantize(targets.onnxruntime, inputs)(Rounded(OPS[name]).eval())
    first = "quantize_per_tensor" if name == "dequantize" and inputs is None else name
    where, _, message = str(caught.value).partition(": ")
    assert __file__ in where
    assert message == (
        f"found {first}, an op that quantizes already, wanted a float model, because qfunc places the quantizers. "
        "Leave the op out of the forward, or pass the float model from before it was prepared or converted."
    )
