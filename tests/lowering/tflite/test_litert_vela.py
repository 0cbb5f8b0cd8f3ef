"""Arm Ethos-U: Vela compiles the .tflite of `targets.litert`, and every op on codes goes to the NPU.

Vela wants an older flatbuffers than the rest: it is looked for as the command `vela`, in an environment of its own.
"""

from __future__ import annotations

import importlib
import shutil
import subprocess

import pytest

import qfunc
from qfunc import targets
from tests.lowering.tflite.test_litert import INSTALLED, Residual, _calibrated

VELA = shutil.which("vela")


@pytest.mark.skipif(not INSTALLED, reason="ai-edge-litert is not installed")
@pytest.mark.skipif(VELA is None, reason="ethos-u-vela is not installed")
@pytest.mark.parametrize("chip", ["ethos-u55-128", "ethos-u85-256"])
def test_every_op_on_codes_runs_on_the_npu(chip, tmp_path):
    model, _ = _calibrated(Residual(), targets.litert, 2, 3, 16, 16)
    (tmp_path / "model.tflite").write_bytes(qfunc.deploy(targets.litert)(model).files["model.tflite"])
    command = [str(VELA), "model.tflite", "--accelerator-config", chip, "--output-dir", "out"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=300)
    schema = importlib.import_module("ai_edge_litert.schema_py_generated")
    held = schema.ModelT.InitFromPackedBuf((tmp_path / "out" / "model_vela.tflite").read_bytes(), 0)
    codes = [held.operatorCodes[o.opcodeIndex] for o in held.subgraphs[0].operators]
    names = {v: k for k, v in vars(schema.BuiltinOperator).items() if isinstance(v, int)}
    found = [code.customCode.decode() if code.customCode else names[code.builtinCode] for code in codes]
    assert found == ["QUANTIZE", "ethos-u", "DEQUANTIZE"]  # floats are codes, and codes floats, on the CPU
