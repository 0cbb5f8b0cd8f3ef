"""Ops that change no value, and sizes, leave the same codes by torch.fx and by torch.export."""

from __future__ import annotations

from functools import cache, partial

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn

import qfunc
from qfunc import targets
from qfunc.frontend.capture import capture
from qfunc.graph.view import QuantizedModel
from qfunc.ops.node import kind_of
from qfunc.passes.remove_neutral_arithmetic import remove_casts
from qfunc.placement.partition import Partition

UNCHANGED = {
    "to(dtype)": lambda x: x.to(torch.float32),
    "float": lambda x: x.float(),
    "type": lambda x: x.type(torch.float32),
    "type_as": lambda x: x.type_as(x),
    "to(x.dtype)": lambda x: x.to(x.dtype),
    "to(x)": lambda x: x.to(x),
    "to(memory_format)": lambda x: x.to(memory_format=torch.channels_last),
    "to(device)": lambda x: x.to("cpu"),
    "clone": lambda x: x.clone(),
    "detach": lambda x: x.detach(),
    "dropout": lambda x: F.dropout(x, 0.5, training=False),
    "view of sizes": lambda x: x.view(x.size(0), -1, x.size(2), x.shape[3]),
    "reshape of sizes": lambda x: x.reshape(x.shape[0], x.shape[1], x.shape[2], x.shape[3]),
    "times 1": lambda x: x * 1,
}
PLACES = {
    targets.onnxruntime: ("conv", "pool", "sum"),
    targets.openvino: ("activation", "sum"),
    targets.litert: ("resize",),
}


class Net(nn.Module):
    """A convolutional network with a function at some places."""

    def __init__(self, function, places: tuple[str, ...]) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.head, self.function, self.places = nn.Linear(64, 5), function, places

    def at(self, place: str, x):
        return self.function(x) if place in self.places else x

    def forward(self, x):
        y = F.relu(self.at("conv", self.first(x)))
        y = F.interpolate(y, size=(7, 9), mode="bilinear", align_corners=False)
        y = F.interpolate(self.at("pool", F.max_pool2d(y, 2)), size=4)
        y = self.at("resize", y)
        y = self.at("sum", y) + y
        y = F.relu(self.second(self.at("activation", torch.sigmoid(y))))
        return self.head(torch.flatten(y, 1))


@pytest.mark.thorough
@pytest.mark.parametrize("target", PLACES, ids=lambda t: t.name)
@pytest.mark.parametrize("name", UNCHANGED)
def test_an_op_that_changes_nothing_changes_no_code(target, name):
    torch.manual_seed(0)
    model, batches = Net(UNCHANGED[name], PLACES[target]).eval(), [torch.randn(n, 3, 8, 8) for n in (2, 3)]
    results = []
    for quantized in (qfunc.quantize(target)(model), qfunc.quantize(target, batches[0])(model)):
        calibrated = qfunc.calibrate(batches[:1], progress=False)(quantized)
        results.append(qfunc.emulate(target)(calibrated)(batches[1]))
    assert torch.equal(*results)


def test_a_size_of_a_convolution_keeps_it_on_integers():
    class Patches(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.places = nn.Conv2d(3, 8, 2, 2), nn.Parameter(torch.randn(1, 24, 8))

        def forward(self, x):
            y = self.conv(x)
            return y.reshape(y.shape[0], y.shape[1], -1).transpose(1, 2) + self.places

    batch = torch.randn(2, 3, 12, 8)
    for target in (targets.openvino, targets.onnxruntime, targets.litert):
        calibrated = qfunc.calibrate([batch], progress=False)(qfunc.quantize(target)(Patches().eval()))
        units = {u.path: u for u in Partition(QuantizedModel(calibrated), target).units}
        assert units["conv"].integer, target.name


class Chain(nn.Module):
    """A chain of ops; a dropout and a reader of sizes are after one of them."""

    def __init__(self, kinds: str, place: int, *, drops: bool, measures: bool) -> None:
        super().__init__()
        self.kinds, self.place, self.measures = kinds.split(), place, measures
        torch.manual_seed(0)
        made = {
            "conv": lambda: nn.Conv2d(3, 3, 3, padding=1),
            "bn": lambda: nn.BatchNorm2d(3),
            "relu": nn.ReLU,
            "add": nn.Identity,
        }
        self.ops = nn.ModuleList(made[kind]() for kind in self.kinds)
        self.dropout, self.head = nn.Dropout() if drops else nn.Identity(), nn.Conv2d(3, 4, 1)
        for norm in (op for op in self.ops if isinstance(op, nn.BatchNorm2d)):
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)

    def forward(self, x):
        y, shape = x, None
        for i, (kind, op) in enumerate(zip(self.kinds, self.ops, strict=True)):
            y = y + x if kind == "add" else op(y)
            if i == self.place:
                y = self.dropout(y)
                shape = y.shape if self.measures else None
        y = self.head(y)
        return y if shape is None else y.reshape(shape[0], -1, shape[3])


CHAINS = ("conv relu", "conv bn relu", "bn conv relu", "conv bn add relu", "conv relu conv add relu")


def batches() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, 3, 6, 6, generator=generator) for _ in range(2)]


def calibrated_chain(target, chain, place, drops, measures):
    """The calibrated network, and what its emulation computes."""
    net = Chain(chain, place, drops=drops, measures=measures).eval()
    calibrated = qfunc.calibrate(batches()[:1], progress=False)(qfunc.quantize(target)(net))
    return calibrated, qfunc.emulate(target)(calibrated)(batches()[1]).flatten()


plain_chain = cache(partial(calibrated_chain, drops=False, measures=False))


@pytest.mark.thorough
@pytest.mark.parametrize("target", [targets.onnxruntime, targets.openvino, targets.litert], ids=lambda t: t.name)
@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize(("drops", "measures"), [(True, False), (False, True), (True, True)])
def test_dropouts_and_readers_of_sizes_separate_nothing(target, chain, drops, measures):
    _, x = batches()
    for place in range(len(chain.split())):
        calibrated, found = calibrated_chain(target, chain, place, drops, measures)
        assert torch.equal(found, plain_chain(target, chain, 0)[1]), place  # no dropout, so no place
        if drops:
            calibrated.train()
            assert not torch.equal(calibrated(x), calibrated(x)), place


KEPT = {
    "an input": lambda x: torch.exp(x.float()),
    "a comparison": lambda x: (torch.exp(x.float()) > 1).float(),
    "of double": lambda x: torch.exp(x.float()).double().float(),
    "of half": lambda x: torch.exp(x.float()).half().float(),
    "of indices": lambda x: torch.argmax(torch.exp(x.float()), 0).float(),
    "to half": lambda x: torch.exp(x.float()).half(),
    "to an input's dtype": lambda x: torch.exp(x.float()).type_as(x),
    "a sum with double": lambda x: (torch.exp(x.float()) + x.double()).float(),
    "a product with an input": lambda x: (torch.exp(x.float()) * x).float(),
}


@pytest.mark.parametrize("name", KEPT)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64], ids=str)
def test_casts_of_other_dtypes_stay(name, dtype):
    x = torch.tensor([1, 2, 3]).to(dtype)
    network = capture()(fx.symbolic_trace(KEPT[name]))
    before = [kind_of(n) for n in network.graph.nodes]
    after = [kind_of(n) for n in remove_casts(network).graph.nodes]
    assert before == after
    found, wanted = network(x), KEPT[name](x)
    assert torch.equal(found, wanted)
    assert found.dtype == wanted.dtype
