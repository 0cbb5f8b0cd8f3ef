"""`quantize` refuses what a file cannot hold where the graph decides it, and `deploy` writes what `quantize` accepts."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import qfunc
from qfunc import targets
from qfunc.errors import SpecError

FORMS = {
    "fill where smaller": lambda net, y: y.masked_fill(y < 0, -1.0),
    "choice": lambda net, y: torch.where(y >= 0.5, y, 0.1 * y),
    "float comparison": lambda net, y: (y > 0).float() * y,
    "comparison": lambda net, y: (y > 0) * y,
    "inverted comparison": lambda net, y: y * ~(y > 0),
    "constant matrices": lambda net, y: y.unsqueeze(2) @ net.matrices,
    "constant mask": lambda net, y: y.masked_fill(net.mask, 0.0),
    "constant matrix": lambda net, y: y @ net.matrices[0],
    "largest of all": lambda net, y: y * 0.5 + y.amax(),
    "largest of channels": lambda net, y: y * 0.5 + y.amax((2, 3), keepdim=True),
    "sum of all": lambda net, y: y * 0.5 + y.sum(),
    "mean of no axes": lambda net, y: y - y.mean([]),
    "mean of the batch": lambda net, y: y - y.mean((0, 2), keepdim=True),
    "norm of all": lambda net, y: y / (1 + y.norm()),
    "deviation of all": lambda net, y: y / (1 + y.std()),
    "deviation of channels": lambda net, y: y / (1 + y.std((2, 3), keepdim=True)),
    "root of mean squares": lambda net, y: y / (1 + y.std(correction=0)),
    "softmax of the batch": lambda net, y: y.softmax(0),
    "twice the batch": lambda net, y: torch.cat([y, y.relu()]),
    "channels first": lambda net, y: y.permute(1, 0, 2, 3).mean(1),
    "similarities": lambda net, y: F.normalize(y.flatten(1), dim=-1) @ F.normalize(y.flatten(1), dim=-1).t(),
    "positions": lambda net, y: y.flatten(2) @ y.flatten(2).transpose(1, 2),
    "first example": lambda net, y: y[0],
    "first channel": lambda net, y: y[:, 0],
    "reversed batch": lambda net, y: y.flip(0),
    "reversed rows": lambda net, y: y.flip(-1),
    "rolled batch": lambda net, y: y.roll(1, 0),
    "unknown": lambda net, y: F.mse_loss(y, y.relu()),
    "function of constants": lambda net, y: y + F.gelu(torch.zeros_like(y) + 0.5),
    "pool of constants": lambda net, y: y[:, :, :3, :3] + F.max_pool2d(torch.ones_like(y), 2, ceil_mode=True),
    "places beside": lambda net, y: (y, torch.arange(y.shape[2])),
    "even window": lambda net, y: F.local_response_norm(y, 2),
    "examples last": lambda net, y: y.permute(1, 2, 3, 0),
    "heads": lambda net, y: torch.einsum("bchw,cwe->bche", y, net.heads),
}


class Net(nn.Module):
    def __init__(self, form):
        super().__init__()
        self.form, self.conv = FORMS[form], nn.Conv2d(3, 4, 3)
        self.register_buffer("mask", torch.eye(6) > 0)
        self.matrices, self.heads = nn.Parameter(torch.randn(2, 6, 5)), nn.Parameter(torch.randn(4, 6, 5))

    def forward(self, x):
        return self.form(self, self.conv(x))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["onnxruntime", "litert", "executorch_xnnpack", "tosa", "ncnn", "openvino"])
def test_deploy_writes_what_quantize_accepts(name, form):
    target, x = getattr(targets, name), torch.randn(2, 3, 8, 8)
    try:
        quantized = qfunc.quantize(target)(Net(form).eval())
    except SpecError:
        return
    assert qfunc.deploy(target)(qfunc.calibrate([x], progress=False)(quantized)).files


@pytest.mark.parametrize("name", ["executorch_xnnpack", "tosa", "ncnn"])
@pytest.mark.parametrize("form", ["largest of all", "sum of all", "mean of the batch", "similarities"])
def test_a_program_of_one_example_mixes_nothing(name, form):
    target, x = getattr(targets, name), torch.randn(1, 3, 8, 8)
    program = torch.export.export(Net(form).eval(), (x,))
    try:
        quantized = qfunc.quantize(target)(program)
    except SpecError as e:  # an op that the chip lacks
        if "mixes" in str(e):
            raise
        return
    assert qfunc.deploy(target)(qfunc.calibrate([x], progress=False)(quantized)).files


MESSAGES = {
    ("litert", "constant matrices"): (
        "found the kind 'matmul' with matrices=True, wanted an op that TfliteLowering() writes: FULLY_CONNECTED takes one "
        "constant matrix. Multiply by one matrix, or compute the batch of matrices."
    ),
    ("ncnn", "sum of all"): (
        "found the kind 'sum' with mixes=True, wanted an op that NcnnLowering() writes: the file computes one example of a "
        "batch."
    ),
    ("onnxruntime", "deviation of all"): (
        "found 'std' over the examples with correction=1, wanted a divisor that is the same for all sizes of a batch. "
        "Use correction=0, or reduce over other axes."
    ),
    ("openvino", "unknown"): "found mse_loss, an op of unknown kind, wanted an op that has an ONNX form.",
}


@pytest.mark.parametrize(("name", "form"), MESSAGES)
def test_the_message_names_the_op_and_the_cure(name, form):
    with pytest.raises(SpecError) as error:
        qfunc.quantize(getattr(targets, name))(Net(form).eval())
    assert MESSAGES[name, form] in str(error.value)


def test_a_network_that_no_file_holds_is_simulated_without_a_lowering():
    from attrs import evolve

    x = torch.randn(2, 3, 8, 8)
    simulated = qfunc.calibrate([x], progress=False)(
        qfunc.quantize(evolve(targets.onnxruntime, lowering=None))(Net("unknown").eval())
    )
    assert simulated(x).isfinite().all()


@pytest.mark.parametrize("name", ["litert", "executorch_xnnpack", "ncnn"])
@pytest.mark.parametrize("axes", [3, 4])
def test_a_batch_norm_without_a_layer_is_written_or_refused(name, axes):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(5) if axes == 3 else nn.BatchNorm2d(5)

        def forward(self, x):
            return self.norm(self.norm(x).tanh()).tanh()

    target, x = getattr(targets, name), torch.randn(2, 5, *[4] * (axes - 2))
    if axes == 3:
        with pytest.raises(SpecError, match=r"found the kind 'batch_norm'.*Put it beside a convolution or a linear layer"):
            qfunc.quantize(target)(Net().eval())
        return
    quantized = qfunc.quantize(target)(Net().eval())
    assert qfunc.deploy(target)(qfunc.calibrate([x], progress=False)(quantized)).files


def test_a_norm_by_the_batch_is_refused_with_its_cure():
    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False)

        def forward(self, x):
            return self.norm(self.conv(x))

    with pytest.raises(SpecError) as error:
        qfunc.quantize(targets.onnxruntime)(Normed().eval())
    assert str(error.value) == (
        "target 'onnxruntime', op 'norm': found a BatchNorm that normalises by the statistics of the batch, wanted running "
        "statistics, because a file computes each example by itself. Train with track_running_stats=True, or put nn.GroupNorm "
        "or nn.InstanceNorm in its place. To simulate it without a file, use attrs.evolve(target, lowering=None)."
    )
