"""deploy, verify and show on files whose target has classes and functions of a vendor's module."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import qfunc
from qfunc.__main__ import main
from qfunc.errors import SpecError

MODULE = """
import attrs
import numpy as np
from qfunc import estimators, targets
from qfunc.lowering import CodesRunner
from qfunc.specs import Algorithm, Runtime

@attrs.frozen
class Mine:
    init, update, finalize = estimators.MinMax().init, estimators.MinMax().update, estimators.MinMax().finalize

def gemm(op):
    return np.full((len(op.inputs[0].codes), 2), op.low)

base = targets.onnxruntime
runtime = Runtime("simulator", runner=CodesRunner({"Gemm": gemm}))
chip = attrs.evolve(base, name="chip", runtime=runtime, weight=Algorithm(Mine(), base.weight.function))
"""
BOTH = (
    "found unknown class 'vendor_of_a_test:Mine' and function 'vendor_of_a_test:gemm', wanted classes and functions of qfunc."
)
CURE = "Give --target module:attribute, a target of a module that holds them."


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: Any) -> Iterator[Path]:
    (tmp_path / "vendor_of_a_test.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    torch.manual_seed(0)
    x = torch.randn(4, 3)
    torch.export.save(torch.export.export(nn.Linear(3, 2).eval(), (x,)), tmp_path / "m.pt2")
    np.savez(tmp_path / "d.npz", x=x.numpy())
    command = [str(tmp_path / "m.pt2"), "--target", "vendor_of_a_test:chip", "--data", str(tmp_path / "d.npz"), "--verify", "0"]
    assert main(["quantize", *command, "--save", str(tmp_path / "saved"), "-o", str(tmp_path / "files")]) == 0
    sys.modules.pop("vendor_of_a_test")
    yield tmp_path
    sys.modules.pop("vendor_of_a_test", None)


def test_deploy_takes_the_target_that_holds_the_classes(folder: Path, capsys: Any) -> None:
    command = ["deploy", str(folder / "m.pt2"), str(folder / "saved"), "-o", str(folder / "again")]
    capsys.readouterr()
    assert main(command) == 2
    assert capsys.readouterr().err == f"qfunc: {folder}/saved/qfunc.json: target, from_json: {BOTH} {CURE}\n"
    assert "vendor_of_a_test" not in sys.modules  # a file imports nothing
    assert main([*command, "--target", "vendor_of_a_test:chip"]) == 0
    for name in ("model.onnx", "qfunc.json"):
        assert (folder / "again" / name).read_bytes() == (folder / "files" / name).read_bytes()


def test_deploy_refuses_another_target(folder: Path, capsys: Any) -> None:
    saved, model = str(folder / "plain"), str(folder / "m.pt2")
    command = [model, "--target", "onnxruntime", "--data", str(folder / "d.npz"), "--verify", "0", "-o", str(folder / "out")]
    assert main(["quantize", *command, "--save", saved]) == 0
    capsys.readouterr()
    assert main(["deploy", model, saved, "-o", str(folder / "out"), "--target", "vendor_of_a_test:chip"]) == 2
    assert "deploy(chip): found a model quantized for other hardware" in capsys.readouterr().err


@pytest.mark.parametrize("place", ["saved", "files"])
def test_verify_takes_the_target_that_holds_the_classes(folder: Path, place: str, capsys: Any) -> None:
    capsys.readouterr()
    assert main(["verify", str(folder / place)]) == 0
    found = " ".join(capsys.readouterr().out.split())
    assert "target skipped" in found
    assert "Give the command verify --target module:attribute, a target of a module that holds them." in found
    assert "vendor_of_a_test" not in sys.modules
    assert main(["verify", str(folder / place), "--target", "vendor_of_a_test:chip"]) == 0
    assert "target ok chip" in " ".join(capsys.readouterr().out.split())


def test_show_of_a_file_names_the_form_of_a_module(folder: Path, capsys: Any) -> None:
    capsys.readouterr()
    assert main(["show", str(folder / "saved" / "qfunc.json")]) == 2
    assert capsys.readouterr().err.endswith("Give module:attribute, the target of a module, in place of the file.\n")


def test_load_names_itself_and_all_that_is_missing(folder: Path) -> None:
    with pytest.raises(SpecError) as caught:
        qfunc.load(folder / "saved")(nn.Linear(3, 2))
    where = f"{folder}/saved/qfunc.json: target, from_json"
    assert str(caught.value) == f"{where}: {BOTH} Pass them: load(directory, classes=(Mine, gemm))."
    import vendor_of_a_test as vendor  # type: ignore[import-not-found]

    with pytest.raises(SpecError) as caught:
        qfunc.load(folder / "saved", classes=(vendor.Mine,))(nn.Linear(3, 2))
    assert str(caught.value) == (
        f"{where}: found unknown function 'vendor_of_a_test:gemm', wanted a function of qfunc. "
        "Pass it: load(directory, classes=(gemm,))."
    )
    program = torch.export.load(folder / "m.pt2")
    assert qfunc.load(folder / "saved", classes=(vendor.Mine, vendor.gemm))(program) is not None
