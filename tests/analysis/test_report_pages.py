"""The pages of reports: a click on a column's head sorts the table, and a plot labels its lowest points."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from xml.dom import minidom

import pytest
import torch
from torch import nn

import qfunc
from qfunc import targets
from qfunc.analysis.report_format import Section, page
from qfunc.analysis.svg_plots import Series, scatter_plot

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
ROWS = (("conv.10", "1,000", ""), ("conv.9", "inf", "not calibrated"), ("add", "-2.5", "8"), ("b", "", "7"))
CLICK = "<script>addEventListener('load', () => setTimeout(() => { %s }, 50))</script>"


def labels(plot: str) -> list[str]:
    return re.findall(r'<text class="name"[^>]*>([^<]*)<', plot)


def sorted_by(column: int, clicks: int, folder: Path) -> list[str]:
    """The first column of a table in a browser, after clicks on the head of a column."""
    assert BROWSER is not None
    text = page("Numbers", "", [Section("Table", ("name", "number", "mixed"), ROWS)])
    script = f"for (let i = 0; i !== {clicks}; i++) document.querySelectorAll('th')[{column}].click()"
    file = folder / "page.html"
    file.write_text(text.replace("</body>", CLICK % script + "</body>"))
    command = (BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}")
    options = ("--virtual-time-budget=2000", "--dump-dom", file.as_uri())
    shown = subprocess.run([*command, *options], capture_output=True, text=True, check=True, timeout=120).stdout
    return re.findall(r"<tr><td[^>]*>([^<]*)<", shown)


@pytest.mark.skipif(BROWSER is None, reason="no browser is installed")
@pytest.mark.parametrize(
    ("column", "clicks", "order"),
    [
        (0, 0, ["conv.10", "conv.9", "add", "b"]),
        (0, 1, ["add", "b", "conv.9", "conv.10"]),  # the numbers in a text count as numbers
        (1, 1, ["add", "conv.10", "conv.9", "b"]),  # no number is last
        (1, 2, ["conv.9", "conv.10", "add", "b"]),
        (2, 1, ["conv.10", "b", "add", "conv.9"]),  # a column with a text is sorted as text
    ],
)
def test_a_click_sorts_a_table(column: int, clicks: int, order: list[str], tmp_path: Path) -> None:
    assert sorted_by(column, clicks, tmp_path) == order


def test_a_plot_labels_its_lowest_points() -> None:
    points = [(float(i), float(v), f"op {i} <{v}>") for i, v in enumerate((50, 20, 41, 10, 30, 60))]
    plot = scatter_plot((Series("a", tuple(points[:3])), Series("b", tuple(points[3:]))), "depth", "dB")
    assert labels(plot) == ["op 3 &lt;10&gt;", "op 1 &lt;20&gt;", "op 4 &lt;30&gt;"]
    minidom.parseString(plot)


def test_a_label_stays_in_the_plot_and_off_other_labels() -> None:
    for places in ((0.0, 0.0, 0.0), (10.0, 10.0, 10.0), (0.0, 5.0, 10.0)):
        names = ("a.long.path.of.an.op.1", "a.long.path.of.an.op.2", "a.long.path.of.an.op.3")
        points = tuple((x, 1.0, name) for x, name in zip(places, names, strict=True))
        plot = scatter_plot((Series("a", (*points, (0.0, 9.0, "top"), (10.0, 9.0, "right"))),), "depth", "dB")
        found = re.findall(r'<text class="name" x="([\d.]+)" y="([\d.]+)" text-anchor="(\w+)"', plot)
        boxes = [(float(x) - (132 if anchor == "end" else 0), float(y)) for x, y, anchor in found]
        assert len(boxes) == 3
        assert all(x >= 0 and x + 132 <= 900 for x, _ in boxes)
        for i, (x, y) in enumerate(boxes):
            assert all(abs(y - b) >= 12 or abs(x - a) >= 132 for a, b in boxes[:i])


def test_a_name_is_labelled_once() -> None:
    plot = scatter_plot((Series("a", ((0, 5.0, "x"), (1, 9.0, "y"))), Series("b", ((0, 7.0, "x"),))), "depth", "dB")
    assert labels(plot) == ["x", "y"]


def test_the_reports_label_what_they_call_worst() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.ReLU(), nn.Conv2d(4, 2, 1)).eval()
    batches = [torch.randn(2, 3, 4, 4)]
    model = qfunc.calibrate(batches, progress=False)(qfunc.quantize(targets.onnxruntime)(net))
    losses = qfunc.sensitivity(batches, progress=False)(model)
    assert labels(losses.html()) == [row.site for row in losses.worst(3)]
    errors = qfunc.compare(batches, progress=False)(model)
    shown = [row.tensor for row in errors.worst(len(errors.rows)) if row.slot != "bias"]
    assert labels(errors.html()) == list(dict.fromkeys(shown))[:3]


def test_a_metric_without_a_name_is_called_metric() -> None:
    batches = [(torch.randn(8, 4), torch.zeros(8, dtype=torch.int64))]
    study = qfunc.diagnose(targets.onnxruntime, batches, metric=lambda o, b: o[0].argmax(1) == b[1], progress=False)
    report = study(nn.Linear(4, 3).eval())
    assert report.metric == "metric"
    assert "lambda" not in report.html() + str(report)


def test_a_runtime_without_a_name_is_called_runtime() -> None:
    batches = [torch.randn(2, 4)]
    model = qfunc.calibrate(batches, progress=False)(qfunc.quantize(targets.tensorrt)(nn.Linear(4, 3).eval()))
    with torch.no_grad():
        report = qfunc.verify(targets.tensorrt, lambda artifact, inputs: [model(*inputs).numpy()])(model, batches)
    assert report.runtime == "runtime"
