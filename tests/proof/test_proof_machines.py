"""The same network on ARM64, under QEMU where neither torch nor qfunc is installed, and in WebAssembly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import qfunc
from qfunc import targets
from qfunc.lowering import Browser, Node, Qemu
from qfunc.specs import cpus, edit
from qfunc.targets.runtimes import LiteRtRunner, OnnxRuntimeRunner
from tests.lowering.machines.machines import require
from tests.proof.packages import X, calibrated, package, run_check, spoil_tensor


def target_of(name: str, cpu: cpus.Cpu) -> Any:
    target = getattr(targets, name)
    return edit.cpu(cpu)(target) if target.runtime.builds else target


@pytest.mark.parametrize(
    ("name", "cpu"),
    [*(("onnxruntime", cpu) for cpu in (cpus.arm64, cpus.arm64_dotprod, cpus.arm64_i8mm)),
     ("litert", cpus.arm64_dotprod), ("ncnn", cpus.arm64_dotprod)],
    ids=str,
)  # fmt: skip
def test_a_package_passes_on_arm64_and_one_that_was_spoilt_does_not(name: str, cpu: cpus.Cpu, tmp_path: Path) -> None:
    machine = Qemu(cpu)
    require(machine)
    if name != "onnxruntime":
        module = {"litert": "ai_edge_litert"}.get(name, name)
        pytest.importorskip(module, reason=f"{module.replace('_', '-')} is not installed")
    folder = package(target_of(name, cpu)).save(tmp_path / "package")
    python = machine.command()[:-1]
    code, shown, said = run_check(folder, tmp_path, python, machine.environment())
    assert code == 0, shown + said
    assert " on aarch64, emulated for " in shown
    spoil_tensor(folder, "relu.codes")
    code, shown, said = run_check(folder, tmp_path, python, machine.environment())
    assert (code, shown.splitlines()[-1]) == (1, "FAILED: the first tensor that differs is relu"), shown + said


@pytest.mark.parametrize("machine", [Node, Browser])
@pytest.mark.parametrize(("name", "runner"), [("onnxruntime", OnnxRuntimeRunner), ("litert", LiteRtRunner)])
def test_the_network_is_bit_exact_in_webassembly(name: str, runner: Any, machine: Any) -> None:
    there = machine()
    if name == "litert":
        pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed")
    require(there, "@litertjs/core" if name == "litert" else "")
    target = target_of(name, cpus.wasm_simd)
    report = qfunc.verify(target, runner(threads=1, machine=there))(calibrated(target), [X])
    assert report.verdict.startswith("bit-exact: 0 of "), report
    assert report.tensors == {"onnxruntime": 6, "litert": 5}[name]  # LiteRT makes the outputs of codes
