"""Runtimes in processes on other processors: what goes in comes out, and what fails says so."""

from __future__ import annotations

import gc
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import qfunc
from qfunc import targets
from qfunc.errors import SpecError, VerifyError
from qfunc.lowering import Browser, Node, Qemu
from qfunc.lowering.machines.process import start
from qfunc.lowering.machines.worker import receive, send
from qfunc.specs import cpus, edit, from_json, to_json
from qfunc.targets.runtimes import LiteRtRunner, OnnxRuntimeRunner
from tests.lowering.machines.machines import MACHINES, SamePython, name, require

X = torch.randn(2, 3, 9, 7, generator=torch.Generator().manual_seed(0))


class Residual(nn.Module):
    """A convolution, and a linear layer on its averages."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.conv(x).relu().mean((2, 3)))


def calibrated(target: Any, model: nn.Module | None = None, x: torch.Tensor = X) -> Any:
    torch.manual_seed(0)
    return qfunc.calibrate([x], progress=False)(qfunc.quantize(target)((model or Residual()).eval()))


@pytest.mark.parametrize("arrays", [[], [np.zeros((2, 0, 3))], [np.float32(1.5), np.arange(6, dtype=np.int8).reshape(2, 3).T]])
def test_messages_arrive_as_they_were_sent(arrays: list[Any]) -> None:
    stream = BytesIO()
    send(stream, {"a": ["ü", None]}, arrays)
    stream.seek(0)
    header, found = receive(stream)
    assert header == {"a": ["ü", None]}
    assert len(found) == len(arrays)
    for a, b in zip(arrays, found, strict=True):
        assert np.array_equal(a, b)
        assert a.dtype == b.dtype
        assert np.shape(a) == b.shape
        assert b.flags.writeable
    with pytest.raises(EOFError):
        receive(stream)


def test_the_folder_of_machines_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QFUNC_MACHINES", "set/up")
    assert Qemu(cpus.arm64).folder == Node().folder == "set/up"
    monkeypatch.delenv("QFUNC_MACHINES")
    assert Qemu(cpus.arm64).folder == Browser().folder == "build/machines"


def test_another_process_computes_what_this_one_computes() -> None:
    artifact = qfunc.deploy(targets.onnxruntime)(calibrated(targets.onnxruntime))
    here, there = (OnnxRuntimeRunner(threads=1, machine=m).inside(artifact) for m in (None, SamePython()))
    assert there.units == here.units
    assert there.tensors == here.tensors
    (outputs, codes), (other_outputs, other_codes) = (view.run([X]) for view in (here, there))
    assert all(np.array_equal(a, b) for a, b in zip(outputs, other_outputs, strict=True))
    assert codes
    assert all(np.array_equal(codes[n], other_codes[n]) for n in codes)


@pytest.mark.thorough
def test_an_artifact_is_loaded_once_for_many_batches() -> None:
    artifact = qfunc.deploy(targets.onnxruntime)(calibrated(targets.onnxruntime))
    here, there = (OnnxRuntimeRunner(threads=1, machine=m) for m in (None, SamePython()))
    opened, run = start(SamePython()).count, there.loaded(artifact)
    gc.collect()  # the function alone holds the session
    for x in (X, -X):
        assert np.array_equal(run([x])[0], here.run(artifact, [x])[0])
    assert start(SamePython()).count == opened + 1


@pytest.mark.thorough
def test_sessions_that_nobody_holds_are_closed() -> None:
    model = qfunc.deploy(targets.onnxruntime)(calibrated(targets.onnxruntime)).files["model.onnx"]
    process, runner = start(SamePython()), OnnxRuntimeRunner(machine=SamePython())
    session = runner.session(model)
    number = session.number
    del session
    gc.collect()
    assert number in process.closed
    with pytest.raises(RuntimeError, match=r"^KeyError: "):
        process.call({"session": number, "options": {}}, [X.numpy()])
    assert process.closed == []


def test_errors_of_the_runtime_are_errors_here() -> None:
    artifact = qfunc.deploy(targets.onnxruntime)(calibrated(targets.onnxruntime))
    runner = OnnxRuntimeRunner(machine=SamePython())
    with pytest.raises(RuntimeError, match=r"^InvalidArgument: .*Got invalid dimensions"):
        runner.run(artifact, [X[:, :2]])
    assert len(runner.run(artifact, [X])) == 1


def test_a_process_that_ends_is_an_error_and_starts_again() -> None:
    machine = SamePython((sys.executable, "-c", "import sys; sys.exit('out of paper')"))
    for _ in range(2):
        with pytest.raises(VerifyError) as e:
            OnnxRuntimeRunner(machine=machine).session(b"")
        assert str(e.value) == (
            f"{machine}: found the process ended: out of paper, wanted an answer. Run the model on this machine first; then "
            "the runtime there fails, or the program that runs it."
        )


SET_UP = (
    "wanted one that is set up. Run .ci/machines FOLDER in a checkout, and set QFUNC_MACHINES=FOLDER; install Node, npm and "
    "Chromium as programs."
)


@pytest.mark.parametrize(
    ("machine", "found"),
    [
        (Qemu(cpus.arm64, "/nowhere"), "no file /nowhere/qemu/usr/bin/qemu-aarch64"),
        (Browser("/nowhere", sys.executable), "no folder /nowhere/node/node_modules/onnxruntime-web"),
        (Browser("/nowhere", "chromium-of-nowhere"), "no program chromium-of-nowhere"),
    ],
    ids=str,
)
def test_what_is_not_set_up_is_an_error(machine: Any, found: str) -> None:
    with pytest.raises(VerifyError) as e:
        OnnxRuntimeRunner(machine=machine).session(b"")
    assert str(e.value) == f"{machine}: found {found}, {SET_UP}"
    assert Node("/nowhere").missing() in ("no folder /nowhere/node/node_modules/onnxruntime-web", "no program node")


def test_a_runtime_that_the_other_process_lacks_is_an_error(tmp_path: Path) -> None:
    class Session:
        pass

    file = tmp_path / "session.py"
    file.write_text("import a_runtime_of_nowhere")
    with pytest.raises(VerifyError) as e:
        start(SamePython()).call({"file": str(file), "session": 0, "options": {}}, [])
    assert str(e.value) == f"{SamePython()}: found no package a_runtime_of_nowhere, {SET_UP}"


@pytest.mark.parametrize("kind", [Node, Browser])
def test_a_runtime_without_webassembly_is_an_error(kind: Any) -> None:
    require(kind())
    with pytest.raises(VerifyError) as e:
        start(kind()).call({"file": "targets/ncnn/session.py", "session": 0, "options": {}}, [])
    assert str(e.value) == f"{kind()}: found no ncnn for WebAssembly, {SET_UP}"


@pytest.mark.parametrize(("script", "said"), [("exit 3", "ended with 3"), ("sleep 60", "")])
def test_a_browser_that_loads_no_page_is_an_error(script: str, said: str, tmp_path: Path) -> None:
    program = tmp_path / "chromium"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    (tmp_path / "node/node_modules/onnxruntime-web").mkdir(parents=True)
    machine = Browser(str(tmp_path), str(program))
    if not said:
        process = start(machine)
        process.process.stdin.close()  # as when this process ends
        assert process.process.wait(5) == 0
        return
    with pytest.raises(VerifyError) as e:
        OnnxRuntimeRunner(machine=machine).session(b"")
    assert str(e.value) == (
        f"{machine}: found the process ended: {program} {said}, wanted an answer. Run the model on this machine first; then "
        "the runtime there fails, or the program that runs it."
    )


@pytest.mark.parametrize("machine", ["arm64", Qemu, 3])
def test_machines_are_values(machine: Any) -> None:
    with pytest.raises(SpecError, match=r"^OnnxRuntimeRunner.machine: found .*, wanted a machine or None. Give Qemu"):
        OnnxRuntimeRunner(machine=machine)


def test_litert_js_has_xnnpack_alone() -> None:
    with pytest.raises(SpecError) as e:
        LiteRtRunner("reference", machine=Node("/nowhere"))
    assert str(e.value) == (
        "LiteRtRunner.kernels: found 'reference', wanted 'xnnpack', which LiteRT.js runs. Leave it out for this machine."
    )
    with pytest.raises(SpecError) as e:
        edit.cpu("wasm-simd")(targets.litert_reference)
    assert str(e.value) == (
        "edit.cpu('wasm-simd'), target 'litert_reference': found the runtime litert with x86-64-vnni, x86-64-avxvnni, "
        "x86-64-avx2, x86-64-sse4, arm64, arm64-dotprod, arm64-i8mm, wanted a build for this processor. Choose one of these."
    )


def test_qemu_does_not_emulate_vnni() -> None:
    with pytest.raises(SpecError) as e:
        Qemu(cpus.x86_64_vnni)
    assert str(e.value) == (
        "Qemu.cpu: found Cpu('x86-64', features=('sse4', 'avx2', 'avxvnni', 'vnni')), wanted one of x86-64-sse4, x86-64-avx2, "
        "arm64, arm64-dotprod, arm64-i8mm. Use one of specs.cpus that QEMU emulates."
    )


def test_runners_with_machines_are_json() -> None:
    for machine in (Qemu(cpus.arm64_i8mm, "machines"), Node("machines"), Browser("machines", "chrome")):
        runner = OnnxRuntimeRunner(machine=machine)
        assert from_json(to_json(runner)) == runner
        assert eval(repr(runner), {**vars(qfunc.lowering), **vars(targets.runtimes), "Cpu": cpus.Cpu}) == runner


@pytest.mark.parametrize("machine", MACHINES, ids=name)
def test_each_processor_answers(machine: Any) -> None:
    require(machine)
    artifact = qfunc.deploy(targets.onnxruntime)(calibrated(targets.onnxruntime))
    here, there = (OnnxRuntimeRunner(threads=1, machine=m).inside(artifact) for m in (None, machine))
    outputs, codes = there.run([X])
    assert [v.shape for v in outputs] == [(2, 5)]
    assert codes.keys() == here.tensors == there.tensors
    assert there.units in (here.units, None)
    assert np.array_equal(codes["x.codes"], here.run([X])[1]["x.codes"])  # quantized alike on all of them
