"""Emulation, deployment and verification: targets, models and runtimes that do not fit."""

from __future__ import annotations

from typing import Any

from attrs import evolve, frozen
from torch import nn

import qfunc
from qfunc import targets
from qfunc.targets.runtimes import QnnHtpRunner
from tests.wrong_uses.world import TARGET, Row, bare, calibrated, in_half


@frozen
class WritesNothing:
    """A lowering that returns nothing."""

    def lower(self, program: Any) -> Any:
        """Return None."""
        return None


@frozen
class WritesText:
    """A lowering that returns text."""

    def lower(self, program: Any) -> Any:
        """Return a file of text."""
        return {"table.json": "{}"}


@frozen
class Nothing:
    """A runner that returns nothing."""

    def run(self, artifact: Any, inputs: Any) -> Any:
        """Return None."""
        return None


@frozen
class Fails:
    """A runner that asks for a file that is not there."""

    def run(self, artifact: Any, inputs: Any) -> Any:
        """Raise KeyError."""
        return artifact.files["model.bin"]


def lowered(w: Any, lowering: Any) -> Any:
    """The artifact by another lowering."""
    target = evolve(TARGET, lowering=lowering)
    return qfunc.deploy(target)(calibrated(target, w))


# fmt: off
ROWS: tuple[Row, ...] = (
    ("emulate by name", lambda w: qfunc.emulate("onnxruntime"), "SpecError",
     "emulate: found 'onnxruntime', wanted a Target. Pass the value: one of qfunc.targets, or your own specs.Target."),
    ("emulate without a target", lambda w: qfunc.emulate(w.calibrated), "SpecError",
     "emulate: found a GraphModule, wanted a Target. Write qfunc.emulate(target)(model)."),
    ("emulate before calibration", lambda w: qfunc.emulate(TARGET)(w.quantized), "CalibrationError",
     "emulate: found a quantized model without qparams at site 'input', wanted a calibrated model. First run "
     "qfunc.calibrate(batches)(quantized)."),
    ("emulate what is not public", lambda w: qfunc.emulate(targets.tensorrt)(calibrated(targets.tensorrt, w)), "EmulationError",
     "emulate(tensorrt): found no public arithmetic: the engine's rounding and order of fusion are not published, "
     "wanted a target whose kernels are known. The nearest target that can be emulated is targets.onnxruntime."),
    ("an HTP of no version", lambda w: QnnHtpRunner(67), "SpecError",
     "QnnHtpRunner.arch: found 67, wanted an int in [68, inf]. Give such a number."),
    ("a pool that the HTP gets wrong", lambda w: qfunc.quantize(targets.qnn_htp)(nn.Sequential(nn.AvgPool2d(2, padding=1))),
     "SpecError",
     "target 'qnn_htp', op '0': found the kind 'avg_pool', wanted an op that QnnHtpLowering() writes: onnxruntime-qnn "
     "2.7, measured: "
     "the HTP's results differ for these attributes. Use a stride other than the kernel size, or count_include_pad=False and "
     "ceil_mode=False. To simulate it without a file, use attrs.evolve(target, lowering=None)."),
    ("emulate twice", lambda w: qfunc.emulate(TARGET)(w.emulation), "CalibrationError",
     "emulate: found an emulation, wanted a calibrated model. First run qfunc.calibrate(batches)(quantized)."),
    ("deploy by name", lambda w: qfunc.deploy("onnxruntime"), "SpecError",
     "deploy: found 'onnxruntime', wanted a Target. Pass the value: one of qfunc.targets, or your own specs.Target."),
    ("deploy a family", lambda w: qfunc.deploy(targets.academic), "SpecError",
     "deploy: found the function academic, wanted a Target. Call it: academic(...)."),
    ("deploy before calibration", lambda w: qfunc.deploy(TARGET)(w.quantized), "CalibrationError",
     "deploy: found a quantized model without qparams at site 'input', wanted a calibrated model. First run "
     "qfunc.calibrate(batches)(quantized)."),
    ("deploy a float model", lambda w: qfunc.deploy(TARGET)(w.net), "CalibrationError",
     "deploy: found a Sequential that is not quantized, wanted a calibrated model. First run "
     "qfunc.calibrate(batches)(quantized)."),
    ("deploy what is half", lambda w: qfunc.deploy(TARGET)(in_half(w)), "DeployError",
     "deploy, input 'input': found float16, wanted float32. Quantize model.float() and calibrate it with float32 batches."),
    ("deploy the whole around submodules", lambda w: qfunc.deploy(TARGET)(w.inside), "DeployError",
     "deploy: found an Outer whose submodules are quantized: 'backbone', wanted one quantized model. Take them one by "
     "one: qfunc.deploy(...)(model.get_submodule('backbone'))."),
    ("deploy for inputs of another kind", lambda w: qfunc.deploy(TARGET, "out")(w.calibrated), "CalibrationError",
     "deploy, batch: found a str, wanted a tensor, tuple or dict for the inputs input (1 required). Pass batches with the "
     "arguments of the model's forward."),
    ("deploy without a lowering", lambda w: qfunc.deploy(bare())(calibrated(bare(), w)), "DeployError",
     "deploy(onnxruntime): found a target without a lowering, wanted a lowering. Give it one: edit.deploy(QdqLowering())."),
    ("deploy by a lowering that returns nothing", lambda w: lowered(w, WritesNothing()), "DeployError",
     "deploy(onnxruntime), files of the lowering: found None, wanted a mapping from file name to bytes. Return it from "
     "lower(program)."),
    ("deploy by a lowering that writes text", lambda w: lowered(w, WritesText()), "DeployError",
     "Artifact.files['table.json']: found a str, wanted bytes. Let the lowering return bytes: text.encode()."),
    ("verify by name", lambda w: qfunc.verify("onnxruntime"), "SpecError",
     "verify: found 'onnxruntime', wanted a Target. Pass the value: one of qfunc.targets, or your own specs.Target."),
    ("verify by a runtime's name", lambda w: qfunc.verify(TARGET, "onnxruntime"), "VerifyError",
     "verify, runtime: found 'onnxruntime', wanted a runner. Pass a function run(artifact, inputs) -> outputs, or leave "
     "it out for the target's own."),
    ("verify on a tensor", lambda w: qfunc.verify(TARGET)(w.calibrated, w.x), "CalibrationError",
     "verify: found a Tensor, wanted an iterable of batches. Put a single batch into a list: [batch]."),
    ("verify before calibration", lambda w: qfunc.verify(TARGET)(w.quantized, w.batches), "CalibrationError",
     "verify: found a quantized model without qparams at site 'input', wanted a calibrated model. First run "
     "qfunc.calibrate(batches)(quantized)."),
    ("verify without a runtime", lambda w: qfunc.verify(targets.nnie)(calibrated(targets.nnie, w), w.batches), "VerifyError",
     "verify(nnie): found no runtime that can be run here, wanted a runner. Pass runtime=run, where run(artifact, "
     "inputs) -> outputs."),
    ("verify by a runtime that returns nothing",
     lambda w: qfunc.verify(TARGET, lambda artifact, inputs: None)(w.calibrated, w.batches), "VerifyError",
     "verify, outputs of the runtime: found None, wanted a list of outputs. Return a list of arrays, in the model's order."),
    ("verify by a runner that returns nothing",
     lambda w: qfunc.verify(TARGET, Nothing())(w.calibrated, w.batches), "VerifyError",
     "verify, outputs of the runtime: found None, wanted a list of outputs. Return a list of arrays, in the model's order."),
    ("verify by a runner that fails",
     lambda w: qfunc.verify(TARGET, Fails())(w.calibrated, w.batches), "VerifyError",
     f"verify, batch 1: found KeyError: 'model.bin', at {__file__}:{Fails.run.__code__.co_firstlineno + 2}, wanted an artifact "
     "that Fails runs. Correct Fails.run."),
    ("verify by a runtime of other outputs",
     lambda w: qfunc.verify(TARGET, lambda artifact, inputs: [inputs[0]])(w.calibrated, w.batches), "VerifyError",
     "verify, outputs of the runtime: found [[2, 3, 6, 6]], wanted [[2, 5]]. Return the outputs in the model's order."),
    ("verify with labels for a score", lambda w: qfunc.verify(TARGET, score=w.x), "VerifyError",
     "verify, score: found a Tensor, wanted a function. Pass a function (outputs, batch) -> one number per example."),
    ("verify with a score that is no number",
     lambda w: qfunc.verify(TARGET, score=lambda outputs, batch: "good")(w.calibrated, w.batches), "VerifyError",
     "verify, score: found 'good', wanted one number per example. Return a tensor of numbers or booleans, such as "
     "outputs[0].argmax(1) == batch[1]."),
    ("verify with a score that takes outputs by name",
     lambda w: qfunc.verify(TARGET, score=lambda outputs, batch: outputs["a"])(w.calibrated, w.batches), "VerifyError",
     "verify, score: found TypeError: list indices must be integers or slices, not str, wanted one number per example. Its "
     "arguments are the list of all output tensors, in the model's order, and the batch."),
    ("verify with a score of parts",
     lambda w: qfunc.verify(TARGET, score=len)(qfunc.calibrate(w.batches)(w.inside), w.batches), "VerifyError",
     "verify, score: found a model of quantized parts: 'backbone', wanted a model that is quantized as a whole. Leave it "
     "out: the runtime has no outputs of the whole."),
)
# fmt: on
