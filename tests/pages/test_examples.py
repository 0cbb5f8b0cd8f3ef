"""The three programs in examples/ run as a user would run them, and print what they promise."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from qfunc.targets.runtimes import OnnxRuntimeRunner

ROOT = Path(__file__).parents[2]


def printed(program: str, *arguments: object) -> str:
    """The standard output of an example, run from the root of the checkout; nothing else may go to standard error.

    The quickstart is an exception: if it uses 7-bit weights, it prints the reason there.
    """
    command = [sys.executable, "-W", "error", f"examples/{program}", *map(str, arguments)]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    reason = OnnxRuntimeRunner().comparable() if program == "quickstart.py" else ""
    assert (done.returncode, done.stderr) == (0, f"using 7-bit weights: {reason}\n" if reason else "")
    return done.stdout


@pytest.mark.thorough
def test_quickstart(tmp_path):
    output = printed("quickstart.py", tmp_path / "out")
    figures = dict(re.findall(r"^  (\S.*?) {2,}(\S.*)$", output, re.MULTILINE))
    number = {k: float(v.replace(",", "").split()[0]) for k, v in figures.items()}

    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["model.onnx", "qfunc.json"]
    assert (tmp_path / "out/model.onnx").stat().st_size == number["file, int8"] < number["file, float"] / 2
    assert number["accuracy, float"] > 95
    assert number["accuracy, simulated"] > number["accuracy, float"] - 2
    assert number["integer tensors compared"] == 8
    assert number["elements compared"] == 500 * (64 + 3 * 32 * 64 + 32 * 16 + 64 * 16 + 64 + 10 + 10)
    if "not comparable" not in output:
        assert output.startswith("onnxruntime: bit-exact: 0 of ")
        assert figures["mismatches, emulation and runtime"] == "0"
        assert figures["accuracy, emulated"] == figures["accuracy, ONNX Runtime"]


@pytest.mark.thorough
def test_custom_target():
    output = printed("custom_target.py")

    assert "chip: 7 quantized tensors" in output
    assert re.search(r"^emulation against simulation: [01] LSB at most$", output, re.MULTILINE)
    assert "artifact: model.onnx, " in output
    assert "  name: 'onnxruntime' -> 'chip'" in output


@pytest.mark.thorough
def test_check_my_target():
    output = printed("check_my_target.py")
    found, repaired = output.split("\n\n")

    assert "emulation and runtime disagree: at most 1 LSB" in found
    assert found.count("Block(kind=") == 2, "the counterexample did not shrink to one convolution and a linear layer"
    assert repaired == "the repaired simulator: no difference on 12 networks\n"


def test_the_simulator_of_the_example_finds_another_bug(monkeypatch):
    """The example does not depend on the one bug that is planted in it."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import check_my_target as example
    from custom_target import chip

    from qfunc.numerics.rounding import round_by
    from qfunc.testing.target_check import check_target

    def shift(acc, k):
        return round_by(acc.double() * 2.0**-k, "trunc").long()

    with pytest.raises(AssertionError, match="emulation and runtime disagree"):
        check_target(chip, run=example.simulator(shift), models=example.networks(), examples=12)
