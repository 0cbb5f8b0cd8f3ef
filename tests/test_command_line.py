"""python -m qfunc: what it prints, its exit codes, and one line for each mistake."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import nn

import qfunc
from qfunc import targets
from qfunc.__main__ import main, target_of
from qfunc.errors import SpecError
from qfunc.specs import diff, edit, to_json

ROOT = Path(__file__).parents[1]
TARGET = targets.onnxruntime
CURE = "Give a name in qfunc.targets, module:attribute, or a JSON file."


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5))
    x = torch.randn(2, 3, 6, 6)
    done = qfunc.calibrate([x])(qfunc.quantize(TARGET)(net))
    qfunc.save(tmp_path / "model")(done)
    return qfunc.deploy(TARGET)(done).save(tmp_path / "artifact")


def said(capsys: Any) -> tuple[str, str]:
    found = capsys.readouterr()
    return found.out, found.err


def test_a_process_of_its_own() -> None:
    command = [sys.executable, "-m", "qfunc"]
    shown = subprocess.run([*command, "show", "vitis"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (shown.returncode, shown.stdout, shown.stderr) == (0, f"{targets.vitis}\n", "")
    bad = "import sys; from qfunc.__main__ import main; sys.exit(main(['diff', 'tensorrt', 'snpe']))"
    cut = subprocess.run(
        f'{sys.executable} -c "{bad}" | true', cwd=ROOT, shell=True, capture_output=True, text=True, check=False
    )
    assert cut.stderr == ""


def test_targets_by_name_module_and_file(artifact: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text(to_json(targets.snpe))
    assert target_of("snpe") == target_of("qfunc.targets:snpe") == target_of(str(tmp_path / "mine.json")) == targets.snpe
    assert target_of("academic(4, 8)") == targets.academic(4, 8)
    assert target_of(str(artifact / "qfunc.json")) == target_of(str(artifact.parent / "model/qfunc.json")) == TARGET


def test_diff(capsys: Any) -> None:
    assert main(["diff", "tensorrt", "snpe"]) == 1
    assert said(capsys) == (diff(targets.tensorrt, targets.snpe) + "\n", "")
    assert main(["diff", "tensorrt", "tensorrt"]) == 0
    assert said(capsys) == ("", "")


def test_check(capsys: Any, monkeypatch: Any) -> None:
    assert main(["check", "tensorrt", "--examples", "1"]) == 0
    assert said(capsys) == ("tensorrt: every law holds on 1 networks\n", "")
    monkeypatch.setattr(targets, "tensorrt", edit.weights(bits=4)(targets.snpe), raising=True)
    monkeypatch.setattr("qfunc.testing.check_target", lambda *_, **__: (_ for _ in ()).throw(AssertionError("a law")))
    assert main(["check", "tensorrt"]) == 1
    assert said(capsys)[0] == "snpe: a law\n"
    monkeypatch.setitem(sys.modules, "qfunc.testing", None)
    assert main(["check", "tensorrt"]) == 2


def test_verify_what_was_saved(artifact: Path, capsys: Any) -> None:
    assert main(["verify", str(artifact)]) == 0
    out = said(capsys)[0]
    assert out.startswith("artifact for onnxruntime: every check passed\n")
    outcomes = [line.split()[:2] for line in out.splitlines()[3:]]
    assert outcomes == [[name, "ok"] for name in ("target", "model.onnx", "qparams", "run", "units")]
    assert main(["verify", str(artifact.parent / "model")]) == 0
    out = said(capsys)[0]
    assert out.startswith("quantized model for onnxruntime: every check passed\n")
    assert [line.split()[:2] for line in out.splitlines()[3:]] == [
        [name, "ok"] for name in ("target", "model.safetensors", "graph", "scales")
    ]


def test_verify_sees_what_is_broken(artifact: Path, capsys: Any) -> None:
    model = onnx.load(artifact / "model.onnx")
    scale = next(i for i in model.graph.initializer if i.name.endswith("weight.scale"))
    values = onnx.numpy_helper.to_array(scale) * 2
    scale.CopyFrom(onnx.numpy_helper.from_array(values, scale.name))
    (artifact / "model.onnx").write_bytes(model.SerializeToString())
    assert main(["verify", str(artifact)]) == 1
    out = said(capsys)[0]
    assert out.startswith("artifact for onnxruntime: FAILED\n")
    assert f"1 differ from the report: {scale.name}" in out
    model.graph.node[0].op_type = "NoSuchOp"
    (artifact / "model.onnx").write_bytes(model.SerializeToString())
    assert main(["verify", str(artifact)]) == 1
    assert "No Op registered for NoSuchOp" in said(capsys)[0]
    (artifact / "model.onnx").unlink()
    assert main(["verify", str(artifact)]) == 1
    assert "no such file" in said(capsys)[0]


@pytest.mark.parametrize(
    "target", [targets.vitis, targets.openvino, targets.snpe, targets.nnie, targets.onnx_qnn, targets.tengine_u8]
)
def test_artifacts_of_vendors(target: Any, tmp_path: Path, capsys: Any) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5))
    done = qfunc.calibrate([torch.randn(2, 3, 6, 6)])(qfunc.quantize(target)(net))
    place = qfunc.deploy(target)(done).save(tmp_path / "a")
    assert main(["verify", str(place)]) == 0
    assert f"artifact for {target.name}: every check passed" in said(capsys)[0]


def test_a_target_with_the_users_own_classes_is_skipped(artifact: Path, capsys: Any) -> None:
    text = (artifact / "qfunc.json").read_text()
    (artifact / "qfunc.json").write_text(text.replace("MinMax", "Mine"))
    assert "MinMax" in text
    assert main(["verify", str(artifact)]) == 0
    lines = [line.split()[:2] for line in said(capsys)[0].splitlines()]
    assert ["target", "skipped"] in lines


def test_wrong_uses_are_one_line_and_exit_code_2(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "text").mkdir()
    (tmp_path / "text/qfunc.json").write_text("[]")
    (tmp_path / "noisy.py").write_text("raise RuntimeError('two\\nlines')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    names = ", ".join(targets.__all__)
    wanted = "a directory with qfunc.json. Pass what artifact.save or qfunc.save wrote."
    for words, line in [
        (["show", "nope"], f"'nope': found no such target, wanted one of {names}. {CURE}"),
        (["show", "academic"], f"'academic': found a function: call it, as in 'academic(4, 8)', wanted a Target. {CURE}"),
        (["show", "academic(x, 1)"], None),
        (["show", "missing.json"], f"'missing.json': found no such file or directory, wanted a JSON file. {CURE}"),
        (["show", "json:dumps"], f"'json:dumps': found a function: call it, as in 'academic(4, 8)', wanted a Target. {CURE}"),
        (["show", "sys:path"], f"'sys:path': found a list, wanted a Target. {CURE}"),
        (["show", "noisy:x"], f"'noisy:x': found RuntimeError: two lines, wanted a module's attribute. {CURE}"),
        (
            ["show", "json:no"],
            f"'json:no': found AttributeError: module 'json' has no attribute 'no', wanted a module's attribute. {CURE}",
        ),
        (["show", "broken.json"], None),
        (["verify", "nowhere"], f"verify('nowhere'): found no such directory, wanted {wanted}"),
        (["verify", "."], f"verify('.'): found no qfunc.json, wanted {wanted}"),
        (["verify", "text"], f"verify('text'): found a qfunc.json without a target, wanted {wanted}"),
    ]:
        assert main(words) == 2
        out, err = said(capsys)
        assert out == ""
        assert err.startswith("qfunc: ")
        assert err.count("\n") == 1
        if line:
            assert err == f"qfunc: {line}\n"
    for words, line in [(["run", "x"], None), (["show"], "python -m qfunc show: the following arguments are required: A\n")]:
        with pytest.raises(SystemExit) as caught:
            main(words)
        assert caught.value.code == 2
        out, err = said(capsys)
        assert (out, err.count("\n"), line or err) == ("", 1, err)
    with pytest.raises(SpecError):
        target_of("nope")
