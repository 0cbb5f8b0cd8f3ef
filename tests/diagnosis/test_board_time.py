"""BoardTime: a folder that another machine times, with neither torch nor qfunc."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import qfunc
from qfunc import targets
from qfunc.diagnosis import BoardTime
from qfunc.errors import SpecError, VerifyError
from qfunc.specs import Everything, edit
from qfunc.targets.runtimes import ExecuTorchRunner, OnnxRuntimeRunner
from tests.proof.packages import X, calibrated

RUNTIMES = ("onnxruntime", "litert", "ncnn", "openvino")
BLOCKED = "import sys\nsys.modules['torch'] = sys.modules['qfunc'] = None\n"


def board(folder: Path) -> str:
    """Run the program of a folder in a process without torch and qfunc, from another folder."""
    code = f"{BLOCKED}import runpy\nsys.argv = ['times.py', {str(folder)!r}]\n"
    code += f"runpy.run_path({str(folder / 'times.py')!r}, run_name='__main__')"
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=folder.parent)
    assert not done.returncode, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", RUNTIMES)
def test_files_of_each_runtime_are_timed(name: str) -> None:
    target = getattr(targets, name)
    if missing := getattr(target.runtime.runner, "missing", str)():
        pytest.skip(missing)
    files = [qfunc.deploy(t)(calibrated(t)) for t in (target, edit.skip(Everything())(target))]
    clock = BoardTime(target.runtime.runner, board, runs=3)
    for batch in (X[:1], X):
        assert [seconds > 0 for seconds in clock(files, [batch])] == [True, True]


def test_a_folder_holds_the_files_the_inputs_and_the_settings() -> None:
    """The artifacts byte for byte, and the inputs bit for bit."""
    seen: dict[str, Any] = {}

    def run(folder: Path) -> str:
        seen.update((path.name, path.read_bytes()) for path in folder.iterdir())
        with np.load(folder / "inputs.npz") as arrays:
            seen["inputs"] = {name: arrays[name] for name in arrays.files}
        return "a line of the board\n[0.5, 2]\n"

    target = targets.onnxruntime
    file = qfunc.deploy(target)(calibrated(target))
    clock = BoardTime(OnnxRuntimeRunner(optimise=False), run, threads=4, runs=7, seconds=0.5)
    assert clock([file, file], [X, X[:2]]) == [0.5, 2.0]
    assert seen["0.onnx"] == seen["1.onnx"] == file.files["model.onnx"]
    assert [np.array_equal(seen["inputs"][f"input{k}"], x.numpy()) for k, x in enumerate((X, X[:2]))] == [True, True]
    plan = json.loads(seen["times.json"])
    assert {k: plan[k] for k in ("runtime", "threads", "runs", "seconds")} == {
        "runtime": "onnxruntime", "threads": 4, "runs": 7, "seconds": 0.5,
    }  # fmt: skip
    assert plan["models"] == [{"files": [f"{k}.onnx"], "settings": {"optimise": False}} for k in range(2)]


def test_a_board_decides_the_placement() -> None:
    """A board with products of 0.1 ms in float and 10 ms on integers has all of them in float but one."""

    def slow_on_integers(folder: Path) -> str:
        sizes = []
        for model in json.loads((folder / "times.json").read_text())["models"]:
            content = (folder / model["files"][0]).read_bytes()
            sizes.append(1e-4 + 1e-2 * content.count(b"DequantizeLinear"))
        return json.dumps(sizes)

    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3))
    clock = BoardTime(OnnxRuntimeRunner(), slow_on_integers)
    phone = edit.cpu("arm64-dotprod")(targets.onnxruntime)
    found = qfunc.measure_placement(phone, (torch.randn(1, 3, 12, 12),), progress=False, latency=clock)(model)
    kept = {time.name: len(time.plan.floats) if time.plan else None for time in found.times}
    assert kept["measured"] == 2
    assert found.remark


@pytest.mark.parametrize("printed", ["", "no JSON", "[1]", "[1, 2, 3]", "[1, 0]", "[1, NaN]", '[1, "2"]', "[1, true]", "{}"])
def test_another_answer_of_the_board_is_refused(printed: str) -> None:
    file = qfunc.deploy(targets.onnxruntime)(calibrated(targets.onnxruntime))
    with pytest.raises(VerifyError, match=r"BoardTime(.|\n)*a line of JSON with 2 times(.|\n)*times.py"):
        BoardTime(OnnxRuntimeRunner(), lambda folder: printed)([file, file], [X])


def test_other_arguments_are_refused() -> None:
    for runner in (None, "onnxruntime", ExecuTorchRunner()):
        with pytest.raises(SpecError, match=r"BoardTime\.runner"):
            BoardTime(runner, board)
    with pytest.raises(SpecError, match=r"BoardTime\.run"):
        BoardTime(OnnxRuntimeRunner(), "ssh board")  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="threads"):
        BoardTime(OnnxRuntimeRunner(), board, threads=0)
