"""Networks that OpenVINO would refuse or compute wrongly without the rewrites of the lowering."""

from __future__ import annotations

import importlib.util
from collections import OrderedDict

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.specs import edit
from tests.conformance.modules import Apply

needs_openvino = pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason="openvino is not installed")
TARGET = targets.openvino


class Net(nn.Module):
    """A convolution, then a function of its input and output."""

    def __init__(self, forward, bias: bool = True) -> None:
        super().__init__()
        self.conv, self.token, self.call = nn.Conv2d(3, 8, 3, padding=1, bias=bias), nn.Parameter(torch.randn(1, 1, 8)), forward

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        """[N, 3, 6, 4] -> what the function returns."""
        return self.call(self, x, self.conv(x))


def class_token(net: Net, x: Tensor, y: Tensor) -> Tensor:
    """A token before the rows of an image, as in vision transformers."""
    rows = y.flatten(2).transpose(1, 2)
    return torch.cat([net.token.expand(x.size(0), -1, -1), rows], 1)


def centred(scores: Tensor) -> Tensor:
    """Scores minus the largest and the mean of each row."""
    return torch.stack([scores - scores.amax(-1, keepdim=True), scores - scores.mean(-1, keepdim=True)], 1).abs().sum(1)


def coordinates(net: Net, x: Tensor, y: Tensor) -> Tensor:
    """The places of a grid as channels, as in CoordConv."""
    grid = torch.stack(torch.meshgrid(torch.arange(6), torch.arange(4), indexing="ij"), 0).float()
    return torch.cat([y, grid.unsqueeze(0).expand(x.shape[0], -1, -1, -1)], 1)


class Laterals(nn.Module):
    """A convolution, and the resized result of a later one, added as in feature pyramids."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.down, self.lateral = nn.Conv2d(3, 8, 3, 2, padding=1), nn.Conv2d(3, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        """[N, 3, 6, 4] -> [N, 8, 6, 4]."""
        y = self.lateral(x)
        return y + F.interpolate(self.down(x), scale_factor=2, mode="bilinear")


def small(net: Net) -> Net:
    """Return the network with a convolution of small values, whose variance is about the epsilon of a norm."""
    with torch.no_grad():
        net.conv.weight *= 0.005
    return net


def normalized_rows(net: Net, x: Tensor, y: Tensor) -> Tensor:
    """Layer norm of the places of an image."""
    return F.relu(F.layer_norm(y.flatten(2).transpose(1, 2), (8,)))


class Rows(nn.Module):
    """The places of an image, whose first channel is large, with their positions, normalized as in vision transformers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.places = nn.Conv2d(3, 8, 3, padding=1), nn.Parameter(torch.randn(1, 24, 8) * 0.02)
        with torch.no_grad():
            self.conv.weight[:1] *= 1000

    def forward(self, x: Tensor) -> Tensor:
        """[N, 3, 6, 4] -> [N, 24, 8]."""
        rows = self.conv(x).flatten(2).transpose(1, 2)
        return F.relu(F.layer_norm(torch.cat([0 * rows[:, :1], rows[:, 1:]], 1) + self.places, (8,)))


