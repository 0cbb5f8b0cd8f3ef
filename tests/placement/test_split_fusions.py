"""Ops inside a fused unit: a skip splits the unit, and rules that cannot select inside of one are refused."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch
from attrs import evolve
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.errors import DeployError, SpecError
from qfunc.specs import Everything, KeepFloat, Rule, Selector, Target, edit

LITERT = importlib.util.find_spec("ai_edge_litert") is not None
NAMES = [
    "onnxruntime",
    pytest.param("litert", marks=pytest.mark.skipif(not LITERT, reason="ai-edge-litert is not installed")),
]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.relu = nn.Conv2d(3, 8, 3, padding=1), nn.ReLU()
        self.conv, self.last = nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()

    def forward(self, x: Tensor) -> Any:
        y = self.relu(self.stem(x))
        return self.last(self.conv(y) + y)


def calibrated(target: Target) -> tuple[Any, list[Tensor]]:
    torch.manual_seed(0)
    batches = [torch.randn(2, 3, 8, 8) for _ in range(2)]
    # Of 7 bits, so that any x86-64 computes the same.
    return qfunc.calibrate(batches, progress=False)(qfunc.quantize(target)(Block().eval())), batches


def narrowed(name: str, *edits: Any) -> Target:
    return edit.pipe(getattr(targets, name), edit.weights(bits=7), *edits)


SPLITS = {
    "the activation of a convolution": (edit.name("relu"), ["stem", "relu", "conv", "add + last"], ["relu"]),
    "the activation of a sum": (edit.name("last"), ["stem + relu", "conv", "add", "last"], ["last"]),
    "a kind": (edit.op("relu"), ["stem", "relu", "conv", "add", "last"], ["relu", "last"]),
    "a class": (edit.module("ReLU"), ["stem", "relu", "conv", "add", "last"], ["relu", "last"]),
    "the root": (edit.name("stem"), ["stem + relu", "conv", "add + last"], ["stem + relu"]),
    "both": (edit.name("stem") | edit.name("relu"), ["stem + relu", "conv", "add + last"], ["stem + relu"]),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", SPLITS)
def test_skip_splits_a_unit_and_the_rest_runs_on_integers(name: str, case: str) -> None:
    selector, units, real = SPLITS[case]
    target = narrowed(name, edit.skip(selector))
    model, batches = calibrated(target)
    rows = qfunc.deploy(target)(model).report["units"]
    unit = {r["path"]: r["path"] if r["path"] == r["tensor"] else f"{r['path']} + {r['tensor']}" for r in rows}
    assert list(unit.values()) == units
    assert [unit[r["path"]] for r in rows if not r["integer"]] == real
    assert qfunc.verify(target)(model, batches).agreement.startswith("bit-exact: 0 of")


def test_a_rule_after_those_of_the_root_splits_nothing() -> None:
    base = targets.onnxruntime
    last = evolve(base, rules=(*base.rules, Rule(Everything(), input=KeepFloat(), output=KeepFloat())))
    units = qfunc.deploy(last)(calibrated(last)[0]).report["units"]
    assert [(u["path"], u["tensor"]) for u in units] == [("stem", "relu"), ("conv", "conv"), ("add", "last")]


def test_explain_names_the_rule_that_splits() -> None:
    target = narrowed("onnxruntime", edit.skip(edit.name("relu")))
    assert ("stem", "relu", "Name('relu') keeps 'relu' in float") in qfunc.explain(calibrated(target)[0]).misses


REFUSED: dict[str, tuple[Any, str]] = {
    "an input inside of a unit": (
        edit.inputs(edit.name("relu"), KeepFloat()),
        "target 'onnxruntime', rules: found Name('relu'), which matches 'relu', whose input is inside of the unit "
        "'stem' + 'relu', wanted an op with an input from outside of its unit. Name 'stem'; or leave 'relu' in float: "
        "edit.skip(edit.name('relu')).",
    ),
    "an output that is read as codes": (
        edit.outputs(edit.name("stem"), KeepFloat()),
        "target 'onnxruntime', rules: found Name('stem'), which matches the unit 'stem' + 'relu', and 'conv', 'add' read its "
        "output as codes, wanted an output that is read in float. Leave the inputs of its readers in float, too: "
        "edit.inputs(edit.name('conv') | edit.name('add'), KeepFloat()).",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_rules_without_effect_name_the_unit(case: str) -> None:
    change, message = REFUSED[case]
    with pytest.raises(SpecError) as e:
        qfunc.quantize(narrowed("onnxruntime", change))(Block().eval())
    assert str(e.value) == message


def test_the_advice_for_an_output_works() -> None:
    readers: Selector = edit.name("conv") | edit.name("add")
    target = narrowed("onnxruntime", edit.outputs(edit.name("stem"), KeepFloat()), edit.inputs(readers, KeepFloat()))
    model, batches = calibrated(target)
    assert [u["integer"] for u in qfunc.deploy(target)(model).report["units"]] == [False, False, False]
    assert qfunc.verify(target)(model, batches).agreement.startswith("bit-exact")


def test_a_format_of_integers_alone_refuses_the_float_op() -> None:
    target = edit.skip(edit.name("relu"))(targets.tosa)
    with pytest.raises(DeployError) as e:
        qfunc.deploy(target)(calibrated(target)[0])
    assert str(e.value) == (
        "tensor 'relu.nhwc': found RELU of real values, wanted codes on both sides: the profile PRO-INT has integers only. "
        "Quantize the inputs and the output of the op, or deploy Q/DQ ONNX by edit.deploy(QdqLowering())."
    )
