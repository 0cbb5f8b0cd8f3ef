"""Transforms are values: each public one compares, hashes, pickles and prints as its call, and still computes the same."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch import nn

import qfunc
from qfunc import targets
from qfunc.specs import edit

TARGET = targets.onnxruntime
BATCHES = [torch.ones(2, 3)]
# For each: how to make it, and another of the same function.
MADE: dict[str, tuple[Any, Any]] = {
    "capture": (lambda: qfunc.capture(leaves=(nn.Linear,)), lambda: qfunc.capture()),
    "quantize": (lambda: qfunc.quantize(TARGET, submodules="0"), lambda: qfunc.quantize(targets.litert, submodules="0")),
    "calibrate": (lambda: qfunc.calibrate(BATCHES, progress=False), lambda: qfunc.calibrate(BATCHES)),
    "emulate": (lambda: qfunc.emulate(TARGET), lambda: qfunc.emulate(targets.litert)),
    "deploy": (
        lambda: qfunc.deploy(TARGET, name="net", dynamic_axes={"x": {0: "n"}}),
        lambda: qfunc.deploy(TARGET, name="net", dynamic_axes={"x": {0: "m"}}),
    ),
    "verify": (lambda: qfunc.verify(TARGET), lambda: qfunc.verify(targets.litert)),
    "bypass": (lambda: qfunc.bypass(edit.op("linear")), lambda: qfunc.bypass(edit.op("conv"))),
    "compare": (lambda: qfunc.compare(BATCHES), lambda: qfunc.compare(list(BATCHES))),
    "sensitivity": (lambda: qfunc.sensitivity(BATCHES), lambda: qfunc.sensitivity(BATCHES, progress=False)),
    "correct_bias": (lambda: qfunc.correct_bias(BATCHES), lambda: qfunc.correct_bias(BATCHES, progress=False)),
    "gptq": (lambda: qfunc.gptq(BATCHES), lambda: qfunc.gptq(BATCHES, damping=0.1)),
    "smooth_quant": (lambda: qfunc.smooth_quant(BATCHES), lambda: qfunc.smooth_quant(BATCHES, alpha=0.25)),
    "awq": (lambda: qfunc.awq(TARGET, BATCHES), lambda: qfunc.awq(TARGET, BATCHES, candidates=5)),
    "rotate": (lambda: qfunc.rotate(), lambda: qfunc.rotate(1)),
    "stream": (
        lambda: qfunc.stream(targets.compressed_tensors("FP8"), "a", "b", BATCHES),
        lambda: qfunc.stream(targets.compressed_tensors("FP8"), "a", "c", BATCHES),
    ),
    "equalize": (lambda: qfunc.equalize(3.0), lambda: qfunc.equalize(2.0)),
    "save": (lambda: qfunc.save("a"), lambda: qfunc.save("b")),
    "load": (lambda: qfunc.load("a"), lambda: qfunc.load("b")),
    "compose": (
        lambda: qfunc.compose(qfunc.quantize(TARGET), qfunc.emulate(TARGET)),
        lambda: qfunc.compose(qfunc.quantize(TARGET), qfunc.emulate(targets.litert)),
    ),
}
WITH_BATCHES = ("calibrate", "compare", "sensitivity", "correct_bias", "gptq", "smooth_quant", "awq", "stream")
"""Transforms that are equal only if their batches are the same list, which a copy is not."""


@pytest.mark.parametrize("name", MADE)
def test_equal_calls_make_equal_transforms(name: str) -> None:
    make, other = MADE[name]
    assert make() == make()
    assert hash(make()) == hash(make())
    assert make() != other()
    assert len({make(), make(), other()}) == 2


@pytest.mark.parametrize("name", [n for n in MADE if n not in WITH_BATCHES])
def test_transforms_pickle(name: str) -> None:
    made = MADE[name][0]()
    assert pickle.loads(pickle.dumps(made)) == made


def test_a_pickled_transform_computes_the_same() -> None:
    net = nn.Linear(3, 2)
    steps = qfunc.compose(qfunc.quantize(TARGET), qfunc.calibrate(BATCHES, progress=False), qfunc.emulate(TARGET))
    again = pickle.loads(pickle.dumps(steps))
    assert torch.equal(again(net)(BATCHES[0]), steps(net)(BATCHES[0]))


def test_transforms_print_as_their_calls() -> None:
    assert repr(qfunc.equalize()) == "equalize()"
    assert repr(qfunc.equalize(3.0)) == "equalize(deviations=3.0)"
    assert repr(qfunc.save("folder")) == "save('folder')"
    assert repr(qfunc.emulate(TARGET)) == f"emulate({TARGET!r})"
    assert repr(qfunc.deploy(TARGET, name="net")) == f"deploy({TARGET!r}, name='net')"
    assert repr(qfunc.quantize(TARGET, submodules="0")) == f"quantize({TARGET!r}, submodules='0')"
