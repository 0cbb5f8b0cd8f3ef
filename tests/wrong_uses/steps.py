"""Steps in the wrong order, on the wrong models, with the wrong batches."""

from __future__ import annotations

import torch
from torch import nn

import qfunc
from qfunc import targets
from qfunc.specs import edit
from tests.wrong_uses.world import TARGET, Row, exhausted

# fmt: off
ROWS: tuple[Row, ...] = (
    ("a forward before calibration", lambda w: w.quantized(w.x), "CalibrationError",
     "site 'input': found no qparams yet, wanted a calibrated model. Run qfunc.calibrate(batches)(quantized), or load "
     "a calibrated state_dict."),
    ("a model in place of batches", lambda w: qfunc.calibrate(w.quantized), "CalibrationError",
     "calibrate: found a GraphModule, wanted batches first, and then the model. Write qfunc.calibrate(batches)(model)."),
    ("a tensor in place of batches", lambda w: qfunc.calibrate(w.x), "CalibrationError",
     "calibrate: found a Tensor, wanted an iterable of batches. Put a single batch into a list: [batch]."),
    ("a dict in place of batches", lambda w: qfunc.compare({"input": w.x}), "CalibrationError",
     "compare: found a dict, wanted an iterable of batches. Put a single batch into a list: [batch]."),
    ("a text in place of batches", lambda w: qfunc.sensitivity("data"), "CalibrationError",
     "sensitivity: found a str, wanted an iterable of batches. Put a single batch into a list: [batch]."),
    ("nothing in place of batches", lambda w: qfunc.correct_bias(None), "CalibrationError",
     "correct_bias: found a NoneType, wanted an iterable of batches. Put a single batch into a list: [batch]."),
    ("the loader's class", lambda w: qfunc.calibrate(torch.utils.data.DataLoader), "CalibrationError",
     "calibrate: found a type, wanted an iterable of batches. Call it, and pass its result."),
    ("a function in place of its batches", lambda w: qfunc.calibrate(lambda: w.batches), "CalibrationError",
     "calibrate: found a function, wanted an iterable of batches. Call it, and pass its result."),
    ("a model behind the batches", lambda w: qfunc.compare(w.batches, w.calibrated), "CalibrationError",
     "compare: found a GraphModule, wanted batches first, and then the model. Write qfunc.compare(batches)(model)."),
    ("two models to compare", lambda w: qfunc.compare(w.net, w.calibrated), "CalibrationError",
     "compare: found a Sequential, wanted batches first, and then the model. Write qfunc.compare(batches)(model)."),
    ("a dataset in place of batches", lambda w: qfunc.calibrate(torch.utils.data.TensorDataset(w.x)), "CalibrationError",
     "calibrate: found a TensorDataset, wanted an iterable of batches. Let a loader make the batches: "
     "torch.utils.data.DataLoader(dataset, batch_size=32)."),
    ("the model before the target", lambda w: qfunc.diagnose(TARGET, w.net), "CalibrationError",
     "diagnose: found a Sequential, wanted batches first, and then the model. Write qfunc.diagnose(target, batches)(model)."),
    ("a model to round", lambda w: qfunc.gptq(w.net), "CalibrationError",
     "gptq: found a Sequential, wanted batches first, and then the model. Write qfunc.gptq(batches)(model)."),
    ("a float model to round", lambda w: qfunc.gptq([w.x])(w.net), "CalibrationError",
     "gptq: found a Sequential that is not quantized, wanted a calibrated model. First run "
     "qfunc.calibrate(batches)(quantized)."),
    ("a model to stream", lambda w: qfunc.stream(targets.compressed_tensors("FP8"), "a", "b", w.net), "CalibrationError",
     "stream: found a Sequential, wanted batches first, and then the model. Write "
     "qfunc.stream(target, checkpoint, output, batches)(model)."),
    ("a model to smooth", lambda w: qfunc.smooth_quant(w.net), "CalibrationError",
     "smooth_quant: found a Sequential, wanted batches first, and then the model. Write qfunc.smooth_quant(batches)(model)."),
    ("alpha in the place of progress", lambda w: qfunc.smooth_quant([w.x], 0.25), "CalibrationError",
     "smooth_quant, progress: found a float, wanted True or False. Pass the other arguments by name."),
    ("a model to mix", lambda w: qfunc.mixed_precision(w.net, (4, 8), None), "CalibrationError",
     "mixed_precision: found a Sequential, wanted batches first, and then the model. Write "
     "qfunc.mixed_precision(batches, bits, budget)(model)."),
    ("a model behind the batches of verify", lambda w: qfunc.verify(TARGET)(w.batches, w.calibrated), "CalibrationError",
     "verify: found a GraphModule, wanted the model first, and then the batches. Write "
     "qfunc.verify(target)(calibrated, batches)."),
    ("no batches", lambda w: qfunc.calibrate([])(w.quantized), "CalibrationError",
     "calibrate: found no batches, wanted at least one. Pass a non-empty iterable, not one already used up."),
    ("an exhausted generator", lambda w: qfunc.calibrate(exhausted(w.batches))(w.quantized), "CalibrationError",
     "calibrate: found no batches, wanted at least one. Pass a non-empty iterable, not one already used up."),
    ("no batches to compare", lambda w: qfunc.compare([])(w.calibrated), "CalibrationError",
     "compare: found no batches, wanted at least one. Pass a non-empty iterable, not one already used up."),
    ("no batches for sensitivity", lambda w: qfunc.sensitivity(iter(()))(w.calibrated), "CalibrationError",
     "sensitivity: found no batches, wanted at least one. Pass a non-empty iterable, not one already used up."),
    ("no batches for the biases", lambda w: qfunc.correct_bias([])(w.calibrated), "CalibrationError",
     "correct_bias: found no batches, wanted at least one. Pass a non-empty iterable, not one already used up."),
    ("no batches to verify", lambda w: qfunc.verify(TARGET)(w.calibrated, []), "VerifyError",
     "verify: found no batches, wanted at least one. Pass a non-empty iterable, not one already used up."),
    ("empty batches", lambda w: qfunc.calibrate([w.x[:0]])(w.quantized), "CalibrationError",
     "site 'input': found only empty tensors, wanted some values. Pass batches with at least one example."),
    ("batches of text", lambda w: qfunc.calibrate(["a"])(w.quantized), "CalibrationError",
     "calibrate, batch: found a str, wanted a tensor, tuple or dict for the inputs input (1 required). Pass batches with "
     "the arguments of the model's forward."),
    ("batches of arrays", lambda w: qfunc.calibrate([w.x.numpy()])(w.quantized), "CalibrationError",
     "calibrate, batch: found an ndarray, wanted a tensor, tuple or dict for the inputs input (1 required). Convert "
     "arrays: torch.from_numpy(array)."),
    ("batches of other keys", lambda w: qfunc.calibrate([{"image": w.x}])(w.quantized), "CalibrationError",
     "calibrate, batch: found a dict with keys 'image', wanted a tensor, tuple or dict for the inputs input (1 "
     "required). Pass batches with the arguments of the model's forward."),
    ("batches of images as bytes",
     lambda w: qfunc.calibrate([torch.zeros(2, 3, 6, 6, dtype=torch.uint8)])(w.quantized), "CalibrationError",
     "site 'input': found torch.uint8 values, wanted a float tensor. Use edit.skip for ops on such values."),
    ("batches of other channels", lambda w: qfunc.calibrate([torch.ones(2, 4, 6, 6)])(w.quantized), "CalibrationError",
     "calibrate, batch 1, op '0': found RuntimeError: Given groups=1, weight of size [4, 3, 3, 3], expected input[2, 4, "
     "6, 6] to have 3 channels, but got 4 channels instead, wanted inputs on which the model runs. Pass batches with the "
     "arguments of the model's forward."),
    ("batches of NaN", lambda w: qfunc.calibrate([w.x * torch.nan])(w.quantized), "CalibrationError",
     "site 'input': found NaN values in the activations of batch 1, wanted finite values. Repair the weights, omit the "
     "batch, or leave the op in float by edit.skip."),
    ("batches of infinities", lambda w: qfunc.calibrate([w.x, w.x / 0])(w.quantized), "CalibrationError",
     "site 'input': found infinite values in the activations of batch 2, wanted finite values. Repair the weights, omit "
     "the batch, or leave the op in float by edit.skip."),
    ("a batch that the outer model does not take", lambda w: qfunc.calibrate([5])(w.inside), "CalibrationError",
     "calibrate, batch: found an int, wanted a tensor, tuple or dict for the inputs x (1 required). Pass batches with the "
     "arguments of the model's forward."),
    ("a batch that the outer model cannot run", lambda w: qfunc.calibrate([w.x[0, 0]])(w.inside), "CalibrationError",
     "calibrate, batch 1, op 'backbone.0': found RuntimeError: Expected 3D (unbatched) or 4D (batched) input to conv2d, "
     "but got input of size: [6, 6], wanted inputs on which the model runs. Pass batches with the arguments of the "
     "model's forward."),
    ("a submodule that no batch reaches",
     lambda w: qfunc.calibrate(w.batches)(qfunc.quantize(TARGET, submodules=("backbone", "spare"))(w.outer)),
     "CalibrationError", "calibrate, submodule 'spare': found no call of it in any batch, wanted at least one. Pass "
     "batches for which it runs, or leave it out of `submodules`."),
    ("through the class", lambda w: qfunc.calibrate(w.batches, through=qfunc.QuantizedPass), "SpecError",
     "calibrate, through: found QuantizedPass, wanted qfunc.FloatPass() or qfunc.QuantizedPass(). Write "
     "through=qfunc.QuantizedPass()."),
    ("through a text", lambda w: qfunc.calibrate(w.batches, through="quantized"), "SpecError",
     "calibrate, through: found 'quantized', wanted qfunc.FloatPass() or qfunc.QuantizedPass(). Write "
     "through=qfunc.QuantizedPass()."),
    ("a group by name", lambda w: qfunc.calibrate(w.batches, group="world"), "SpecError",
     "calibrate, group: found 'world', wanted a torch.distributed.ProcessGroup that this process is in, or None. Pass the "
     "result of dist.new_group in a member process, or mesh.get_group()."),
    ("calibrating a float model", lambda w: qfunc.calibrate(w.batches)(w.net), "CalibrationError",
     "calibrate: found a Sequential that is not quantized, wanted a quantized model. First run "
     "qfunc.quantize(target)(model)."),
    ("calibrating a list of models", lambda w: qfunc.calibrate(w.batches)([w.quantized]), "CalibrationError",
     "calibrate: found a list, wanted a quantized model. First run qfunc.quantize(target)(model)."),
    ("calibrating no model", lambda w: qfunc.calibrate(w.batches)(()), "CalibrationError",
     "calibrate: found an empty tuple, wanted at least one model. Pass a quantized model or a tuple of them."),
    ("calibrating models of two networks", lambda w: qfunc.calibrate(w.batches)((w.quantized, w.inside)), "CalibrationError",
     "calibrate: found quantized models of different networks, wanted one network. Calibrate them one by one."),
    ("calibrating an emulation", lambda w: qfunc.calibrate(w.batches)(w.emulation), "CalibrationError",
     "calibrate: found an emulation, wanted a quantized model. First run qfunc.quantize(target)(model)."),
    ("explaining a DataParallel", lambda w: qfunc.explain(nn.DataParallel(w.quantized)), "CalibrationError",
     "explain: found a DataParallel, wanted the quantized model inside. Pass its .module."),
    ("explaining a float model", lambda w: qfunc.explain(w.net), "CalibrationError",
     "explain: found a Sequential that is not quantized, wanted a quantized model. First run qfunc.quantize(target)(model)."),
    ("explaining a target", lambda w: qfunc.explain(TARGET), "CalibrationError",
     "explain: found a Target, wanted a quantized model. Write print(target), or "
     "qfunc.explain(qfunc.quantize(target)(model))."),
    ("deploying what load returns", lambda w: qfunc.deploy(TARGET)(qfunc.load("folder")), "CalibrationError",
     "deploy: found what qfunc.load(...) returned, wanted a calibrated model. Call it with a model first: "
     "qfunc.load(...)(model)."),
    ("verifying an artifact", lambda w: qfunc.verify(TARGET)(qfunc.deploy(TARGET)(w.calibrated), w.batches),
     "CalibrationError",
     "verify: found an Artifact, wanted a calibrated model. First run qfunc.calibrate(batches)(quantized)."),
    ("comparing before calibration", lambda w: qfunc.compare(w.batches)(w.quantized), "CalibrationError",
     "compare: found a quantized model without qparams at site 'input', wanted a calibrated model. First run "
     "qfunc.calibrate(batches)(quantized)."),
    ("correcting before calibration", lambda w: qfunc.correct_bias(w.batches)(w.quantized), "CalibrationError",
     "correct_bias: found a quantized model without qparams at site 'input', wanted a calibrated model. First run "
     "qfunc.calibrate(batches)(quantized)."),
    ("bypass by a text", lambda w: qfunc.bypass("conv"), "SpecError",
     "bypass: found 'conv', wanted a selector. Use edit.name, edit.op, edit.module or edit.where, or combine them with "
     "&, | and ~."),
    ("bypass of nothing", lambda w: qfunc.bypass(edit.name("9"))(w.calibrated), "SpecError",
     "bypass: found Name('9'), which matches nothing in the model, wanted a selector that matches an op or a tensor. "
     "Use one of: 0, 1, 2, 3, input."),
    ("bypass of what is float", lambda w: qfunc.bypass(edit.op("flatten"))(w.calibrated), "SpecError",
     "bypass: found Op('flatten'), which matches no quantized weight or activation or bias, wanted a selector that "
     "matches a site. Print qfunc.explain(quantized)."),
    ("bypass of roles as a text", lambda w: qfunc.bypass(edit.op("conv"), roles="weight"), "SpecError",
     "bypass, roles: found 'weight', wanted a tuple of 'weight', 'activation', 'bias'. Write roles=('weight',)."),
    ("bypass of an unknown role", lambda w: qfunc.bypass(edit.op("conv"), roles=("weights",)), "SpecError",
     "bypass, roles: found 'weights', wanted a tuple of 'weight', 'activation', 'bias'. Write roles=('weight',)."),
    ("compose of a model", lambda w: qfunc.compose(qfunc.quantize(TARGET), w.net), "SpecError",
     "compose, step 2: found a Sequential, wanted a function of a model. Pass transforms, as qfunc.quantize(target) "
     "returns them."),
    ("compose of a target", lambda w: qfunc.compose(TARGET), "SpecError",
     "compose, step 1: found a Target, wanted a function of a model. Pass transforms, as qfunc.quantize(target) returns "
     "them."),
    ("compose in the wrong order",
     lambda w: qfunc.compose(qfunc.calibrate(w.batches), qfunc.quantize(TARGET))(w.net), "CalibrationError",
     "calibrate: found a Sequential that is not quantized, wanted a quantized model. First run "
     "qfunc.quantize(target)(model)."),
)
# fmt: on
