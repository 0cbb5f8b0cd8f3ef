"""The command: exit status, table, failures as programs, a file that is resumed, errors in one line."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from qfunc import targets
from qfunc.targets.runtimes import LiteRtRunner
from qfunc.testing.fuzz import campaign
from qfunc.testing.fuzz.__main__ import main
from qfunc.testing.fuzz.campaign import read_results, runnable_target
from qfunc.testing.fuzz.outcome import Outcome
from tests.installed import ROOT


@pytest.fixture
def outcomes(monkeypatch):
    """Outcomes by seed, which no process has to find."""
    made: dict[int, Outcome] = {}
    monkeypatch.setattr(campaign, "run_in_process", lambda program, target, seconds: made.get(program.seed, Outcome("exact")))
    return made


def run(*arguments):
    return main(["--target", "onnxruntime", *arguments])


def test_a_target_without_failures_ends_with_0(outcomes, capsys):
    assert run("--seed", "5", "--count", "3") == 0
    assert capsys.readouterr().out.startswith("onnxruntime: 3 networks, 0 bad; refused: 0 of ")


@pytest.mark.parametrize("kind", ["wrong file", "mismatch", "captures differ", "raw error", "time limit"])
def test_a_bad_outcome_ends_with_1_and_prints_a_program(outcomes, capsys, kind):
    outcomes[6] = Outcome(kind, "run", "RuntimeError", "failed to prepare")
    assert run("--seed", "5", "--count", "2") == 1
    out = capsys.readouterr().out
    assert f"# seed 6: {kind} at run: RuntimeError failed to prepare" in out
    assert "target = targets.onnxruntime" in out
    assert "onnxruntime: 2 networks, 1 bad" in out


def test_a_refusal_ends_with_0(outcomes):
    outcomes[6] = Outcome("refused", "deploy", "DeployError", "no roll", "roll")
    assert run("--seed", "6", "--count", "1") == 0


def test_one_program_is_printed_for_each_signature(outcomes, capsys):
    outcomes |= {s: Outcome("wrong file", "run", "RuntimeError", f"node {s} failed") for s in range(4)}
    assert run("--count", "4", "--jobs", "2") == 1
    assert capsys.readouterr().out.count("class Net") == 1


def test_a_file_is_resumed(outcomes, tmp_path, capsys):
    file = tmp_path / "results.jsonl"
    outcomes[1] = Outcome("raw error", "deploy", "KeyError", "'a'")
    assert run("--count", "2", "--file", str(file)) == 1
    first = file.read_text()
    assert [json.loads(line)["seed"] for line in first.splitlines()] == [0, 1]
    outcomes[0] = Outcome("mismatch", "verify", message="mismatch: 3")
    assert run("--count", "3", "--file", str(file)) == 1
    assert file.read_text().startswith(first)
    assert [r.seed for r in read_results(file, "onnxruntime")] == [0, 1, 2]
    assert read_results(file, "litert") == []
    assert "onnxruntime: 3 networks, 1 bad" in capsys.readouterr().out


def test_an_unknown_target_is_an_error_in_one_line(capsys):
    assert main(["--target", "litrt"]) == 2
    assert capsys.readouterr().err == (
        "qfunc: fuzz, --target: found 'litrt', wanted one of cmsis_nn, cmsis_nn_16x8, executorch_xnnpack, litert, "
        "litert_optimised, litert_reference, ncnn, onnx_qnn, onnxruntime, openvino, qdq, qnn_htp, tosa. Choose a target with a "
        "runtime.\n"
    )


def test_a_missing_runtime_is_an_error_in_one_line(monkeypatch, capsys):
    monkeypatch.setattr(LiteRtRunner, "missing", lambda self: "the package ai-edge-litert is gone")
    assert main(["--target", "litert"]) == 2
    assert capsys.readouterr().err == (
        "qfunc: fuzz, --target litert: found the package ai-edge-litert is gone, wanted a runtime to compare with. "
        "Install it, or choose another target.\n"
    )
    assert main(["--target", "tensorrt"]) == 2
    assert "found no runtime that runs here" in capsys.readouterr().err


def test_a_target_with_a_runtime_is_itself():
    assert runnable_target("onnxruntime") is targets.onnxruntime


@pytest.mark.thorough
def test_the_command_draws_and_runs_one_network():
    arguments = ("-m", "qfunc.testing.fuzz", "--target", "onnxruntime", "--seed", "1004", "--count", "1")
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("onnxruntime: 1 networks, 0 bad")