class Dense(nn.Module):
    """Dense layers without biases after a gate."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.next, self.last = nn.Conv2d(7, 4, 3, padding=1, bias=False), nn.Conv2d(11, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        """[N, 3, 6, 4] -> [N, 2, 6, 4]."""
        gated = x * torch.sigmoid(x)
        joined = torch.cat([self.conv(gated), gated], 1)
        return self.last(torch.cat([joined, F.relu(self.next(joined))], 1))


NETS = {
    "the sum of a convolution and a later one, resized": Laterals(),
    "an instance norm of small values": small(Net(lambda net, x, y: F.relu(F.instance_norm(y)), bias=False)),
    "a group norm of small values": small(Net(lambda net, x, y: F.relu(F.group_norm(y, 2)))),
    "a layer norm of small values": small(Net(normalized_rows)),
    "a layer norm of a sum": Rows(),
    "convolutions without biases, joined to their inputs": Dense(),
    "a convolution without bias, read by a pool and returned": Net(lambda net, x, y: (F.avg_pool2d(y, 2), y), bias=False),
    "a convolution without bias, added to its pool": Net(lambda net, x, y: y + F.avg_pool2d(y, 3, 1, 1), bias=False),
    "a linear layer of rows without bias": nn.Sequential(nn.Linear(4, 24, bias=False), nn.Unflatten(2, (3, 2))),
    "rolled coordinates": Net(lambda net, x, y: coordinates(net, x, torch.roll(x, 1, 1))),
    "maxima and means of channels": Apply(lambda x: torch.cat([x.mean(1, keepdim=True), x.max(1, keepdim=True).values], 1)),
    "averages that count padding": Net(lambda net, x, y: F.relu(F.avg_pool2d(y, (2, 3), 2, 1, ceil_mode=True))),
    "averages whose last window would begin in the padding": Net(
        lambda net, x, y: F.relu(F.avg_pool2d(y[..., :3], (3, 2), 2, 1, ceil_mode=True))
    ),
    "maxima whose last window would begin in the padding": Net(
        lambda net, x, y: F.relu(F.max_pool2d(y[..., :3], 2, 2, 1, ceil_mode=True))
    ),
    "averages that end after an image": Net(lambda net, x, y: F.relu(F.avg_pool2d(y, (3, 5), 2, ceil_mode=True))),
    "an extreme of channels": Apply(lambda x: F.relu(x.amin(1, keepdim=True)) + x.amax((2, 3), keepdim=True)),
    "a minimum before a linear layer": nn.Sequential(Apply(lambda x: x.amin((1, 2))), nn.Linear(4, 3)),
    "a maximum of all examples": nn.Sequential(Apply(lambda x: x.amax(0, keepdim=True)), nn.Conv2d(3, 4, 1)),
    "a product of activations that several ops read": Net(lambda net, x, y: centred(y @ y.transpose(2, 3))),
    "joined codes, clipped between two codes": Apply(lambda x: torch.cat([x[..., ::2], x[..., 1::2]], 1).clamp(-0.77, 0.55)),
    "a class token": Net(class_token),
    "zeros like a convolution": Net(lambda net, x, y: F.relu(torch.cat([y, torch.zeros_like(y)], 1) * torch.ones(16, 1, 1))),
    "coordinates": Net(coordinates),
    "circular padding": nn.Sequential(nn.Conv2d(3, 4, 3, padding=(1, 2), padding_mode="circular")),
    "a global maximum": nn.Sequential(Apply(lambda x: F.adaptive_max_pool2d(x, 1)), nn.Flatten(), nn.Linear(3, 4)),
}


@needs_openvino
@pytest.mark.parametrize("name", NETS)
def test_the_runtime_computes_the_codes_of_the_emulation(name):
    torch.manual_seed(2)
    batches = [torch.randn(2, 3, 6, 4) for _ in range(2)]
    model = qfunc.calibrate(batches, progress=False)(qfunc.quantize(TARGET, (batches[0],))(NETS[name].eval()))
    report = qfunc.verify(TARGET)(model, [*batches, torch.cat(batches)])
    steps = [row.largest_lsb for row in report.rows if row.kind in ("codes", "output")]
    assert max(steps) <= 1, report  # a tie may be rounded otherwise
    assert sum(row.mismatches for row in report.of("codes")) <= 2, report


class OneToken(nn.Module):
    """Attention of one token, whose softmax is 1."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv, self.bias = nn.Linear(8, 24, bias=False), nn.Parameter(torch.randn(1, 1, 1, 1) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        """[N, 1, 8] -> [N, 1, 1, 8]."""
        q, k, v = self.qkv(x).view(x.shape[0], 1, 3, 1, 8).permute(2, 0, 3, 1, 4)
        return F.softmax(q @ k.transpose(-2, -1) + self.bias, -1) @ v


@needs_openvino
def test_attention_of_one_token_loads():
    torch.manual_seed(2)
    batches = [torch.randn(2, 1, 8) for _ in range(2)]
    model = qfunc.calibrate(batches, progress=False)(qfunc.quantize(TARGET)(OneToken().eval()))
    report = qfunc.verify(TARGET)(model, [*batches, torch.cat(batches)])
    assert not any(row.mismatches for row in report.of("codes")), report


FUNCTIONS = {
    "abs": torch.abs, "gelu": F.gelu, "silu": F.silu, "hardswish": F.hardswish, "mish": F.mish, "square": torch.square,
    "leaky": lambda y: F.leaky_relu(y, 0.2), "leaky, falling": lambda y: F.leaky_relu(y, -0.5),
    "prelu": lambda y: F.prelu(y, torch.tensor([0.2, -0.5])), "sigmoid": torch.sigmoid, "relu": F.relu,
}  # fmt: skip
MIXED = edit.skip(edit.name("conv"))(TARGET)


@needs_openvino
@pytest.mark.parametrize("target", [TARGET, MIXED], ids=["int8", "float"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_the_maxima_of_a_convolution(name, target):
    """The plugin would compute the function before the maxima, as if each function were increasing."""
    torch.manual_seed(2)
    net = nn.Sequential(OrderedDict(conv=nn.Conv2d(3, 2, 3, padding=1), pool=nn.MaxPool2d(2), rest=Apply(FUNCTIONS[name])))
    net.append(nn.Conv2d(2, 4, 1))
    batches = [4 * torch.randn(2, 3, 8, 8) for _ in range(2)]
    model = qfunc.calibrate(batches, progress=False)(qfunc.quantize(target, (batches[0],))(net.eval()))
    report = qfunc.verify(target)(model, batches)
    assert "mismatch" not in report.verdict, report


AVERAGES = {
    "a divisor": lambda x: F.avg_pool2d(x, (4, 3), (2, 1), divisor_override=1),
    "a divisor, counted padding": lambda x: F.avg_pool2d(x, (3, 2), 2, 1, divisor_override=5),
    "a divisor, ceil_mode": lambda x: F.avg_pool2d(x, (2, 3), (1, 3), 1, True, divisor_override=2),
    "a mean": lambda x: F.avg_pool2d(x, (3, 2)),
}


@needs_openvino
@pytest.mark.parametrize("name", AVERAGES)
@pytest.mark.parametrize("first", [lambda net, x: x, lambda net, x: net.conv(x).relu()], ids=["input", "conv"])
def test_averages_read_as_real_values_are_not_rounded(name: str, first) -> None:
    """OpenVINO averages codes, and rounds the means to codes, if a product follows that is no code."""
    torch.manual_seed(0)
    net, batch = Net(lambda net, x, y: AVERAGES[name](first(net, x))).eval(), torch.randn(4, 3, 6, 4)
    report = qfunc.verify(TARGET)(qfunc.calibrate([batch], progress=False)(qfunc.quantize(TARGET)(net)), [batch])
    assert not report.disagreements, report
    # The bound allows that each code before the unit is off by one; roundings of sums in float32 are far below it.
    assert [r.largest_lsb < 1e-3 for r in report.rows if r.kind == "float"] == [True], report
