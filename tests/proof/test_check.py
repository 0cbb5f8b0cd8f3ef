"""check.py, in processes without torch and qfunc: it passes, and names the first tensor that differs."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from torch import nn

import qfunc
from qfunc import targets
from qfunc.__main__ import main
from qfunc.errors import DeployError, EmulationError
from qfunc.proof.check import check, tensors_of
from qfunc.specs import edit
from tests.lowering import drawn_ops
from tests.lowering.drawn_law import EXAMPLES, _calibrated
from tests.lowering.drawn_ops import Side, Trial, image, move, trials
from tests.lowering.onnxruntime import test_onnxruntime_ops
from tests.onnxruntime_target import ONNXRUNTIME, on_vnni
from tests.proof.packages import flipped, package, run_check, spoil_tensor

SPOILT = {"onnxruntime": "other", "litert": "other", "litert_reference": "other", "ncnn": "relu", "openvino": "relu"}
"""Target -> the first tensor that shows a byte in the weights: of the second convolution, or of the first one in ncnn."""


def built(name: str) -> Any:
    module = {"onnxruntime": "onnxruntime", "ncnn": "ncnn", "openvino": "openvino"}.get(name, "ai_edge_litert")
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module.replace('_', '-')} is not installed")
    return package(ONNXRUNTIME if name == "onnxruntime" else getattr(targets, name))


@pytest.mark.parametrize("name", SPOILT)
def test_a_package_passes_and_one_that_was_spoilt_does_not(name: str, tmp_path: Path) -> None:
    artifact = built(name)
    folder = artifact.save(tmp_path / "package")
    code, shown, said = run_check(folder, tmp_path)
    assert code == 0, shown + said
    rows = {line.split("  ")[0]: line.split()[-4:] for line in shown.splitlines()[3:-2]}
    assert rows.keys() >= {"x", "relu", "output 0"}
    assert all(row[1] == "0" for row in rows.values() if row[3] == "equal")
    assert shown.splitlines()[-1].startswith("equal: 0 of ")

    spoil_tensor(folder, "relu.codes")
    code, shown, said = run_check(folder, tmp_path)
    differs = "relu" if name != "openvino" else ""  # one code of a tensor that is close
    expected = (
        f"the first tensor that differs is {differs}" if differs else "changed since they were written: proof.safetensors"
    )
    assert (code, shown.splitlines()[-1]) == (1, f"FAILED: {expected}"), shown + said


@pytest.mark.parametrize("name", ["onnxruntime", "litert", "ncnn"])
def test_a_byte_of_the_weights_fails_and_names_the_tensor(name: str, tmp_path: Path) -> None:
    artifact = built(name)
    folder = artifact.save(tmp_path / "package")
    file = next(n for n in artifact.files if n.endswith((".onnx", ".tflite", ".bin")))
    place = 20 if name == "ncnn" else artifact.files[file].index(_weights(artifact, name)) + 40
    (folder / file).write_bytes(flipped(artifact.files[file], place))
    code, shown, said = run_check(folder, tmp_path)
    assert (code, shown.splitlines()[-1]) == (1, f"FAILED: the first tensor that differs is {SPOILT[name]}"), shown + said


def _weights(artifact: Any, name: str) -> bytes:
    if name == "onnxruntime":
        import onnx

        graph = onnx.load_from_string(artifact.files["model.onnx"]).graph
        return next(bytes(i.raw_data) for i in graph.initializer if i.name.startswith("other.weight") and len(i.dims) == 4)
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=artifact.files["model.tflite"])
    index = next(d["index"] for d in interpreter.get_tensor_details() if d["name"] == "other.weight")
    return bytes(interpreter.tensor(index)().tobytes())


def test_what_cannot_be_checked_is_one_line(tmp_path: Path) -> None:
    folder = package(ONNXRUNTIME).save(tmp_path / "package")
    (folder / "model.onnx").unlink()
    code, shown, said = run_check(folder, tmp_path)
    assert (code, shown) == (2, "")
    assert said.startswith("the check cannot be made: FileNotFoundError: ")
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("name", ["onnxruntime", "litert"])
def test_drawn_networks_pass(name: str, tmp_path: Path) -> None:
    """The runtime computes the same where inner tensors are outputs as well."""
    if name == "litert":
        pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed")
    target = ONNXRUNTIME if name == "onnxruntime" else targets.litert
    kinds, seen = drawn_ops.KINDS if name == "litert" else test_onnxruntime_ops.KINDS, Counter[str]()

    @settings(max_examples=EXAMPLES or 4, derandomize=not EXAMPLES, deadline=None, database=None,
              phases=[Phase.generate], suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(trials(kinds))
    def law(trial: Trial) -> None:
        model = _calibrated(Side([*trial.ops, nn.Conv2d(trial.shape[1], 2, 1)]).eval(), target, trial.shape)
        move(model, trial.seed, trial.spread)
        try:
            artifact = qfunc.prove(target)(model, image(model, trial.shape, trial.seed))
        except (DeployError, EmulationError):  # what the runtime has no form for
            return
        folder = artifact.save(tmp_path / "drawn")
        proof, tensors = json.loads(artifact.files["proof.json"]), tensors_of(artifact.files["proof.safetensors"])
        for row in check(proof, tensors, folder):
            assert row.good, (trial, row)
            seen[row.wanted] += row.elements
        shutil.rmtree(folder)

    law()
    assert seen["equal"]
    print(f"\n{name}: {dict(seen)} elements")


@on_vnni
def test_the_command_checks_the_proof(tmp_path: Path, capsys: Any) -> None:
    folder = package(ONNXRUNTIME).save(tmp_path / "package")
    assert main(["verify", str(folder)]) == 0
    assert "0 of 6,876 elements of 7 tensors differ, by onnxruntime" in capsys.readouterr().out
    spoil_tensor(folder, "other.codes")
    assert main(["verify", "--json", str(folder)]) == 1
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert rows[-1] == {"name": "proof", "outcome": "failed", "seen": "1 of 7 tensors differ, other first: 1 of 2,016"}


def test_the_command_leaves_out_what_another_processor_computes(tmp_path: Path, capsys: Any) -> None:
    folder = package(edit.cpu("wasm-simd")(targets.onnxruntime)).save(tmp_path / "package")
    spoil_tensor(folder, "other.codes")
    main(["verify", "--json", str(folder)])
    row = json.loads(capsys.readouterr().out)["rows"][-1]
    assert row["outcome"] == "skipped"
    assert row["seen"].startswith("1 of 7 tensors differ, other first: 1 of 2,016; emulated for wasm-simd, and this is ")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("runtime", "x", "runtime: found 'x', wanted one of onnxruntime, litert, ncnn, openvino."),
        ("files", ["../model.onnx"], "files[0]: found '../model.onnx', wanted a file of the package."),
        ("inputs", [{"tensor": "x"}], "inputs[0].tensor: found 'x', wanted a tensor of proof.safetensors."),
        ("optimise", 1, "optimise: found 1, wanted true or false."),
    ],
)
def test_a_damaged_proof_is_one_error(field: str, value: Any, message: str, tmp_path: Path, capsys: Any) -> None:
    folder = package(ONNXRUNTIME).save(tmp_path / "package")
    proof = json.loads((folder / "proof.json").read_text())
    (folder / "proof.json").write_text(json.dumps(proof | {field: value}))
    assert main(["verify", str(folder)]) == 2
    again = "Write the file again: it is damaged, or another program changed it."
    assert capsys.readouterr().err == f"qfunc: {folder / 'proof.json'}: {message} {again}\n"
