"""`_repr_html_`: what a notebook shows of a report, with the numbers of its text and without the style of the page."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest
import torch
from torch import nn

import qfunc
from qfunc import targets
from qfunc.analysis.report_format import fragment, page


class Tags(HTMLParser):
    """The tags that are open, and every text outside of a style."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: set[str] = set()
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.names.add(tag)
        if tag not in ("meta", "circle", "line", "rect", "path"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.texts.append(data)


@pytest.fixture(scope="module")
def reports() -> dict[str, tuple[Any, str]]:
    """Every report, and a word of its table."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 2, 1)).eval()
    batches = list(torch.randn(2, 2, 3, 4, 4))
    model = qfunc.calibrate(batches, progress=False)(qfunc.quantize(targets.onnxruntime)(net))
    mixture = qfunc.mixed_precision(batches, (4,), qfunc.SizeBudget(6.0), progress=False)
    return {
        "explain": (qfunc.explain(model), "2.weight"),
        "compare": (qfunc.compare(batches, progress=False)(model), "2.weight"),
        "sensitivity": (qfunc.sensitivity(batches, progress=False)(model), "2.weight"),
        "verify": (qfunc.verify(targets.onnxruntime)(model, batches), "output 0"),
        "mixed_precision": (mixture(model), "2.weight"),
        "equalization_pairs": (qfunc.corrections.equalization_pairs(net), "relu"),
    }


@pytest.mark.parametrize("name", ["explain", "compare", "sensitivity", "verify", "mixed_precision", "equalization_pairs"])
def test_a_notebook_shows_the_table(reports: dict[str, tuple[Any, str]], name: str) -> None:
    report, word = reports[name]
    shown = report._repr_html_()
    tags = Tags()
    tags.feed(shown)
    assert tags.open == []
    assert {"div", "table", "td"} <= tags.names
    assert not tags.names & {"html", "head", "body"}
    assert word in tags.texts
    assert word in str(report)


def test_a_repr_is_one_line(reports: dict[str, tuple[Any, str]]) -> None:
    """Reports with a row for each tensor count their rows; `print` shows them."""
    lines = [repr(reports[name][0]) for name in ("explain", "compare", "sensitivity")]
    assert lines == [
        "Explanation('onnxruntime', 7 quantized tensors, 0 float ops)",
        "LayerErrors('onnxruntime', 7 tensors, 2 batches)",
        "SiteLosses('onnxruntime', 7 sites, 2 batches)",
    ]


def test_the_whole_fragment() -> None:
    shown = fragment(page("a < b", "Two numbers.", []))
    head, style, rest = shown.partition("</style>")
    assert head.startswith('<div class="qfunc"><style>.qfunc{')
    assert "body" not in head
    assert (style, rest) == ("</style>", "<h1>a &lt; b</h1><p>Two numbers.</p>\n</div>")
