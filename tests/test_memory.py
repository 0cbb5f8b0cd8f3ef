"""Memory of the steps, in float32 weights of the model: one more copy of these would be one more.

The network has 78 MB of weights, so that a part of the model that ONNX Runtime runs (about 45 MB) is 0.6 of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import qfunc
from qfunc import targets

ROOT = Path(__file__).resolve().parents[1]
MOST = {"quantize": 1.5, "calibrate": 1.7, "save": 1.0, "emulate": 1.7, "deploy": 2.0}
"""Step -> its peak: between what was measured (1.1, 1.3, 0.6, 1.3, 1.5) and one copy more."""


@pytest.mark.thorough
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_no_step_copies_the_weights_once_more() -> None:
    command = [sys.executable, str(ROOT / "benchmarks/memory.py"), "--one", "onnxruntime_nbits", "512", "6"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MALLOC_MMAP_THRESHOLD_": "65536"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment)
    found = json.loads(done.stdout)
    peaks = {step: found["steps"][step]["peak"] / found["weights"] for step in MOST}
    assert {step: peak for step, peak in peaks.items() if peak > MOST[step]} == {}
    assert found["files"] < found["weights"] / 5  # 4 bits of 32, and a scale in float32 for 32 weights


def test_an_emulation_holds_codes_in_place_of_float_weights() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 32)).eval()
    x = torch.randn(2, 64)
    for target, norms in ((targets.onnxruntime, 2), (targets.onnxruntime_nbits(4), 4)):  # biases of the latter are real
        calibrated = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(model))
        assert len(list(qfunc.emulate(target)(calibrated).parameters())) == norms
        assert len(list(calibrated.parameters())) >= 6
