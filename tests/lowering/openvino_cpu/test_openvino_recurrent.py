"""Recurrent layers in OpenVINO's file are float; with a rule for their weights, those are what their codes stand for."""

from __future__ import annotations

import importlib.util
import random
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.lowering.report_fields import read_quantized
from qfunc.specs import Op, Trait, edit
from qfunc.targets.runtimes import OpenVinoRunner

needs_openvino = pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason="openvino is not installed")
WIDTH, STATE, STEPS = 5, 6, 7
CELLS = ("LSTM", "GRU", "RNN")
PRODUCT = targets.openvino.rules[0]
WEIGHTS_IN_CODES = edit.add(Op(Trait.RECURRENT), input=PRODUCT.input, weight=PRODUCT.weight)(targets.openvino)


class Layer(nn.Module):
    """A recurrent layer of drawn options; it returns the outputs of all steps and the last states."""

    def __init__(self, cell: str, draw: random.Random, levels: int) -> None:
        super().__init__()
        self.first, self.given = draw.random() < 0.5, draw.random() < 0.5
        self.layer = getattr(nn, cell)(
            WIDTH, STATE, levels, batch_first=self.first, bidirectional=draw.random() < 0.5,
            bias=draw.random() < 0.7, **({"nonlinearity": draw.choice(("tanh", "relu"))} if cell == "RNN" else {}),
        )  # fmt: skip
        self.ways = 2 if self.layer.bidirectional else 1
        self.h, self.c = (nn.Parameter(torch.randn(self.ways * self.layer.num_layers, 1, STATE) / 2) for _ in range(2))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        is_lstm, count = isinstance(self.layer, nn.LSTM), x.size(0 if self.first else 1)
        h, c = (s.expand(-1, count, -1) for s in (self.h, self.c))
        y, last = self.layer(x, ((h, c) if is_lstm else h) if self.given else None)
        return (y, *last) if is_lstm else (y, last)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def step(layer: Any, x: Any, h: Any, c: Any, weights: list[Any]) -> tuple[Any, Any]:
    """One step by the equations in torch's documentation of LSTM, GRU and RNN, in float64."""
    w_ih, w_hh, b_ih, b_hh = weights
    ours, theirs = x @ w_ih.T + b_ih, h @ w_hh.T + b_hh
    if isinstance(layer, nn.RNN):
        return (np.tanh if layer.nonlinearity == "tanh" else lambda v: np.maximum(v, 0))(ours + theirs), c
    if isinstance(layer, nn.LSTM):
        i, f, g, o = np.split(ours + theirs, 4, -1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        return sigmoid(o) * np.tanh(c), c
    (r, z, n), (hr, hz, hn) = np.split(ours, 3, -1), np.split(theirs, 3, -1)
    z = sigmoid(z + hz)
    return (1 - z) * np.tanh(n + sigmoid(r + hr) * hn) + z * h, c


def rounded(value: Any, scale: Any) -> Any:
    """Round to a multiple of the scale. No drawn value is a tie."""
    return np.rint(value / scale) * scale


def expected(model: Layer, x: Any, scale: float) -> list[Any]:
    """The outputs of all steps and the last states of one level, in float64: weights of 255 levels, and x of this scale."""
    layer = model.layer
    x, found, ends = rounded(x.swapaxes(0, 1) if model.first else x, scale), [], []
    for way in range(model.ways):
        name = "_l0" + "_reverse" * way
        given = [getattr(layer, f"{n}{name}").detach().double().numpy() for n in ("weight_ih", "weight_hh")]
        weights = [rounded(w, np.abs(w).max(1, keepdims=True) / 127) for w in given]
        biases = [getattr(layer, f"{n}{name}", None) for n in ("bias_ih", "bias_hh")]
        weights += [np.zeros(len(given[0])) if b is None else b.detach().double().numpy() for b in biases]
        h, c = ((s if model.given else 0 * s).detach().double().numpy()[way] for s in (model.h, model.c))
        order, steps = range(STEPS)[:: -1 if way else 1], {}
        for t in order:
            h, c = step(layer, x[t], h, c, weights)
            steps[t] = h
        found.append(np.stack([steps[t] for t in range(STEPS)]))
        ends.append((h, c))
    y = np.concatenate(found, -1)
    last_h, last_c = map(np.stack, zip(*ends, strict=True))
    return [y.swapaxes(0, 1) if model.first else y, last_h, *([last_c] if isinstance(layer, nn.LSTM) else [])]


def deployed(cell: str, seed: int, levels: int = 1) -> tuple[Layer, Tensor, Any, Any]:
    draw = random.Random(f"{cell} {seed}")
    torch.manual_seed(seed)
    model = Layer(cell, draw, levels).eval()
    x = torch.randn(*((3, STEPS) if model.first else (STEPS, 3)), WIDTH)
    calibrated = qfunc.calibrate([x], progress=False)(qfunc.quantize(WEIGHTS_IN_CODES)(model))
    return model, x, calibrated, qfunc.deploy(WEIGHTS_IN_CODES)(calibrated)


@needs_openvino
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("seed", range(3))
def test_openvino_computes_the_equations_on_the_quantized_weights(cell: str, seed: int) -> None:
    model, x, _, artifact = deployed(cell, seed)
    scales = {s["name"]: s["scale"][0] for s in read_quantized(artifact.report) if s["role"] == "activation"}
    found = OpenVinoRunner().run(artifact, [x.numpy()])
    # Two directions are joined by a concat, which rounds to codes.
    joined = [scales.get(f"layer.cat{n}", 0.0) for n in ("", "_1", "_2")]
    for actual, wanted, scale in zip(found, expected(model, x.double().numpy(), scales["x"]), joined, strict=False):
        # Sums of at most 13 products below 4, and curves, in float32: below 1e-5 over 7 steps. No code of x is near a tie.
        assert np.abs(actual - wanted).max() < 1e-5 + scale / 2


@needs_openvino
@pytest.mark.parametrize("cell", CELLS)
def test_two_levels_compute_the_simulation(cell: str) -> None:
    _, x, calibrated, artifact = deployed(cell, 1, levels=2)
    simulated = calibrated(x)
    for actual, wanted in zip(OpenVinoRunner().run(artifact, [x.numpy()]), simulated, strict=True):
        assert np.abs(actual - wanted.detach().numpy()).max() < 1e-5  # the same codes, from float32 sums in other orders


@pytest.mark.parametrize("cell", CELLS)
def test_the_weights_of_recurrent_layers_are_constants(cell: str) -> None:
    """OpenVINO 2026.4 loads no other weights of an LSTM and a GRU; those of its file have the values of their codes."""
    model, _, _, artifact = deployed(cell, 0)
    graph = onnx.load_from_string(artifact.files["model.onnx"]).graph
    held = {i.name: onnx.numpy_helper.to_array(i) for i in graph.initializer}
    nodes = [n for n in graph.node if n.op_type == cell]
    assert len(nodes) == model.ways * model.layer.num_layers
    assert all({*n.input[1:4]} - {""} <= set(held) for n in nodes)


class Recognizer(nn.Module):
    """Convolutions of images, whose columns a recurrent layer reads, as in a recognizer of text."""

    def __init__(self, cell: str, middle: nn.Module) -> None:
        super().__init__()
        self.first, self.middle = nn.Conv2d(1, 4, 3, padding=1), middle
        self.layer, self.head = getattr(nn, cell)(24, STATE, batch_first=True), nn.Linear(STATE, 3)

    def forward(self, x: Tensor) -> Tensor:
        """[N, 1, 6, W] -> [N, W, 3]."""
        y = self.middle(self.first(x).relu())
        return self.head(self.layer(y.flatten(1, 2).transpose(1, 2))[0])


@needs_openvino
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("middle", [nn.Conv2d(4, 4, 1), nn.ConvTranspose2d(4, 4, 1), nn.BatchNorm2d(4)], ids=repr)
def test_convolutions_before_a_recurrent_layer_keep_their_biases(cell: str, middle: nn.Module) -> None:
    torch.manual_seed(0)
    model, batches = Recognizer(cell, middle).eval(), [torch.randn(n, 1, 6, 9) for n in (2, 2, 3)]
    calibrated = qfunc.calibrate(batches[:2], progress=False)(qfunc.quantize(targets.openvino)(model))
    report = qfunc.verify(targets.openvino)(calibrated, batches)
    assert report.tensors >= 3
    assert "mismatch" not in report.verdict, report


class Branches(nn.Module):
    """Two recurrent layers on one tensor, or on tensors that differ, joined before a linear layer."""

    def __init__(self, cell: str, both: bool, draw: random.Random) -> None:
        super().__init__()
        layers = (getattr(nn, cell)(WIDTH, STATE, batch_first=True, bidirectional=both) for _ in range(2))
        self.one, self.other = layers
        self.moved, self.summed = draw.choice(("", "flip", "shift")), draw.random() < 0.5
        self.head = nn.Linear((1 if self.summed else 2) * STATE * (2 if both else 1), 3)

    def forward(self, x: Tensor) -> Tensor:
        """[N, T, WIDTH] -> [N, T, 3]."""
        changed = x.flip(1) if self.moved == "flip" else x + 1 if self.moved == "shift" else x
        a, b = self.one(x)[0], self.other(changed)[0]
        return self.head(a + b if self.summed else torch.cat([a, b], -1))


@needs_openvino
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("both", [False, True], ids=["one way", "both ways"])
@pytest.mark.parametrize("seed", range(2))
def test_layers_on_one_tensor_are_those_of_the_float_network(cell: str, both: bool, seed: int) -> None:
    torch.manual_seed(seed)
    model, x = Branches(cell, both, random.Random(f"{cell} {both} {seed}")).eval(), [torch.randn(3, STEPS, WIDTH)]
    calibrated = qfunc.calibrate(x, progress=False)(qfunc.quantize(targets.openvino)(model))
    assert {row.kind for row in qfunc.explain(calibrated).floats} >= {cell.lower()}
    report = qfunc.verify(targets.openvino)(calibrated, x)
    assert "mismatch" not in report.verdict, report
    (found,) = OpenVinoRunner().run(qfunc.deploy(targets.openvino)(calibrated), [x[0].numpy()])
    # At most two roundings of a tensor to 8 bits, 1/255 of its range of about 2, before 24 products of weights below 1/4.
    assert np.abs(found - model(x[0]).detach().numpy()).max() < 0.1
