"""docs/detector.md: its program prints what the page says, and the example's detector gives the float network's boxes."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import qfunc
from qfunc import targets

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/detector.md").read_text()


@pytest.fixture(scope="module")
def example() -> Any:
    spec = importlib.util.spec_from_file_location("detector_example", ROOT / "examples/detector.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_program_prints_what_the_page_says() -> None:
    program, output = (re.search(rf"^```{kind}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE) for kind in ("python", "text"))
    assert program is not None
    assert output is not None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(program[1], "docs/detector.md", "exec"), {"__name__": "page"})
    assert printed.getvalue() == output[1]


@pytest.fixture(scope="module")
def trained(example: Any) -> Any:
    """The example's network after a few steps: boxes are rough, and all parts have values."""
    torch.manual_seed(0)
    return example.train(example.Detector(), 12)


@pytest.mark.thorough
@pytest.mark.parametrize("exported", [False, True], ids=["traced", "exported"])
@pytest.mark.parametrize("name", ["onnxruntime", "openvino", "litert", "executorch_xnnpack", "ncnn"])
def test_a_runtime_returns_the_decoded_boxes(name: str, exported: bool, example: Any, trained: Any) -> None:
    target = getattr(targets, name)
    if not example.installed(target):
        package = {"litert": "ai-edge-litert", "executorch_xnnpack": "executorch"}.get(name, name)
        pytest.skip(f"{package} is not installed")
    images = example.shapes(4, seed=5)[0]
    calibrated = qfunc.calibrate([images], progress=False)(qfunc.quantize(target, (images,) if exported else None)(trained))
    (joined,) = target.runtime.runner.run(qfunc.deploy(target)(calibrated), [images])
    found = example.parted(torch.as_tensor(joined)).values()
    with torch.no_grad():
        exact: dict[str, Tensor] = example.parted(trained(images))
    steps = [float(v.max() - v.min()) / 255 for v in exact.values()]
    for value, wanted, step in zip(found, exact.values(), steps, strict=True):
        assert (value - wanted).abs().mean() < 2 * step
    report = qfunc.verify(target)(calibrated, [images[:2]])
    assert not report.disagreements
    assert all(row.largest_lsb <= 1 for row in report.of("output"))


def test_the_picture_is_a_png_with_both_colours(example: Any) -> None:
    box = torch.tensor([[8.0, 8.0, 24.0, 24.0]])
    pixels = example.picture(torch.zeros(3, 64, 64), (box, (0, 200, 0), 0), (box, (230, 0, 230), 4), scale=2)
    assert pixels.shape == (128, 128, 3)
    edge = 35**2 - 29**2  # lines of 3 pixels around the points 16 to 48
    green, magenta = (int((pixels == torch.tensor(colour)).all(-1).sum()) for colour in ((0, 200, 0), (230, 0, 230)))
    assert green + magenta == edge
    assert abs(green - magenta) < edge // 10
    assert example.png(pixels).startswith(b"\x89PNG\r\n\x1a\n")
