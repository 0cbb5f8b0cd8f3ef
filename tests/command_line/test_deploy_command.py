"""`python -m qfunc deploy`: the files of a saved quantized model, those of `quantize`, and each mistake in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import qfunc
from qfunc import targets
from qfunc.__main__ import main
from tests.command_line.test_quantize_command import BATCHES, IMAGES, NET, exported


@pytest.fixture
def model(tmp_path: Path) -> str:
    np.savez(tmp_path / "images.npz", images=IMAGES.numpy())
    return exported(tmp_path / "net.pt2", NET, IMAGES[:4])


def files(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def test_the_files_of_quantize(model: str, tmp_path: Path, capsys: Any) -> None:
    data, out, saved, again = (str(tmp_path / name) for name in ("images.npz", "out", "saved", "again"))
    assert main(["quantize", model, "--target", "onnxruntime", "--data", data, "-o", out, "--save", saved]) == 0
    assert main(["verify", saved]) == 0
    capsys.readouterr()
    assert main(["deploy", model, saved, "-o", again]) == 0
    assert capsys.readouterr().out == f"onnxruntime: not verified\nwritten to {again}: model.onnx, qfunc.json\n"
    assert files(Path(again)) == files(Path(out))


def test_a_model_that_python_corrected(model: str, tmp_path: Path, capsys: Any) -> None:
    """What `quantize` cannot do is done in a program: its weights reach the files, and the runtime is compared with them."""
    start = qfunc.calibrate(BATCHES, progress=False)(qfunc.quantize(targets.onnxruntime)(torch.export.load(model)))
    corrected = qfunc.correct_bias(BATCHES, progress=False)(start)
    qfunc.save(tmp_path / "saved")(corrected)
    out = tmp_path / "out"
    data = str(tmp_path / "images.npz")
    assert main(["deploy", model, str(tmp_path / "saved"), "-o", str(out), "--data", data, "--batch", "4", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    report = qfunc.verify(targets.onnxruntime)(corrected, BATCHES)
    assert (value["target"], value["mismatches"], value["verdict"]) == ("onnxruntime", 0, report.verdict)
    assert files(out) == dict(qfunc.deploy(targets.onnxruntime)(corrected).files)
    assert files(out)["model.onnx"] != qfunc.deploy(targets.onnxruntime)(start).files["model.onnx"]


def test_mistakes(model: str, tmp_path: Path, capsys: Any) -> None:
    saved, out = tmp_path / "saved", tmp_path / "out"
    qfunc.save(saved)(qfunc.quantize(targets.onnxruntime)(torch.export.load(model)))
    other = exported(tmp_path / "other.pt2", torch.nn.Linear(3, 2), torch.ones(2, 3))
    for command, found in (
        ([model, str(saved)], "deploy: found a quantized model without qparams at site '5.bias', wanted a calibrated model. "),
        ([other, str(saved)], f"load('{saved}'): found "),
        ([model, str(tmp_path / "nowhere")], f"load('{tmp_path / 'nowhere'}'): found "),
    ):
        assert main(["deploy", *command, "-o", str(out)]) == 2
        err = capsys.readouterr().err
        assert err.startswith(f"qfunc: {found}")
        assert err.count("\n") == 1
        assert not out.exists()
