"""`python -m qfunc quantize`: the files of the library's own steps, the runtime's verdict, and each mistake in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import qfunc
from qfunc import targets
from qfunc.__main__ import main

torch.manual_seed(0)
NET = nn.Sequential(
    nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
).eval()
IMAGES = torch.randn(10, 3, 9, 9)
BATCHES = [(IMAGES[k : k + 4],) for k in (0, 4, 8)]


class Two(nn.Module):
    """A sum of two inputs behind a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 3)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """[n, 3] of two [n, 5]."""
        return self.linear(left + right).relu()


def exported(path: Path, net: nn.Module, *inputs: Tensor, dynamic: bool = True) -> str:
    shapes = tuple({0: Dim.DYNAMIC} for _ in inputs) if dynamic else None
    torch.export.save(torch.export.export(net.eval(), inputs, dynamic_shapes=shapes), path)
    return str(path)


@pytest.fixture
def model(tmp_path: Path) -> str:
    return exported(tmp_path / "net.pt2", NET, IMAGES[:4])


@pytest.fixture
def data(tmp_path: Path) -> str:
    np.savez(tmp_path / "images.npz", images=IMAGES.numpy())
    return str(tmp_path / "images.npz")


def test_the_files_are_those_of_the_steps(model: str, data: str, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out"
    command = ["quantize", model, "--target", "onnxruntime", "--data", data, "-o", str(out), "--batch", "4"]
    assert main([*command, "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    program = torch.export.load(model)
    calibrated = qfunc.calibrate(BATCHES, progress=False)(qfunc.quantize(targets.onnxruntime)(program))
    artifact = qfunc.deploy(targets.onnxruntime)(calibrated)
    assert (out / "model.onnx").read_bytes() == artifact.files["model.onnx"]
    assert value["verdict"] == qfunc.verify(targets.onnxruntime)(calibrated, BATCHES).verdict
    assert (value["mismatches"], value["files"]) == (0, ["model.onnx", "qfunc.json"])
    session = onnxruntime.InferenceSession(str(out / "model.onnx"), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: IMAGES.numpy()})
    assert found.shape == (10, 4)
    assert main(["verify", str(out)]) == 0


def test_the_text(model: str, data: str, tmp_path: Path, capsys: Any) -> None:
    out = str(tmp_path / "out")
    assert main(["quantize", model, "--target", "onnxruntime", "--data", data, "-o", out, "--verify", "0"]) == 0
    assert capsys.readouterr().out == f"onnxruntime: not verified\nwritten to {out}: model.onnx, qfunc.json\n"
    assert main(["inspect", out]) == 0
    lines = capsys.readouterr().out.split("\n")
    assert lines[0] == "onnxruntime: 4 of 4 units on integers, 8 quantized tensors"
    assert [line.split()[:3] for line in lines if line.startswith(" input ")] == [["input", "activation", "Int(8,"]]


def test_a_target_without_a_runtime_is_not_verified(model: str, data: str, tmp_path: Path, capsys: Any) -> None:
    out = str(tmp_path / "out")
    assert main(["quantize", model, "--target", "tensorrt", "--data", data, "-o", out]) == 0
    assert capsys.readouterr().out.startswith("tensorrt: not verified: ")
    assert sorted(p.name for p in Path(out).iterdir()) == ["clip_ranges.json", "model.onnx", "model_float.onnx", "qfunc.json"]


def test_a_difference_is_exit_code_1(model: str, data: str, tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    (tmp_path / "wrong_chip.py").write_text(
        "from attrs import evolve, frozen\n"
        "from qfunc import targets\n"
        "@frozen\n"
        "class Off:\n"
        "    def run(self, artifact, inputs):\n"
        "        return [y + 1 for y in targets.onnxruntime.runtime.runner.run(artifact, inputs)]\n"
        "target = evolve(targets.onnxruntime, runtime=evolve(targets.onnxruntime.runtime, runner=Off()))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    out = str(tmp_path / "out")
    assert main(["quantize", model, "--target", "wrong_chip:target", "--data", data, "-o", out]) == 1
    assert "mismatch" in capsys.readouterr().out
    assert (Path(out) / "model.onnx").exists()


@pytest.mark.parametrize("names", [("left", "right"), ("arr_0", "arr_1"), ("right", "left")])
def test_arrays_by_name_or_in_order(names: tuple[str, str], tmp_path: Path, monkeypatch: Any) -> None:
    left, right = torch.randn(6, 5), torch.randn(6, 5) + 3
    by_name = dict(zip(names, (left, right) if names[0] != "right" else (right, left), strict=True))
    np.savez(tmp_path / "data.npz", **{name: tensor.numpy() for name, tensor in by_name.items()})
    net = Two()
    model = exported(tmp_path / "two.pt2", net, left, right, dynamic=False)
    out = tmp_path / "out"
    assert main(["quantize", model, "--target", "onnxruntime", "--data", str(tmp_path / "data.npz"), "-o", str(out)]) == 0
    report = json.loads((out / "qfunc.json").read_text())
    (scale,) = next(t["scale"] for t in report["tensors"] if t["name"] == "right")
    low, high = min(0.0, float(right.min())), max(0.0, float(right.max()))
    # One scale of 255 steps; float32 division.
    assert scale == pytest.approx((high - low) / 255, rel=1e-6)


def test_a_fixed_batch_omits_the_rest(data: str, tmp_path: Path) -> None:
    model = exported(tmp_path / "fixed.pt2", NET, IMAGES[:4], dynamic=False)
    out = tmp_path / "out"
    assert main(["quantize", model, "--target", "onnxruntime", "--data", data, "-o", str(out)]) == 0
    assert json.loads((out / "qfunc.json").read_text())["inputs"] == [{"dtype": "torch.float32", "shape": [4, 3, 9, 9]}]


def test_batches_of_a_module(model: str, tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "my_batches.py").write_text("import torch\nbatches = [torch.ones(2, 3, 9, 9), torch.zeros(2, 3, 9, 9)]\n")
    monkeypatch.syspath_prepend(tmp_path)
    out = str(tmp_path / "out")
    assert main(["quantize", model, "--target", "snpe", "--data", "my_batches:batches", "-o", out, "--verify", "0"]) == 0
    assert "model.onnx" in [p.name for p in Path(out).iterdir()]


GIVE = "Give an .npz file with one array per input, or module:attribute, an iterable of batches."
AXES = "Examples are along axis 0. Axes of any size are those that torch.export made dynamic."
WANTED = "wanted input (any, 3, 9, 9) of float32."
NUMBERS = f"wanted an .npz file of arrays of numbers. {GIVE}"
IN = "DATA, input 'input'"
MISTAKES: list[tuple[dict[str, Any] | bytes, str]] = [
    ({"x": np.ones((4, 3, 9, 9))}, f"{IN}: found float64, wanted float32. Convert it: array.astype('float32')."),
    ({"x": np.ones((4, 1, 9, 9), "f4")}, f"{IN}: found the shape (4, 1, 9, 9), {WANTED} {AXES}"),
    ({"x": np.float32(1)}, f"{IN}: found the shape (), {WANTED} {AXES}"),
    ({"x": np.ones((0, 3, 9, 9), "f4")}, "DATA: found 0 examples, wanted at least one. Give more examples."),
    ({"x": np.ones(1), "y": np.ones(1)}, f"DATA: found the arrays x, y, {WANTED} {GIVE}"),
    ({}, f"DATA: found the arrays none, {WANTED} {GIVE}"),
    (
        {"x": np.array([{}], object)},
        f"DATA: found ValueError: Object arrays cannot be loaded when allow_pickle=False, {NUMBERS}",
    ),
    (b"PK\x03\x04 no archive", f"DATA: found BadZipFile: File is not a zip file, {NUMBERS}"),
]


@pytest.mark.parametrize(("given", "message"), MISTAKES)
def test_data_that_does_not_fit(given: Any, message: str, model: str, tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "data.npz"
    path.write_bytes(given) if isinstance(given, bytes) else np.savez(path, **given)
    out = tmp_path / "out"
    assert main(["quantize", model, "--target", "onnxruntime", "--data", str(path), "-o", str(out)]) == 2
    found = capsys.readouterr()
    assert (found.out, found.err) == ("", f"qfunc: {message.replace('DATA', str(path))}\n")
    assert not out.exists()


def test_arrays_of_unlike_lengths(tmp_path: Path, capsys: Any) -> None:
    model = exported(tmp_path / "two.pt2", Two(), torch.ones(6, 5), torch.ones(6, 5))
    path = tmp_path / "data.npz"
    np.savez(path, left=np.ones((6, 5), "f4"), right=np.ones((4, 5), "f4"))
    assert main(["quantize", model, "--target", "onnxruntime", "--data", str(path), "-o", str(tmp_path / "out")]) == 2
    wanted = "wanted as many examples for each input. Give the inputs of the same examples."
    assert capsys.readouterr().err == f"qfunc: {path}: found arrays of 4 and 6 examples, {wanted}\n"


def test_a_model_that_is_no_program(data: str, tmp_path: Path, capsys: Any) -> None:
    torch.save(NET.state_dict(), tmp_path / "weights.pt")
    for name in ("weights.pt", "nowhere.pt2"):
        path = tmp_path / name
        assert main(["quantize", str(path), "--target", "onnxruntime", "--data", data, "-o", str(tmp_path / "out")]) == 2
        err = capsys.readouterr().err
        assert err.startswith(f"qfunc: {path}: found ")
        assert err.count("\n") == 1


def test_targets_are_listed(capsys: Any) -> None:
    assert main(["targets", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"].removesuffix("(...)") for row in rows] == list(targets.__all__)
    assert {"name": "litert", "runtime": "litert >=2.3", "lowering": "TfliteLowering"} in rows
