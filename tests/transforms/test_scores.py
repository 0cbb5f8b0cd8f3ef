"""verify's scores: whose outputs each is the mean of; and its report as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.dom import minidom

import pytest
import torch
from attrs import evolve
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.specs import FloatMultiplier, Kernel, Op, edit
from tests.onnxruntime_target import ONNXRUNTIME
from tests.transforms.checks import calibrated

# Weights of 2 bits and an arithmetic that rounds down, so that no two of the four agree.
COARSE = evolve(edit.weights(bits=2)(ONNXRUNTIME), kernels=(Kernel(Op("linear"), FloatMultiplier("floor")),))


def error(outputs: list[Tensor], batch: Any) -> Tensor:
    """The squared error of each example."""
    (y,) = outputs
    return (y - batch[1]).square().sum(1)


@pytest.mark.filterwarnings("ignore:verify. batches of 2 elements")
def test_each_score_is_the_mean_over_all_examples_of_its_own_outputs() -> None:
    torch.manual_seed(0)
    net = nn.Linear(6, 3).eval()
    batches = [(torch.randn(n, 6), torch.randn(n, 3)) for n in (5, 2)]
    done = qfunc.calibrate([x for x, _ in batches])(qfunc.quantize(COARSE)(net))

    def doubled(artifact: Any, inputs: list[Tensor]) -> list[Any]:
        return [2 * net(inputs[0]).detach().numpy()]

    report = qfunc.verify(COARSE, doubled, score=error)(done, iter(batches))
    made = {"float": net, "simulation": done, "emulation": qfunc.emulate(COARSE)(done), "runtime": lambda x: 2 * net(x)}
    with torch.no_grad():
        each = {name: torch.cat([error([call(x)], (x, y)) for x, y in batches]) for name, call in made.items()}
    wanted = {name: float(errors.double().mean()) for name, errors in each.items()}
    assert dict(report.scores) == wanted
    assert list(dict(report.scores)) == list(made)
    assert len(set(dict(report.scores).values())) == 4
    assert f"\nscore, emulation: {wanted['emulation']:.6g}\n" in str(report)
    assert report.to_dict()["scores"] == report.scores


def test_one_number_for_a_batch_and_no_emulation_where_arithmetic_is_not_public() -> None:
    _, x, done = calibrated("residual", target=targets.tensorrt)
    run = targets.onnxruntime.runtime.runner.run
    report = qfunc.verify(targets.tensorrt, run, score=lambda outputs, batch: len(outputs))(done, [x, x])
    assert report.scores == (("float", 1.0), ("simulation", 1.0), ("runtime", 1.0))


def test_the_page_holds_what_the_report_says(tmp_path: Path) -> None:
    _, x, done = calibrated("residual")
    target = targets.onnxruntime
    report = qfunc.verify(target, score=lambda outputs, batch: outputs[0].argmax(1) < 3)(done, [x])
    text = report.save(tmp_path / "new/page.html").read_text()
    assert text == report.html()
    assert report.verdict in text
    coverage = 2  # its head and its row
    gain = 2 + len(report.gain.remarks)
    floats = (1 + len(report.float_units)) * bool(report.float_units)
    assert text.count("<tr>") == 1 + len(report.rows) + 1 + 4 + floats + coverage + gain
    assert all(f"<td>{row.name}</td>" in text for row in report.rows)
    bad = evolve(report, disagreements=("fc<1>: predicted integer, but the runtime runs it as float",))
    assert "fc&lt;1&gt;: predicted integer" in bad.html()
    minidom.parseString(text.replace("<!doctype html>", "").replace('<meta charset="utf-8">', ""))
