"""A trained MobileNetV1 with one scale for each weight: the cause is first, and a plan on integers recovers the loss."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import qfunc
from qfunc import targets
from qfunc.specs import PerTensor, edit

DATA = Path(__file__).parents[3] / "shared/data"
"""Weights and images that are not part of the project; benchmarks/diagnosis.py has the accuracy on more and whole images."""


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`load(name)` of the data's folder."""
    if not (DATA / "load.py").is_file():
        pytest.skip("no trained networks in ../shared/data")
    pytest.importorskip("PIL", reason="pillow is not installed")
    monkeypatch.syspath_prepend(str(DATA))
    spec = importlib.util.spec_from_file_location("load", DATA / "load.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.delitem(sys.modules, "models", raising=False)
    return module.load


def unlike(model: nn.Module) -> set[str]:
    """The weights, with their BatchNorms folded by hand, in which the largest channel is 8 times the median."""
    found = set()
    for path, module in model.named_modules():
        norms = [m for m in module.children() if isinstance(m, nn.BatchNorm2d)]
        for name, conv in module.named_children():
            if isinstance(conv, nn.Conv2d) and norms:
                gain = (norms[0].weight / (norms[0].running_var + norms[0].eps).sqrt()).abs()
                ranges = conv.weight.detach().abs().flatten(1).amax(1) * gain.detach()
                used = ranges[ranges > 0]
                if float(used.max() / used.median()) >= 8:
                    found.add(f"{path}.{name}.weight")
    return found


def test_a_per_tensor_mobilenet(load: Any) -> None:
    model, (calibration, _), (x, _) = load("imagenet1k")
    # The middle of a few images, because whole ones take minutes. The loss is that of all outputs, not of the accuracy.
    batch, images = x[::100, :, 64:160, 64:160], calibration[:8, :, 64:160, 64:160]
    chip = edit.weights(granularity=PerTensor())(targets.onnxruntime)
    report = qfunc.diagnose(chip, [batch], calibration=[images], progress=False)(model)
    assert report.causes[0].kind == "channels of weights", str(report)
    assert set(report.causes[0].sites) == unlike(model)
    chosen, fixed = report.choose(integer=0.99), report.apply(integer=0.99)(model)
    plain = qfunc.calibrate([images], False)(qfunc.quantize(chip)(model))
    with torch.no_grad():
        real = model(batch).double()
        before, after = (float((m(batch).double() - real).square().sum() / real.square().sum()) for m in (plain, fixed))
    assert after <= 0.1 * before
    assert chosen.recovered == pytest.approx(1 - after / before, abs=1e-6)
