"""`python -m qfunc diagnose`: the causes and plans of the library's own report, as text, JSON and a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.export import Dim

import qfunc
from qfunc.__main__ import main
from tests.diagnosis.failures import narrow_calibration


def largest(outputs: list[Tensor], batch: Any) -> Tensor:
    """A metric of a user's: the largest output of each example."""
    return outputs[0].flatten(1).amax(1)


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    torch.manual_seed(0)
    case = narrow_calibration()
    assert case.calibration is not None
    inputs = (case.batches[0],)
    program = torch.export.export(case.model.eval(), inputs, dynamic_shapes=({0: Dim.DYNAMIC},))
    torch.export.save(program, tmp_path / "net.pt2")
    for name, batches in (("data", case.batches), ("calibration", case.calibration)):
        np.savez(tmp_path / f"{name}.npz", images=torch.cat(batches).numpy())
    data = ["--data", str(tmp_path / "data.npz"), "--calibration", str(tmp_path / "calibration.npz"), "--batch", "8"]
    return ["diagnose", str(tmp_path / "net.pt2"), "--target", "onnxruntime", *data]


def test_the_report_is_that_of_the_library(arguments: list[str], tmp_path: Path, capsys: Any) -> None:
    assert main([*arguments, "--json", "-o", str(tmp_path / "page.html")]) == 0
    found = json.loads(capsys.readouterr().out)
    torch.manual_seed(0)
    case = narrow_calibration()
    report = qfunc.diagnose(case.target, case.batches, calibration=case.calibration, progress=False)(case.model.eval())
    assert [c["kind"] for c in found["causes"]] == [c.kind for c in report.causes]
    assert found["plans"][1]["plan"] == "calibrate on the evaluated batches" == repr(report.trials[0].plan)
    assert found["plans"][1]["recovered"] == pytest.approx(report.trials[0].recovered, abs=1e-4)  # two ways to capture
    assert "<h2>Causes</h2>" in (tmp_path / "page.html").read_text()


def test_a_metric_is_a_function_of_a_module(arguments: list[str], capsys: Any) -> None:
    assert main([*arguments, "--metric", f"{__name__}:largest"]) == 0
    assert capsys.readouterr().out.startswith("onnxruntime: largest ")


def test_a_metric_that_is_not_there_is_one_line(arguments: list[str], capsys: Any) -> None:
    assert main([*arguments, "--metric", f"{__name__}:smallest"]) == 2
    assert capsys.readouterr().err == (
        f"qfunc: '{__name__}:smallest': found AttributeError: module '{__name__}' has no attribute 'smallest', wanted a "
        "module's attribute. Give module:function, a function (outputs, batch) -> a number per example.\n"
    )
