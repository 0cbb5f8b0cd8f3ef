"""compare: figures against plain float64 formulas over the two networks' own values; one pass; a page."""

from __future__ import annotations

import math
import re
from typing import Any
from xml.dom import minidom

import numpy as np
import pytest
import torch
from attrs import evolve
from torch import Tensor, fx, nn

import qfunc
from qfunc import specs
from qfunc.analysis.histogram import BINS
from qfunc.analysis.metrics import Sums
from qfunc.graph.float_network import float_network
from qfunc.graph.sites import quantizer_nodes
from qfunc.specs import edit
from tests.onnxruntime_target import ONNXRUNTIME
from tests.transforms.checks import arguments, calibrated, leaves
from tests.transforms.nets import NAMES, image, network
from tests.transforms.test_errors import told

TARGET = ONNXRUNTIME
# Sums of some hundred products in float64 differ by their order by a few 2^-53 of the sum of magnitudes.
CLOSE = 1e-12


class Values(fx.Interpreter):
    """Every node's value."""

    def __init__(self, model: fx.GraphModule) -> None:
        super().__init__(model, garbage_collect_values=False)

    def of(self, batch: Any) -> dict[str, Any]:
        with torch.no_grad():
            self.run(*arguments(batch))
        return {n.name: v for n, v in self.env.items()}


def formula(x: Any, x_hat: Any) -> tuple[float, float, float]:
    """(SQNR in dB, cosine, largest error) as the formulas say, in numpy."""
    a, b = (np.concatenate([v.detach().double().numpy().ravel() for v in vs]) for vs in (x, x_hat))
    noise = ((b - a) ** 2).sum()
    sqnr = 10 * np.log10((a**2).sum() / noise) if noise else math.inf
    return float(sqnr), float((a * b).sum() / np.sqrt((a**2).sum() * (b**2).sum())), float(np.abs(b - a).max())


