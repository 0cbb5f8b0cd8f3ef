"""Edits that name an input, a weight or nothing, where they can change nothing: told when a model is quantized."""

from __future__ import annotations

from typing import Any

import qfunc
from qfunc.estimators import MinMax
from qfunc.specs import Attr, From, Fusion, FusionStep, KeepFloat, edit
from tests.wrong_uses.world import TARGET, Row


def quantized(change: edit.Edit, w: Any) -> object:
    """The network for the target with one more edit."""
    return qfunc.quantize(change(TARGET))(w.net)


# fmt: off
ROWS: tuple[Row, ...] = (
    ("a skip of an input", lambda w: quantized(edit.skip(edit.name("input")), w), "SpecError",
     "target 'onnxruntime', rules: found Name('input'), which matches only the input 'input', which '0' reads as codes, "
     "wanted a selector that matches an op. Leave its readers in float: edit.skip(edit.name('0')); or only their inputs: "
     "edit.inputs(edit.name('0'), KeepFloat())."),
    ("a skip of inputs as a kind", lambda w: quantized(edit.skip(edit.op("input")), w), "SpecError",
     "target 'onnxruntime', rules: found Op('input'), which matches only the input 'input', which '0' reads as codes, "
     "wanted a selector that matches an op. Leave its readers in float: edit.skip(edit.name('0')); or only their inputs: "
     "edit.inputs(edit.name('0'), KeepFloat())."),
    ("a skip of what follows an input", lambda w: quantized(edit.skip(From(edit.name("input"))), w), "SpecError",
     "target 'onnxruntime', rules: found From(Name('input')), which matches only the input 'input', which '0' reads as "
     "codes, wanted a selector that matches an op. Leave its readers in float: edit.skip(edit.name('0')); or only their "
     "inputs: edit.inputs(edit.name('0'), KeepFloat())."),
    ("a skip of constants", lambda w: quantized(edit.skip(edit.op("constant")), w), "SpecError",
     "target 'onnxruntime', rules: found Op('constant'), which matches only weights, wanted a selector that matches an "
     "op. Name the ops that read them."),
    ("the input of an input", lambda w: quantized(edit.inputs(edit.name("input"), KeepFloat()), w), "SpecError",
     "target 'onnxruntime', rules: found Name('input'), which matches only the input 'input', which has no slot except "
     "its output, wanted a selector that matches an op. Name an op that reads it: '0'."),
    ("a weight of an op that has none", lambda w: quantized(edit.add(edit.name("2"), weight=KeepFloat()), w), "SpecError",
     "target 'onnxruntime', rules: found Name('2'), which matches ops, but has a value only for their weight, wanted a "
     "slot that one of them has. Use one of: input, output."),
    ("a rule for edges that its ops do not have",
     lambda w: quantized(edit.add(edit.op("linear"), input=KeepFloat(), edges=edit.name("0")), w), "SpecError",
     "target 'onnxruntime', rules: found Name('0'), which matches no input of the ops of its rule, wanted inputs of these "
     "ops. Use one of: 2."),
    ("a rule for edges of a name that is nowhere",
     lambda w: quantized(edit.add(edit.op("linear"), input=KeepFloat(), edges=edit.name("x")), w), "SpecError",
     "target 'onnxruntime', rules: found Name('x'), which matches nothing in the model, wanted a selector that matches an "
     "op or a tensor. Use one of: 0, 1, 2, 3, input."),
    ("one of two names is nowhere", lambda w: quantized(edit.skip(edit.name("0") | edit.name("head")), w), "SpecError",
     "target 'onnxruntime', rules: found Name('head'), which matches nothing in the model, wanted a selector that matches "
     "an op or a tensor. Use one of: 0, 1, 2, 3, input."),
    ("all but a name that is nowhere", lambda w: quantized(edit.skip(edit.op("conv") & ~edit.name("head")), w), "SpecError",
     "target 'onnxruntime', rules: found Name('head'), which matches nothing in the model, wanted a selector that matches "
     "an op or a tensor. Use one of: 0, 1, 2, 3, input."),
    ("an attribute that no op has", lambda w: quantized(edit.skip(edit.op("conv") & Attr("dephtwise", True)), w), "SpecError",
     "target 'onnxruntime', rules: found 'dephtwise', which is not a known attribute of an op, wanted an attribute of the "
     "vocabulary. Use one of: depthwise, eps, decimals."),
    ("a fusion of a name that is nowhere",
     lambda w: quantized(edit.fuse(Fusion(edit.op("conv") & edit.name("head"), FusionStep(edit.op("relu")))), w), "SpecError",
     "target 'onnxruntime', fusions: found Name('head'), which matches nothing in the model, wanted a selector that "
     "matches an op or a tensor. Use one of: 0, 1, 2, 3, input."),
    ("an override of weights where none are",
     lambda w: quantized(edit.override(edit.name("2"), weights={"bits": 4}), w), "SpecError",
     "target 'onnxruntime', overrides: found Name('2'), which matches no quantized weight, wanted a selector that matches "
     "one. Use one of: 0.weight, 3.weight."),
    ("an override of weights by the name of a bias",
     lambda w: quantized(edit.override(edit.name("0.bias"), weights={"bits": 4}), w), "SpecError",
     "target 'onnxruntime', overrides: found Name('0.bias'), which matches no quantized weight, wanted a selector that "
     "matches one. Use one of: 0.weight, 3.weight."),
    ("an override of activations by the name of a weight",
     lambda w: quantized(edit.override(edit.name("0.weight"), activations={"estimator": MinMax()}), w), "SpecError",
     "target 'onnxruntime', overrides: found Name('0.weight'), which matches no quantized activation, wanted a selector "
     "that matches one. Use one of: input, 1, 3."),
    ("an override of activations by the op that reads one",
     lambda w: quantized(edit.override(edit.name("2"), activations={"estimator": MinMax()}), w), "SpecError",
     "target 'onnxruntime', overrides: found Name('2'), which matches no quantized activation, wanted a selector that "
     "matches one. Name '0', because its rule quantizes their input '1'."),
)
# fmt: on
