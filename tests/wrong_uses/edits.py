"""Edits of targets, and their selectors."""

from __future__ import annotations

from torch import nn

from qfunc import lowering
from qfunc.estimators import Mse
from qfunc.functions import Lsq
from qfunc.specs import Int, PerTensor, Scheme, Trait, edit
from tests.wrong_uses.world import TARGET, Row

# fmt: off
ROWS: tuple[Row, ...] = (
    ("weights of bits as text", lambda w: edit.weights(bits="4"), "SpecError",
     "Override.bits: found '4', wanted an int in [2, 16] or None. Give such a number."),
    ("weights of no bits", lambda w: edit.weights(bits=0), "SpecError",
     "Override.bits: found 0, wanted an int in [2, 16] or None. Give such a number."),
    ("a word that edits do not know", lambda w: edit.weights(bit=4), "SpecError",
     "edit.weights: found bit, wanted bits, estimator, function, signed, symmetric, granularity, power_of_two, "
     "rounding, division. Use those keywords."),
    ("an edit that says nothing", lambda w: edit.weights(), "SpecError",
     "edit.weights: found nothing to change, wanted at least one keyword. Give bits, an estimator, a function, or a "
     "property of the scheme."),
    ("activations that say nothing", lambda w: edit.activations(), "SpecError",
     "edit.activations: found nothing to change, wanted at least one keyword. Give bits, an estimator, a function, or a "
     "property of the scheme."),
    ("the class of an estimator", lambda w: edit.weights(estimator=Mse), "SpecError",
     "SetAlgorithm.estimator: found <class 'qfunc.estimators.mse.Mse'>, wanted a frozen value with the methods init, "
     "update, finalize or None. Call it: Mse()."),
    ("the name of an estimator", lambda w: edit.activations(estimator="mse"), "SpecError",
     "SetAlgorithm.estimator: found 'mse', wanted a frozen value with the methods init, update, finalize or None. Add "
     "init, update, finalize."),
    ("a function as estimator", lambda w: edit.weights(estimator=Lsq()), "SpecError",
     "SetAlgorithm.estimator: found Lsq(gradient_scale=True, batch_axis=None), wanted a frozen value with the methods "
     "init, update, finalize or None. Add update, finalize."),
    ("an estimator as function", lambda w: edit.weights(function=Mse()), "SpecError",
     "SetAlgorithm.function: found Mse(p=2.0, candidates=95, apart=True, widest=1.0), wanted a frozen value with the methods "
     "init, apply, export or None. Add apply, export."),
    ("the class of a function", lambda w: edit.activations(function=Lsq), "SpecError",
     "SetAlgorithm.function: found <class 'qfunc.functions.lsq.Lsq'>, wanted a frozen value with the methods init, "
     "apply, export or None. Call it: Lsq()."),
    ("granularity by name", lambda w: edit.weights(granularity="per_channel"), "SpecError",
     "SchemeChange.granularity: found 'per_channel', wanted PerTensor or PerChannel or PerBlock or PerToken or None. "
     "Give a value such as PerTensor(...)."),
    ("granularity by class", lambda w: edit.weights(granularity=PerTensor), "SpecError",
     "SchemeChange.granularity: found <class 'qfunc.specs.scheme.PerTensor'>, wanted PerTensor or PerChannel or "
     "PerBlock or PerToken or None. Call it: PerTensor(...)."),
    ("symmetry by text", lambda w: edit.weights(symmetric="yes"), "SpecError",
     "SchemeChange.symmetric: found 'yes', wanted bool or None. Give True or False."),
    ("an edit of a model", lambda w: edit.weights(bits=4)(nn.ReLU()), "SpecError",
     "edit.pipe: found ReLU(), wanted a Target first. Write edit.pipe(target, edit.weights(bits=4), ...)."),
    ("an edit of a name", lambda w: edit.weights(bits=4)("tensorrt"), "SpecError",
     "edit.pipe: found 'tensorrt', wanted a Target first. Write edit.pipe(target, edit.weights(bits=4), ...)."),
    ("a pipe without a target", lambda w: edit.pipe(Mse()), "SpecError",
     "edit.pipe: found Mse(p=2.0, candidates=95, apart=True, widest=1.0), wanted a Target first. Write edit.pipe(target, "
     "edit.weights(bits=4), ...)."),
    ("a pipe of a function that was not called", lambda w: edit.pipe(TARGET, edit.weights), "SpecError",
     "edit.pipe: found the function weights, wanted a function target -> target. Call it: edit.weights(...)."),
    ("a pipe of an estimator", lambda w: edit.pipe(TARGET, Mse()), "SpecError",
     "edit.pipe: found Mse(p=2.0, candidates=95, apart=True, widest=1.0), wanted a function target -> target. Use "
     "edit.weights(...), edit.skip(...) and the others."),
    ("an override by text", lambda w: edit.override("layer4", weights={"bits": 8}), "SpecError",
     "edit.override: found 'layer4', wanted a selector. Use edit.name, edit.op, edit.module or edit.where, or combine "
     "them with &, | and ~."),
    ("an override of unknown keys", lambda w: edit.override(edit.name("a"), weights={"bit": 8}), "SpecError",
     "edit.override, weights: found bit, wanted bits, estimator, function. Use those keywords."),
    ("an override that is a number", lambda w: edit.override(edit.name("a"), weights=8), "SpecError",
     "edit.override, weights: found 8, wanted a dict. Write e.g. dict(bits=8)."),
    ("an override of nothing", lambda w: edit.override(edit.name("a")), "SpecError",
     "edit.override: found nothing to change, wanted weights or activations. Give one."),
    ("a skip by text", lambda w: edit.skip("softmax"), "SpecError",
     "edit.skip: found 'softmax', wanted a selector. Use edit.name, edit.op, edit.module or edit.where, or combine them "
     "with &, | and ~."),
    ("a name that is a number", lambda w: edit.name(3), "SpecError",
     "Name.glob: found 3, wanted a non-empty str. Give a text."),
    ("a name that is empty", lambda w: edit.name(""), "SpecError",
     "Name.glob: found '', wanted a non-empty str. Give a text."),
    ("a name that is a number, beside another", lambda w: edit.name("a", 3), "SpecError",
     "Name.glob: found 3, wanted a non-empty str. Give a text."),
    ("no name", lambda w: edit.name(), "SpecError",
     'edit.name: found no pattern, wanted at least one non-empty str. Write e.g. edit.name("layer4.*").'),
    ("a kind by class", lambda w: edit.op(nn.Conv2d), "SpecError",
     "Op.kinds: found <class 'torch.nn.modules.conv.Conv2d'>, wanted a tuple of non-empty str or Trait, at "
     "least 1. Replace this one."),
    ("no trait", lambda w: edit.op(Trait(0)), "SpecError",
     "Op.kinds: found <Trait: 0>, wanted a trait. Name one, such as Trait.CLAMPS."),
    ("no kind", lambda w: edit.op(), "SpecError",
     "Op.kinds: found (), wanted a tuple of non-empty str or Trait, at least 1. Give a tuple of such values."),
    ("a module by class", lambda w: edit.module(nn.Conv2d), "SpecError",
     "ModuleType.name: found <class 'torch.nn.modules.conv.Conv2d'>, wanted a non-empty str. Give a text."),
    ("a predicate by text", lambda w: edit.where("conv"), "SpecError",
     "Where.predicate: found 'conv', wanted a module-level function or a frozen callable value. Write a function of the op."),
    ("and in place of &", lambda w: edit.op("conv") and edit.name("a"), "SpecError",
     "selector: found Op('conv') used as a truth value, wanted &, | or ~. Write them in place of and, or, not."),
    ("a selector with a text", lambda w: edit.op("conv") & "relu", "SpecError",
     "&, |: found 'relu', wanted a selector. Use edit.name, edit.op, edit.module or edit.where, or combine them with &, "
     "| and ~."),
    ("a rule without values", lambda w: edit.add(edit.op("gelu")), "SpecError",
     "Rule.input, weight, bias, output: found 'None everywhere', wanted one slot value. Give a value for a slot."),
    ("a rule of an unknown slot", lambda w: edit.add(edit.op("gelu"), inputs=Scheme()), "SpecError",
     "edit.add: found inputs, wanted input, weight, bias, output, edges. Use those keywords."),
    ("a format in place of a scheme", lambda w: edit.add(edit.op("gelu"), input=Int(8)), "SpecError",
     "Rule.input: found Int(8), wanted Scheme or DerivedQParams or FixedQParams or Cases or KeepFloat or None. Give a "
     "value such as "
     "Scheme(...)."),
    ("inputs in bits", lambda w: edit.inputs(edit.op("gelu"), 8), "SpecError",
     "Rule.input: found 8, wanted Scheme or DerivedQParams or FixedQParams or Cases or KeepFloat or None. Give a value "
     "such as Scheme(...)."),
    ("outputs of a text", lambda w: edit.outputs("gelu", Scheme()), "SpecError",
     "edit.outputs: found 'gelu', wanted a selector. Use edit.name, edit.op, edit.module or edit.where, or combine them "
     "with &, | and ~."),
    ("a fusion of texts", lambda w: edit.fuse("conv", "relu"), "SpecError",
     "edit.fuse: found 'conv', wanted a Fusion. Write specs.Fusion(...)."),
    ("a lowering by class", lambda w: edit.deploy(lowering.QdqLowering), "SpecError",
     "SetLowering.lowering: found <class 'qfunc.lowering.onnx.lowering.QdqLowering'>, wanted a frozen value with the "
     "methods lower. "
     "Call it: QdqLowering()."),
    ("a lowering by name", lambda w: edit.deploy("onnx"), "SpecError",
     "SetLowering.lowering: found 'onnx', wanted a frozen value with the methods lower. Add lower."),
)
# fmt: on
