"""python -m qfunc: what it prints, its exit codes, and one line for each mistake."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import qfunc
from qfunc import targets
from qfunc.__main__ import main
from qfunc.command_line.target_argument import target_of
from qfunc.errors import SpecError
from qfunc.proof.saved_check import check_saved
from qfunc.specs import diff, edit, to_json
from qfunc.targets.runtimes import TransformersRunner
from tests.onnxruntime_target import ONNXRUNTIME

ROOT = Path(__file__).parents[1]
TARGET = ONNXRUNTIME
CURE = "Give a name in qfunc.targets, module:attribute, or a JSON file."
AGAIN = "Write the file again: it is damaged, or another program changed it."


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


@pytest.mark.thorough
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
    assert "model.onnx: changed" in out
    assert f"1 differ from the report: {scale.name}" in out
    model.graph.node[0].op_type = "NoSuchOp"
    (artifact / "model.onnx").write_bytes(model.SerializeToString())
    assert main(["verify", str(artifact)]) == 1
    assert "No Op registered for NoSuchOp" in said(capsys)[0]
    (artifact / "model.onnx").unlink()
    assert main(["verify", str(artifact)]) == 1
    assert "model.onnx: no such file" in said(capsys)[0]


def test_a_runtime_is_not_started_on_a_damaged_file(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    done = qfunc.calibrate([torch.randn(2, 3, 6, 6)], progress=False)(qfunc.quantize(targets.tosa)(net))
    place = qfunc.deploy(targets.tosa)(done).save(tmp_path / "a")
    content = bytearray((place / "model.tosa").read_bytes())
    content[len(content) // 2] ^= 1
    (place / "model.tosa").write_bytes(content)
    assert [(r.name, r.outcome, r.seen) for r in check_saved(place).rows] == [
        ("target", "ok", "tosa"),
        ("files", "failed", "model.tosa: changed"),
        ("run", "skipped", "the files are not those that were deployed"),
    ]


@pytest.mark.parametrize(
    "target", [targets.vitis, targets.openvino, targets.snpe, targets.nnie, targets.onnx_qnn, targets.tengine_u8]
)
def test_artifacts_of_vendors(target: Any, tmp_path: Path, capsys: Any) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5))
    done = qfunc.calibrate([torch.randn(2, 3, 6, 6)])(qfunc.quantize(target)(net))
    place = qfunc.deploy(target)(done).save(tmp_path / "a")
    assert main(["verify", str(place)]) == 0
    lines = said(capsys)[0].splitlines()
    skipped = sum("skipped" in line for line in lines[1:])  # what is not installed, too
    passed = f"no check failed, {skipped} skipped" if skipped else "every check passed"
    assert lines[0] == f"artifact for {target.name}: {passed}"


@pytest.mark.parametrize(
    "target",
    [targets.gguf("Q4_0"), targets.gguf("Q6_K"), targets.onnxruntime_nbits(4, 32), targets.openvino_blocks(4, 32),
     targets.compressed_tensors("NVFP4A16"), targets.compressed_tensors("W8A8")],
    ids=lambda t: t.name,
)  # fmt: skip
def test_artifacts_with_weights_in_blocks(target: Any, tmp_path: Path, capsys: Any) -> None:
    """The report has no scales of blocks: they are in the files."""
    net = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256))
    done = qfunc.calibrate([torch.randn(3, 256)], progress=False)(qfunc.quantize(target)(net))
    place = qfunc.deploy(target)(done).save(tmp_path / "a")
    assert main(["verify", str(place)]) == 0
    assert said(capsys)[0].splitlines()[0].startswith(f"artifact for {target.name}: ")
    file = next(p for p in sorted(place.iterdir()) if p.name.startswith("model."))
    for given in (place, file):  # a file of the artifact names it, too
        assert main(["inspect", str(given)]) == 0
        lines = said(capsys)[0].splitlines()
        assert lines[0].startswith(f"{target.name}: ")
        assert lines[0].endswith(" of 3 units on integers, 2 quantized tensors")
        assert sum("in blocks" in line for line in lines) == (0 if target.name.endswith("w8a8") else 2)


def test_a_checkpoint_without_an_architecture_is_not_run(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    """Also where compressed-tensors is installed: the file is for an engine that knows the model."""
    monkeypatch.setattr(TransformersRunner, "missing", lambda _: "")
    target, net = targets.compressed_tensors("NVFP4A16"), nn.Sequential(nn.Linear(64, 32))
    done = qfunc.calibrate([torch.randn(3, 64)], progress=False)(qfunc.quantize(target)(net))
    assert main(["verify", str(qfunc.deploy(target)(done).save(tmp_path / "a"))]) == 0
    lines = [" ".join(line.split()) for line in said(capsys)[0].splitlines()]
    assert "run skipped config.json has no architectures, by which transformers finds the model" in lines


def test_a_target_with_the_users_own_classes_is_skipped(artifact: Path, capsys: Any) -> None:
    text = (artifact / "qfunc.json").read_text()
    (artifact / "qfunc.json").write_text(text.replace("MinMax", "Mine"))
    assert "MinMax" in text
    assert main(["verify", str(artifact)]) == 0
    lines = [line.split()[:2] for line in said(capsys)[0].splitlines()]
    assert ["target", "skipped"] in lines
    report = json.loads((artifact / "qfunc.json").read_text())
    report["files"] = {"chip.bin": report["files"]["model.onnx"]}
    (artifact / "qfunc.json").write_text(json.dumps(report))
    (artifact / "model.onnx").rename(artifact / "chip.bin")  # only their program knows what their lowering writes
    assert main(["verify", str(artifact)]) == 0
    assert said(capsys)[0].splitlines()[0] == "artifact for onnxruntime: no check failed, 1 skipped"
    (artifact / "chip.bin").unlink()
    assert main(["verify", str(artifact)]) == 1


def deployed(target: Any, place: Path) -> Path:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5))
    done = qfunc.calibrate([torch.randn(1, 3, 6, 6)])(qfunc.quantize(target)(net))
    qfunc.save(place / "model")(done)
    return qfunc.deploy(target)(done).save(place / target.name)


def rows(place: Path, capsys: Any) -> tuple[int, dict[str, str]]:
    code = main(["verify", str(place)])
    return code, dict(line.split()[:2] for line in said(capsys)[0].splitlines()[3:])  # type: ignore[misc]


@pytest.mark.parametrize("name", ["qdq", "onnx_qnn", "tosa", "ncnn", "openvino"])
def test_verify_runs_what_the_targets_runtime_reads(name: str, tmp_path: Path, capsys: Any) -> None:
    target = getattr(targets, name)
    place = deployed(target, tmp_path)
    own = [] if name in ("tosa", "ncnn") else ["model.onnx", "qparams"]
    missing = target.runtime.runner.missing() if hasattr(target.runtime.runner, "missing") else ""
    wanted = ["target", *(own or ["files"]), "run", *(["units"] if name == "onnx_qnn" else [])]
    code, found = rows(place, capsys)
    assert (code, [*found]) == (0, wanted)
    assert found["run"] == ("skipped" if missing else "ok")
    for file in place.iterdir():
        if file.name != "qfunc.json":
            file.unlink()
    assert rows(place, capsys) == (1, {"target": "ok", "files": "failed", "run": "skipped"})


def test_verify_says_what_a_file_for_another_runtime_lacks(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    place = deployed(targets.tosa, tmp_path)
    runner = type(targets.tosa.runtime.runner)
    monkeypatch.setattr(runner, "missing", lambda _: "no package")
    assert main(["verify", str(place)]) == 0
    assert said(capsys)[0].splitlines()[0] == "artifact for tosa: no check failed, 1 skipped"
    monkeypatch.setattr(runner, "missing", lambda _: "")
    monkeypatch.setattr(runner, "_model", lambda _: None)
    (place / "model.tosa").unlink()
    assert rows(place, capsys) == (1, {"target": "ok", "files": "failed", "run": "skipped"})
    report = json.loads((place / "qfunc.json").read_text())
    del report["files"]  # as in reports of earlier releases
    (place / "qfunc.json").write_text(json.dumps(report))
    assert rows(place, capsys) == (1, {"target": "ok", "files": "ok", "run": "failed"})


def test_verify_looks_at_scales_that_are_powers_of_two(tmp_path: Path, capsys: Any) -> None:
    place = deployed(targets.vitis, tmp_path).parent / "model"
    assert rows(place, capsys)[1]["scales"] == "ok"
    tensors = load_file(place / "model.safetensors")
    tensors["quantizers.0.weight.log2_t"] = torch.tensor(math.nan)
    save_file(tensors, place / "model.safetensors")
    assert main(["verify", str(place)]) == 1
    assert "7 scales, 1 not finite and positive: quantizers.0.weight.log2_t" in said(capsys)[0]


def test_verify_of_a_report_without_units(artifact: Path, capsys: Any) -> None:
    report = json.loads((artifact / "qfunc.json").read_text())
    del report["units"]
    (artifact / "qfunc.json").write_text(json.dumps(report))
    assert rows(artifact, capsys)[0] == 1


def test_wrong_uses_are_one_line_and_exit_code_2(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "marks.json").write_bytes(b"\xff\xfe{")
    (tmp_path / "text").mkdir()
    (tmp_path / "text/qfunc.json").write_text("[]")
    (tmp_path / "noisy.py").write_text("raise RuntimeError('two\\nlines')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    names = ", ".join(targets.__all__)
    wanted = "a directory with qfunc.json. Pass what artifact.save or qfunc.save wrote."
    for words, line in [
        (["show", "nope"], f"'nope': found no such target, wanted one of {names}. {CURE}"),
        (["show", "academic"], "'academic': found a function, wanted a Target. Call it, as in 'academic(4, 8)'."),
        (
            ["show", "academic(x, 1)"],
            "'academic(x, 1)': found the arguments (x, 1), wanted numbers. Write numbers, as in 'academic(4, 8)'.",
        ),
        (["show", "vitis()"], "'vitis()': found arguments for a target, wanted only its name. Write vitis."),
        (["show", "marks.json"], f"marks.json: found bytes that are not UTF-8, at 0, wanted UTF-8 text. {AGAIN}"),
        (["show", "missing.json"], f"'missing.json': found no such file or directory, wanted a JSON file. {CURE}"),
        (
            ["show", "json:dumps"],
            "'json:dumps': found a function, wanted a Target. Assign its result to a name in that module.",
        ),
        (["show", "sys:path"], f"'sys:path': found a list, wanted a Target. {CURE}"),
        (["show", "noisy:x"], f"'noisy:x': found RuntimeError: two lines, wanted a module's attribute. {CURE}"),
        (
            ["show", "json:no"],
            f"'json:no': found AttributeError: module 'json' has no attribute 'no', wanted a module's attribute. {CURE}",
        ),
        (
            ["show", "broken.json"],
            "broken.json: found no JSON (Expecting property name enclosed in double quotes: line 1 column 2 (char 1)), "
            f"wanted JSON text. {AGAIN}",
        ),
        (["verify", "nowhere"], f"verify('nowhere'): found no such directory, wanted {wanted}"),
        (["verify", "."], f"verify('.'): found no qfunc.json, wanted {wanted}"),
        (["verify", "text"], f"text/qfunc.json: found a list of 0, wanted an object. {AGAIN}"),
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
