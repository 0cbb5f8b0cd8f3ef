"""Every target's artifact of one small exact network, byte by byte; `python tests/golden/artifacts.py` rewrites them."""

from __future__ import annotations

import difflib

import pytest
import torch

import qfunc
from tests.golden.artifacts import PLACE, TARGETS, Net, deployed, dyadic, readable

BINARY = (".onnx", ".tflite", ".pte", ".tosa", ".bin")


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(TARGETS))
def test_an_artifact_is_what_it_was(name: str) -> None:
    files = deployed(TARGETS[name])
    texts = {n: content.decode() for n, content in files.items() if not n.endswith(BINARY)} | readable(files)
    for file, text in sorted(texts.items()):  # what a person can read first
        stored = (PLACE / name / file).read_text() if (PLACE / name / file).exists() else ""
        difference = "\n".join(list(difflib.unified_diff(stored.splitlines(), text.splitlines(), lineterm="", n=0))[:20])
        assert stored == text, f"{name}/{file} differs; if that is wanted, run tests/golden/artifacts.py\n{difference}"
    assert {p.name for p in (PLACE / name).iterdir()} == files.keys() | readable(files).keys()
    for file, content in files.items():
        assert (PLACE / name / file).read_bytes() == content, f"{name}/{file}"


def test_no_artifact_is_left_of_a_target_that_is_gone() -> None:
    assert {p.name for p in PLACE.iterdir()} == TARGETS.keys()


@pytest.mark.parametrize("name", ["tensorrt", "nnie", "vitis", "litert"])
def test_two_deploys_give_the_same_bytes(name: str) -> None:
    target = TARGETS[name]
    calibrated = qfunc.calibrate([dyadic((2, 3, 16, 8), 7)], progress=False)(
        qfunc.quantize(target)(Net(ceil=name == "nnie").eval())
    )
    first, second = (qfunc.deploy(target)(calibrated).files for _ in range(2))
    assert dict(first) == dict(second)


def test_one_file_serves_the_kernel_sets_of_litert() -> None:
    files = [(PLACE / name / "model.tflite").read_bytes() for name in ("litert", "litert_reference", "litert_optimised")]
    assert files[0] == files[1] == files[2]


def test_the_float_network_is_exact_in_any_order() -> None:
    # The same values as in float64, where nothing is rounded: so no order of summation can matter.
    x = dyadic((2, 3, 16, 8), 101)
    assert torch.equal(Net()(x).double(), Net().double()(x.double()))
    assert Net()(x).abs().max() > 1