@pytest.mark.parametrize("export", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_the_figures_are_those_of_the_formulas(name: str, export: bool) -> None:
    _, batch, done = calibrated(name, export=export)
    # Another batch of other energy, so that sums over both are neither's.
    again = tuple(0.5 * v.flip(0) if v.is_floating_point() else v.flip(0) for v in arguments(batch))
    batches = [batch, again if isinstance(batch, tuple) else again[0]]
    found = qfunc.compare(batches)(done)
    done.eval()
    real = [Values(float_network(done)).of(b) for b in batches]
    simulated = [Values(done).of(b) for b in batches]
    paths = {s.module.site.name: s for s in quantizer_nodes(done)}
    assert {r.tensor for r in found.rows if r.slot} == set(paths)
    for row in found.rows:
        float_name = quantized = row.tensor
        if row.slot:
            seat = paths[row.tensor]
            float_name, quantized = seat.tensor, next(n.name for n in done.graph.nodes if n.target == seat.path)
        x, x_hat = [v[float_name] for v in real], [v[quantized] for v in simulated]
        count = 1 if row.slot in ("weight", "bias") else 2
        sqnr, cosine, largest = formula(x[:count], x_hat[:count])
        assert row.agreement.elements == sum(v.numel() for v in x[:count])
        assert row.sqnr == pytest.approx(sqnr, rel=1e-9)
        assert row.cosine == pytest.approx(cosine, rel=CLOSE)
        assert row.agreement.largest == largest
        if row.slot:
            alone = [paths[row.tensor].module(v) for v in x]
            assert row.alone is not None
            assert row.alone.sqnr == pytest.approx(formula(x[:count], alone[:count])[0], rel=1e-9)


@pytest.mark.parametrize("name", ["residual", "two_inputs", "dict_output"])
def test_the_outputs_are_the_models(name: str) -> None:
    model, batch, done = calibrated(name)
    with torch.no_grad():
        x, x_hat = leaves(model(*arguments(batch))), leaves(done.eval()(*arguments(batch)))
    found = qfunc.compare([batch])(done).outputs
    assert len(found) == len(x)
    for row, a, b in zip(found, x, x_hat, strict=True):
        # BatchNorms were folded: the float network is the model up to float rounding, 2^-20 of 100 dB's signal.
        assert row.sqnr == pytest.approx(formula([a], [b])[0], abs=0.01)


def test_cuts_of_the_batches_do_not_matter_and_modes_neither() -> None:
    _, x, done = calibrated("residual")
    x = torch.cat([x, 2 * x, -x])
    whole = qfunc.compare([x])(done)
    parts = qfunc.compare(iter([x[:1], x[:0], x[1:4], x[4:]]))(done.train())
    assert parts.batches == 4
    for a, b in zip(whole.rows, parts.rows, strict=True):
        # float32 kernels sum in an order that depends on the batch; and single codes then differ.
        assert a.agreement.elements == b.agreement.elements
        assert a.sqnr == pytest.approx(b.sqnr, abs=0.05)
        assert (a.histogram is None) == (b.histogram is None)
    first = [r.histogram for r in (whole.rows[0], parts.rows[0])]
    assert first[0] == first[1]
    assert done.training


def test_weights_are_counted_once_and_the_rows_go_by_depth() -> None:
    _, x, done = calibrated("residual")
    one, three = qfunc.compare([x])(done), qfunc.compare([x] * 3)(done)
    of = {r.tensor: r for r in three.rows}
    assert [r.depth for r in three.rows] == sorted(r.depth for r in three.rows)
    assert of["x"].depth == 0
    assert of["conv2.weight"].depth == of["conv2"].depth == of["relu"].depth + 1
    for a, b in zip(one.rows, three.rows, strict=True):
        assert b.agreement.elements == (1 if a.slot in ("weight", "bias") else 3) * a.agreement.elements
        assert a.sqnr == pytest.approx(b.sqnr, rel=1e-9)


class Wide(nn.Module):
    """A matmul by the identity, whose input is what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4, bias=False)
        nn.init.eye_(self.fc.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x)


def test_the_histogram_counts_against_the_clipping_range() -> None:
    """Scale 1/32 and zero point 0: codes 0..255 hold [0, 7.96875]."""
    scheme = specs.FixedQParams(specs.Scheme(specs.Int(8, signed=False), zero_point=specs.ZeroPoint()), 2.0**-5, 0)
    target = edit.inputs(edit.name("fc"), scheme)(TARGET)
    x = torch.cat([torch.linspace(-8, 16, 97), torch.tensor([100.0, -0.01, 7.975])]).reshape(25, 4)
    done = qfunc.calibrate([x])(qfunc.quantize(target)(Wide()))
    row = next(r for r in qfunc.compare([x[:7], x[7:]])(done).rows if r.slot == "input")
    found = row.histogram
    assert found is not None
    assert (found.low, found.high) == (0.0, 255 / 32)
    assert (found.minimum, found.maximum, found.total) == (-8.0, 100.0, 100)
    # Half to even: -1/64 is still code 0, and 255.5/32 would be code 256.
    assert found.clipped == int(((x < -1 / 64) | (x >= 255.5 / 32)).sum())
    edges = np.linspace(-0.5 * found.high, 1.5 * found.high, BINS + 1)
    inner = np.histogram(x.double().numpy()[(x.numpy() < edges[-1])], edges)[0]
    assert found.counts[1:-1] == tuple(inner)
    assert found.counts[0] == int((x.double() < edges[0]).sum())
    assert found.counts[-1] == int((x.double() >= edges[-1]).sum())


@pytest.mark.parametrize("fmt", [specs.Float(4, 3, max=448.0), specs.Log(), specs.Levels((-1.0, 0.0, 3.0))])
def test_ranges_of_other_formats(fmt: Any) -> None:
    from qfunc.analysis.histogram import clipping_range
    from qfunc.numerics.affine import fake_quantize
    from qfunc.numerics.qparams import Affine

    scheme, qparams = specs.Scheme(fmt), Affine(torch.tensor(0.25), torch.tensor(0.0))
    low, high = clipping_range(qparams, scheme)
    ends = fake_quantize(torch.tensor([-1e30, 1e30]), qparams, scheme)
    assert [low, high] == pytest.approx(ends.tolist(), rel=1e-6)  # logarithms' ends are rounded to float32


def test_values_that_are_not_finite() -> None:
    sums = Sums()
    sums.add(torch.tensor([-torch.inf, 3.0]), torch.tensor([-torch.inf, 4.0]))
    assert (sums.agreement().signal, sums.agreement().noise, sums.agreement().sqnr) == (9.0, 1.0, 10 * math.log10(9))
    sums.add(torch.tensor([torch.inf]), torch.tensor([1.0]))
    assert math.isnan(sums.agreement().sqnr) or sums.agreement().sqnr == -math.inf
    sums.add(torch.tensor([torch.nan]), torch.tensor([1.0]))
    assert math.isnan(sums.agreement().sqnr)
    assert math.isinf(Sums().agreement().sqnr)
    empty, zero = Sums(), Sums()
    empty.add(torch.ones(0), torch.ones(0))
    zero.add(torch.zeros(2), torch.ones(2))
    assert (empty.agreement().elements, empty.agreement().cosine, empty.agreement().mse) == (0, 1.0, 0.0)
    assert (zero.agreement().sqnr, zero.agreement().cosine) == (-math.inf, 0.0)


@pytest.mark.thorough
def test_memory_does_not_grow_with_the_batches() -> None:
    """The batches are made one by one; what a batch left behind is gone when the next is asked for."""
    import gc
    import weakref

    _, _, done = calibrated("residual")
    alive: list[Any] = []

    def batches() -> Any:
        for _ in range(4):
            gc.collect()
            assert sum(r() is not None for r in alive[:-1]) == 0
            x = image()
            alive.append(weakref.ref(x))
            yield x
            del x

    assert qfunc.compare(batches())(done).batches == 4


def test_dynamic_scales_have_no_histogram() -> None:
    scheme = specs.Scheme(specs.Int(8), specs.Scale(dynamic=True))
    target = evolve(edit.inputs(edit.name("fc"), scheme)(TARGET), lowering=None)  # no file has such scales
    done = qfunc.calibrate([torch.randn(3, 4)])(qfunc.quantize(target)(Wide()))
    rows = qfunc.compare([torch.randn(3, 4)])(done).rows
    assert {r.histogram is None for r in rows if r.slot == "input"} == {True}


def test_the_page_needs_nothing_else(tmp_path: Any) -> None:
    _, x, done = calibrated("residual")
    found = qfunc.compare([x])(done)
    text = found.save(tmp_path / "a/report.html").read_text()
    assert text == found.html() == qfunc.compare([x])(done).html()
    assert not re.search(r"https?:|url\(|src=|href=|@import", text)
    drawn = [minidom.parseString(svg) for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]
    assert len(drawn) == 1 + sum(r.histogram is not None for r in found.rows)
    activations = [r for r in found.rows if r.slot not in ("weight", "bias")]
    points = [c for c in drawn[0].getElementsByTagName("circle") if c.getElementsByTagName("title")]
    weights = sum(r.slot == "weight" for r in found.rows)
    assert len(points) == len(activations) + sum(r.alone is not None for r in activations) + weights
    heights = [float(c.getAttribute("cy")) for c in points[: len(activations)]]
    order = sorted(range(len(activations)), key=lambda i: activations[i].sqnr)
    assert [heights[i] for i in order] == sorted(heights, reverse=True)  # more dB stand higher
    minidom.parseString(text.replace("<!doctype html>", "").replace('<meta charset="utf-8">', ""))


def test_the_table_and_the_worst() -> None:
    _, x, done = calibrated("residual")
    found = qfunc.compare([x])(done)
    lines = str(found).splitlines()
    assert lines[0] == "onnxruntime: float against simulation, 12 tensors, 1 batch"
    assert len(lines) == 3 + len(found.rows)
    assert [r.sqnr for r in found.worst(3)] == sorted(r.sqnr for r in found.rows)[:3]


def test_wrong_uses_are_told_whole(tmp_path: Any) -> None:
    model, x = network("residual")
    made = qfunc.quantize(TARGET)(model)
    ready = qfunc.calibrate([x])(made)
    text = "compare: found no batches, wanted at least one. Pass a non-empty iterable, not one already used up."
    told(lambda: qfunc.compare([])(ready), "CalibrationError", text)
    text = "compare: found a Tensor, wanted an iterable of batches. Put a single batch into a list: [batch]."
    told(lambda: qfunc.compare(x), "CalibrationError", text)
    text = (
        "compare: found a quantized model without qparams at site 'x', wanted a calibrated model. "
        "First run qfunc.calibrate(batches)(quantized)."
    )
    told(lambda: qfunc.compare([x])(made), "CalibrationError", text)
    with pytest.raises(qfunc.errors.CalibrationError) as caught:
        qfunc.compare([x, x[:, :2]])(ready)
    assert str(caught.value).startswith("compare, batch 2, op 'conv1': found RuntimeError: ")
    assert str(caught.value).endswith(
        "wanted inputs on which the model runs. Pass batches with the arguments of the model's forward."
    )
    text = f"save({str(tmp_path)!r}): found a directory, wanted a file to write. Name a file: 'report.html'."
    told(lambda: qfunc.compare([x])(ready).save(tmp_path), "VerifyError", text)
