"""ncnn: the files read back by their own words and bytes, and every op and whole networks against the runtime."""

from __future__ import annotations

import importlib.util
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.errors import VerifyError
from qfunc.graph.sites import quantizer_nodes
from qfunc.specs import Int, edit
from qfunc.targets.ncnn.runner import NcnnRunner
from tests.lowering.tflite.test_litert import Residual, _calibrated

INSTALLED = importlib.util.find_spec("ncnn") is not None
needs_ncnn = pytest.mark.skipif(not INSTALLED, reason="ncnn is not installed")
TARGET = targets.ncnn


class Ops(nn.Module):
    """One image through ops of every arithmetic, side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.group, self.deep = nn.Conv2d(6, 6, 3, 2, 1), nn.Conv2d(6, 4, 3, groups=2), nn.Conv2d(6, 12, 5, groups=6)
        self.near, self.alone, self.wide = nn.Conv2d(6, 8, 3, 1, 1), nn.Conv2d(8, 8, 5, 1, 2, groups=8), nn.Conv2d(8, 5, 1)
        self.row, self.columns, self.last = nn.Linear(9, 5), nn.Linear(120, 7), nn.Linear(7, 3, bias=False)
        self.signal = nn.Conv1d(6, 4, 3, 1, 1)
        self.register_buffer("matrix", torch.randn(9, 4, generator=torch.Generator().manual_seed(5)))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """[N, 6, 8, 9] -> one tensor an op."""
        y = self.conv(x)
        z = self.alone(F.relu6(self.near(x)))
        return (
            F.relu(self.group(x)), y - F.max_pool2d(x, 2, 2, ceil_mode=True)[..., :5], x + x[..., :1], F.relu6(self.deep(x)),
            self.wide(F.relu(z)), self.row(x), x @ self.matrix, self.last(F.relu(self.columns(y.flatten(1)))), x * 0.37,
            x + 2.5,
            F.leaky_relu(x, 0.3), torch.cat([x, F.relu(x)], 1)[:, 1:], F.max_pool2d(y, 3, 2, 1), 1.5 - x, x * x,
            self.wide(F.pad(z, (1, 0, 2, 1))), torch.clamp(x, -0.7, 0.9), self.signal(x[:, :, 0]), x.transpose(1, 3),
            x.permute(0, 2, 3, 1).flatten(2), x.chunk(2, 1)[1],
            F.avg_pool2d(x, 3, 2, 1), F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
            F.avg_pool2d(x, (2, 3), ceil_mode=True),
            F.adaptive_avg_pool2d(x, 1), F.adaptive_avg_pool2d(x, (4, 3)), x.mean((2, 3)), F.hardswish(x), F.hardsigmoid(x),
            F.interpolate(y, scale_factor=2), F.elu(x), x[:, :, 1::2, ::3], F.avg_pool2d(x, (8, 9)),
        )  # fmt: skip


def moved(model, seed: int) -> None:
    """Other scales, powers of two among them."""
    choose = random.Random(seed)
    for seat in quantizer_nodes(model):
        if not seat.module.site.constant:
            old = float(seat.module.scale)
            exact = 2.0 ** round(np.log2(old)) if choose.random() < 0.5 else old * np.exp(choose.uniform(-0.7, 0.7))
            seat.module.scale.fill_(float(np.float32(exact)))


@needs_ncnn
@pytest.mark.parametrize("seed", [0, 1])
def test_every_op_is_what_ncnn_computes(seed):
    torch.manual_seed(7)
    model, batches = _calibrated(Ops(), TARGET, 2, 6, 8, 9, seed=seed)
    moved(model, seed)
    report = qfunc.verify(TARGET)(model, batches)
    assert report.agreement.startswith("bit-exact: "), report
    assert not report.float_units


@needs_ncnn
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("outputs", "curve"), [(8, nn.Identity()), (8, nn.ReLU()), (16, nn.ReLU6()), (8, nn.ReLU6())])
def test_depthwise_convolutions_of_nine(stride, outputs, curve):
    """Their own kernels for AVX-512 fuse the product and the sum: the one rounding that differs shows in float32 only."""
    torch.manual_seed(7)
    layer, here = nn.Conv2d(8, outputs, 3, stride, 1, groups=8), edit.cpu(NcnnRunner().cpu)(TARGET)
    for target in (here, edit.cpu("x86-64-avx2")(TARGET)):
        model, batches = _calibrated(nn.Sequential(layer, curve), target, 2, 8, 9, 10)
        report = qfunc.verify(target)(model, batches)
        if target == here or (outputs, type(curve)) == (8, nn.ReLU6):
            assert report.agreement.startswith("bit-exact: "), report
        else:
            assert report.verdict.startswith("not comparable: x86-64-vnni computes other integers than x86-64-avx2, which "), (
                report
            )


@needs_ncnn
def test_a_network_is_what_ncnn_computes():
    model, batches = _calibrated(Residual(nn.ReLU), TARGET, 2, 3, 15, 14)
    report = qfunc.verify(TARGET)(model, [*batches, batches[0][:1]])
    assert report.agreement.startswith("bit-exact: "), report
    assert not report.float_units


class Read:
    """A .param and .bin by the rules of their formats alone: words of a line, and arrays in the order of the layers."""

    def __init__(self, files) -> None:
        magic, counts, *lines = files["model.ncnn.param"].decode().splitlines()
        self.layers = [self._layer(line.split()) for line in lines]
        blobs = sum(len(layer["outputs"]) for layer in self.layers)
        assert (magic, counts) == ("7767517", f"{len(lines)} {blobs}")
        self.data, self.at = files["model.ncnn.bin"], 0
        for layer in self.layers:
            self._weights(layer)
        assert self.at == len(self.data)

    def _layer(self, words):
        kind, name, inputs, outputs, *rest = words
        i, o = int(inputs), int(outputs)
        pairs = [w.split("=") for w in rest[i + o :]]
        return {"kind": kind, "name": name, "inputs": rest[:i], "outputs": rest[i : i + o], **{int(k): v for k, v in pairs}}

    def _array(self, count: int, dtype: str) -> np.ndarray:
        found = np.frombuffer(self.data, dtype, count, self.at)
        self.at += -(-found.nbytes // 4) * 4
        return found

    def _weights(self, layer) -> None:
        if layer["kind"] == "Quantize":
            layer["scale"] = self._array(int(layer[0]), "<f4")
        if not layer["kind"].startswith(("Convolution", "Deconvolution", "InnerProduct")):
            return
        linear = layer["kind"] == "InnerProduct"
        outputs, size, bias = int(layer[0]), int(layer[2 if linear else 6]), int(layer[1 if linear else 5])
        tag = int(self._array(1, "<u4")[0])
        layer["weight"] = self._array(size, "<i1" if tag == 0x000D4B38 else "<f4")
        layer["bias"] = self._array(outputs * bias, "<f4")
        if 8 in layer:
            layer["weight scale"], layer["scale"] = self._array(outputs, "<f4"), self._array(1, "<f4")
            layer["output scale"] = self._array(int(int(layer[8]) > 100), "<f4")


def test_the_files_hold_the_models_qparams_and_codes():
    deep = nn.Conv2d(6, 6, 3, 1, 1, groups=6)
    net = nn.Sequential(nn.Conv2d(3, 6, (3, 2)), nn.ReLU(), deep, nn.Conv2d(6, 4, 3), nn.Flatten(), nn.Linear(32, 5))
    model, _ = _calibrated(net, TARGET, 2, 3, 8, 5)
    artifact = qfunc.deploy(TARGET)(model)
    assert artifact.files == qfunc.deploy(TARGET)(model).files
    read = Read(artifact.files)
    kinds = [
        "Input",
        "Clip",
        "Quantize",
        "Convolution",
        "ConvolutionDepthWise",
        "Convolution",
        "Reshape",
        "Quantize",
        "InnerProduct",
        "Noop",
    ]
    assert [layer["kind"] for layer in read.layers] == kinds
    weighted = [layer for layer in read.layers if "weight" in layer]
    assert [layer[8] for layer in weighted] == ["102", "101", "2", "2"]
    sites = {site["name"]: site for site in artifact.report["tensors"]}
    places = (("0", "input", "1"), ("2", "1", "2"), ("3", "2", None), ("5", "4", None))
    for layer, (name, given, made) in zip(weighted, places, strict=True):
        module, weight, x = net[int(name)], sites[f"{name}.weight"], sites[given]
        scale = np.array(weight["scale"], np.float32)
        assert np.array_equal(layer["weight scale"], np.float32(1) / scale)
        assert np.array_equal(layer["scale"], np.float32(1) / np.array(x["scale"], np.float32))
        most = 31 if name == "3" else 127  # 3x3 of stride 1, but not the depthwise one
        codes = module.weight.detach().double() / torch.from_numpy(scale).double().reshape(-1, *[1] * (module.weight.ndim - 1))
        codes = torch.trunc(codes + torch.copysign(torch.tensor(0.5), codes)).clamp(-most, most)
        assert np.array_equal(layer["weight"], codes.flatten().numpy())
        assert int(abs(layer["weight"]).max()) == most
        assert np.array_equal(layer["bias"], module.bias.detach().numpy())
        if made:
            assert np.array_equal(layer["output scale"], np.float32(1) / np.array(sites[made]["scale"], np.float32))


def test_windows_are_said_as_they_are():
    layer = nn.Conv2d(3, 4, (2, 3), (3, 2), (1, 0), (2, 1))
    model, _ = _calibrated(nn.Sequential(layer, nn.MaxPool2d((1, 2))), TARGET, 2, 3, 9, 11)
    read = Read(qfunc.deploy(TARGET)(model).files)
    conv, pool = (next(layer for layer in read.layers if layer["kind"] == kind) for kind in ("Convolution", "Pooling"))
    names = {1: 3, 11: 2, 2: 1, 12: 2, 3: 2, 13: 3, 4: 0, 14: 1, 15: 0, 16: 1, 0: 4, 6: 72}  # ncnn, operators.md
    assert {n: int(conv[n]) for n in names} == names
    assert {n: int(pool[n]) for n in (0, 1, 11, 2, 12)} == {0: 0, 1: 2, 11: 1, 2: 2, 12: 1}


def test_only_winograd_weights_have_six_bits():
    shapes = {
        "near": (3, 1, 1, 1),
        "far": (3, 2, 1, 1),
        "dilated": (3, 1, 2, 1),
        "grouped": (3, 1, 1, 2),
        "alone": (3, 1, 1, 4),
    }
    net = nn.ModuleDict({n: nn.Conv2d(4, 4, k, s, 0, d, g) for n, (k, s, d, g) in shapes.items()} | {"one": nn.Conv2d(4, 4, 1)})
    for name, layer in net.items():
        model = qfunc.quantize(TARGET)(layer)
        (weight,) = [s.module.site.scheme.format for s in quantizer_nodes(model) if s.module.site.slot == "weight"]
        assert weight == (Int(6, low=-31) if name in ("near", "grouped") else Int(8, low=-127)), name


@pytest.mark.skipif(INSTALLED, reason="ncnn is installed")
def test_the_extra_is_named_where_it_is_missing():
    model, batches = _calibrated(nn.Linear(6, 4), TARGET, 2, 6)
    with pytest.raises(VerifyError, match=r"ncnn is not installed.*Install qfunc-torch\[ncnn\]"):
        qfunc.verify(TARGET)(model, batches)
