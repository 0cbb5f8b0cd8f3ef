"""Models that cannot be captured or quantized, and what else `capture` and `quantize` are given."""

from __future__ import annotations

import torch
from torch import nn

import qfunc
from qfunc import specs, targets
from qfunc.specs import Fusion, FusionStep, Op, edit
from tests.wrong_uses.world import TARGET, Row, broken, scripted

# fmt: off
ROWS: tuple[Row, ...] = (
    ("the name of a target", lambda w: qfunc.quantize("tensorrt"), "SpecError",
     "quantize: found 'tensorrt', wanted a Target. Pass the value: one of qfunc.targets, or your own specs.Target."),
    ("a family of targets", lambda w: qfunc.quantize(targets.academic), "SpecError",
     "quantize: found the function academic, wanted a Target. Call it: academic(...)."),
    ("the class of targets", lambda w: qfunc.quantize(specs.Target), "SpecError",
     "quantize: found the class Target, wanted a Target. Pass one of qfunc.targets, or your own specs.Target."),
    ("no target", lambda w: qfunc.quantize(None), "SpecError",
     "quantize: found None, wanted a Target. Pass one of qfunc.targets, or your own specs.Target."),
    ("a model in place of the target", lambda w: qfunc.quantize(w.net), "SpecError",
     "quantize: found a Sequential, wanted a Target. Write qfunc.quantize(target)(model)."),
    ("a model in place of example inputs", lambda w: qfunc.quantize(TARGET, w.net), "CaptureError",
     "quantize, example_inputs: found a Sequential, wanted a tuple of the positional inputs of one call. Write "
     "qfunc.quantize(target)(model)."),
    ("a text in place of example inputs", lambda w: qfunc.capture("x"), "CaptureError",
     "capture, example_inputs: found a str, wanted a tuple of the positional inputs of one call. Write (x,) or (x, y)."),
    ("a dict in place of example inputs", lambda w: qfunc.quantize(TARGET, {"input": w.x}), "CaptureError",
     "quantize, example_inputs: found a dict, wanted a tuple of the positional inputs of one call. Write (x,) or (x, y)."),
    ("a model given to capture itself", lambda w: qfunc.capture(w.net), "CaptureError",
     "capture, example_inputs: found a Sequential, wanted a tuple of the positional inputs of one call. Write "
     "qfunc.capture()(model)."),
    ("the name of a model", lambda w: qfunc.quantize(TARGET)("resnet18"), "FileError",
     "resnet18: found no such file, wanted an ONNX file. Give the path of a .onnx file, or the model itself."),
    ("the class of a model", lambda w: qfunc.quantize(TARGET)(nn.Linear), "CaptureError",
     "capture: found the class Linear, wanted an nn.Module or an ExportedProgram. Create an instance: Linear(...)."),
    ("a function", lambda w: qfunc.quantize(TARGET)(torch.relu), "CaptureError",
     "capture: found builtin_function_or_method, wanted an nn.Module or an ExportedProgram. Pass the module itself."),
    ("a state_dict", lambda w: qfunc.quantize(TARGET)(w.net.state_dict()), "CaptureError",
     "capture: found OrderedDict, wanted an nn.Module or an ExportedProgram. Pass the module itself."),
    ("batches in place of a model", lambda w: qfunc.quantize(TARGET)(w.batches), "CaptureError",
     "capture: found list, wanted an nn.Module or an ExportedProgram. Pass the module itself."),
    ("a list of layers", lambda w: qfunc.quantize(TARGET)(nn.ModuleList([nn.Linear(2, 2)])), "CaptureError",
     "capture: found a ModuleList without a forward, wanted a module with a forward. Pass the model that runs its "
     "entries, or one of them."),
    ("a scripted model", lambda w: qfunc.capture()(scripted(w)), "CaptureError",
     "capture: found a TorchScript module, wanted an eager nn.Module. Pass the eager module from which it was scripted."),
    ("a model on meta", lambda w: qfunc.quantize(TARGET)(nn.Linear(2, 2, device="meta")), "CaptureError",
     "quantize, tensor 'weight': found a tensor on the meta device, wanted values. Load the weights first: "
     "model.to_empty(device='cpu'), then load_state_dict."),
    ("a quantized model again", lambda w: qfunc.quantize(TARGET)(w.quantized), "CalibrationError",
     "quantize: found a quantized model, wanted a float model. Quantize the float model that it came from."),
    ("a calibrated model again", lambda w: qfunc.quantize(TARGET)(w.calibrated), "CalibrationError",
     "quantize: found a calibrated model, wanted a float model. Quantize the float model that it came from."),
    ("an emulation quantized", lambda w: qfunc.quantize(TARGET)(w.emulation), "CalibrationError",
     "quantize: found an emulation, wanted a float model. Quantize the float model that it came from."),
    ("a model with quantized submodules",
     lambda w: qfunc.quantize(TARGET)(nn.Sequential(w.quantized, nn.ReLU())), "CalibrationError",
     "quantize: found a model with a quantized submodule, '0', wanted a float model. Quantize the float model that it "
     "came from."),
    ("a model without anything to quantize", lambda w: qfunc.quantize(TARGET)(nn.Sequential(nn.Tanh())), "SpecError",
     "quantize: found a Sequential in which the target quantizes nothing, wanted ops that it quantizes. Print the "
     "target: python -m qfunc show; edit.add puts quantizers on more kinds of ops."),
    ("a model with other sizes than the target quantizes", lambda w: qfunc.quantize(targets.gguf("Q8_0"))(nn.Linear(40, 8)),
     "SpecError", "quantize: found a Linear in which the target quantizes nothing, wanted ops that it quantizes. Of op "
     "'linear': rule 0 selects linear and in_features a multiple of 32; here in_features is 40."),
    ("inputs that blocks do not divide", lambda w: qfunc.quantize(targets.executorch_8da4w())(nn.Linear(40, 8)),
     "SpecError", "target 'executorch_8da4w_b32', op 'linear', weight 'weight': found PerBlock(-1, size=32) on shape (8, 40), "
     "wanted an axis of the tensor that the block size divides. Use an axis of the tensor and a size that divides it, or "
     "leave the op in float by edit.skip."),
    ("a weight that is NaN", lambda w: qfunc.quantize(TARGET)(broken(w.net)), "CalibrationError",
     "site '0.weight': found NaN values in the model's tensors, wanted finite values. Repair the weights, omit the batch, "
     "or leave the op in float by edit.skip."),
    ("leaves that are numbers", lambda w: qfunc.quantize(TARGET, leaves=5)(w.net), "CaptureError",
     "capture, leaves: found 5, wanted classes of modules, or their names. Write leaves=(MyBlock,)."),
    ("a leaf that is a module", lambda w: qfunc.quantize(TARGET, leaves=w.net[0])(w.net), "CaptureError",
     "capture, leaves: found a Conv2d, wanted classes of modules, or their names. Write leaves=(Conv2d,)."),
    ("a leaf that the model has not", lambda w: qfunc.quantize(TARGET, leaves="Conv3d")(w.net), "CaptureError",
     "capture, leaves: found 'Conv3d', which is not the class of any submodule, wanted classes of the model's submodules. "
     "Use one of: "
     "Conv2d."),
    ("leaves on the road that opens them", lambda w: qfunc.quantize(TARGET, (w.x,), leaves="Conv2d")(w.net), "CaptureError",
     "capture: found leaves together with example_inputs, wanted one of the two: torch.export inlines every module. Leave out "
     "example_inputs, or leave ops in float by edit.skip(edit.module(...))."),
    ("concrete_args that are a list", lambda w: qfunc.quantize(TARGET, concrete_args=["gain"])(w.net), "CaptureError",
     "capture, concrete_args: found ['gain'], wanted a dict of values by argument's name. Write concrete_args={'gain': 2.0}."),
    ("an argument that forward has not", lambda w: qfunc.quantize(TARGET, concrete_args={"gain": 1})(w.net), "CaptureError",
     "capture, concrete_args: found 'gain', which is not an argument of Sequential.forward, wanted names of its arguments. "
     "Use one of: input."),
    ("a tracer by name", lambda w: qfunc.quantize(TARGET, tracer="fx")(w.net), "CaptureError",
     "capture, tracer: found a str, wanted a torch.fx.Tracer. Derive it from torch.fx.Tracer."),
    ("the function that traces", lambda w: qfunc.quantize(TARGET, tracer=torch.fx.symbolic_trace)(w.net), "CaptureError",
     "capture, tracer: found a function, wanted a torch.fx.Tracer. Derive it from torch.fx.Tracer."),
    ("a rule for a name that is nowhere", lambda w: qfunc.quantize(edit.skip(edit.name("lyer4.*"))(TARGET))(w.net), "SpecError",
     "target 'onnxruntime', rules: found Name('lyer4.*'), which matches nothing in the model, wanted a selector that "
     "matches an op or a tensor. Use one of: 0, 1, 2, 3, input."),
    ("a rule for a kind that is none", lambda w: qfunc.quantize(edit.skip(edit.op("convolution"))(TARGET))(w.net), "SpecError",
     "target 'onnxruntime', rules: found 'convolution', which is not a known kind of op, wanted a kind of the vocabulary or of "
     "the target's ops. Use one of: conv, constant, conv_transpose."),
    ("a fusion of kinds that are none",
     lambda w: qfunc.quantize(edit.fuse(Fusion(Op("conv"), FusionStep(Op("rellu"))))(TARGET))(w.net), "SpecError",
     "target 'onnxruntime', fusions: found 'rellu', which is not a known kind of op, wanted a kind of the vocabulary or of the "
     "target's ops. Use one of: relu, prelu, elu."),
    ("a rule for a node that is nowhere", lambda w: qfunc.quantize(edit.skip(edit.node("input_2"))(TARGET))(w.net), "SpecError",
     "target 'onnxruntime', rules: found NodeName('input_2'), which matches nothing in the model, wanted a selector that "
     "matches an op or a tensor. Use one of: input_1, _2."),
    ("a rule for a weight", lambda w: qfunc.quantize(edit.skip(edit.name("3.weight"))(TARGET))(w.net), "SpecError",
     "target 'onnxruntime', rules: found Name('3.weight'), which matches only weights, wanted a selector that matches an op. "
     "Use one of: 0, 1, 2, 3, input."),
    ("an override of a class that is nowhere",
     lambda w: qfunc.quantize(edit.override(edit.module("Block"), weights={"bits": 4})(TARGET))(w.net), "SpecError",
     "target 'onnxruntime', overrides: found ModuleType('Block'), which matches nothing in the model, wanted a selector "
     "that matches an op or a tensor. Use one of: Conv2d, Flatten, Linear, ReLU, Sequential."),
    ("a zero point where the chip has none",
     lambda w: qfunc.quantize(edit.activations(symmetric=False)(targets.tensorrt))(w.net), "SpecError",
     "target 'tensorrt', op '0', input 'input'; op '2', input '1': found a zero point, wanted none: TensorRT 11, "
     "Working with Quantized Types: 'TensorRT uses a symmetric quantization scheme'. Use "
     "edit.activations(symmetric=True), or leave the op in float by edit.skip."),
    ("at that is no path", lambda w: qfunc.quantize(TARGET, submodules=0), "SpecError",
     "quantize, submodules: found 0, wanted a path of a submodule, or a tuple of them. Write "
     "submodules='backbone' or submodules=('encoder', 'decoder.layers.*')."),
    ("at that names nothing", lambda w: qfunc.quantize(TARGET, submodules="bakbone")(w.outer), "SpecError",
     "quantize, submodules: found 'bakbone', which is not the path of any submodule, wanted paths of submodules of the "
     "Outer. Use one of: "
     "backbone, backbone.0."),
    ("at that is empty", lambda w: qfunc.quantize(TARGET, submodules=()), "SpecError",
     "quantize, submodules: found (), wanted a path of a submodule, or a tuple of them. Write "
     "submodules='backbone' or submodules=('encoder', 'decoder.layers.*')."),
    ("at the model itself", lambda w: qfunc.quantize(TARGET, submodules="")(w.outer), "SpecError",
     "quantize, submodules: found '', which is not the path of any submodule, wanted paths of submodules of the Outer. "
     "Use one of: "
     "backbone, heads, spare."),
    ("at a container", lambda w: qfunc.quantize(TARGET, submodules="heads")(w.outer), "SpecError",
     "quantize, submodules: found 'heads', a ModuleList without a forward, wanted submodules with a forward. Name its entries: "
     "'heads.*'."),
    ("at inside at", lambda w: qfunc.quantize(TARGET, submodules=("backbone", "backbone.0"))(w.outer), "SpecError",
     "quantize, submodules: found 'backbone.0' inside 'backbone', wanted submodules that are not nested. Name one of "
     "them: 'backbone' contains the other."),
    ("at one module twice", lambda w: qfunc.quantize(TARGET, submodules=("heads.0", "heads.1"))(w.outer), "SpecError",
     "quantize, submodules: found 'heads.1' and 'heads.0', which are the same module, wanted each submodule once. Name it "
     "once: it "
     "is replaced wherever the model refers to it."),
    ("at the same path twice", lambda w: qfunc.quantize(TARGET, submodules=("backbone", "backbone"))(w.outer), "SpecError",
     "quantize, submodules: found 'backbone' twice, wanted each submodule once. Name it once: it is replaced wherever the "
     "model "
     "refers to it."),
    ("at what is not quantized", lambda w: qfunc.quantize(TARGET, submodules="pool")(w.outer), "SpecError",
     "quantize, submodules='pool': found a MaxPool2d in which the target quantizes nothing, wanted submodules with ops that it "
     "quantizes. Use one of: backbone, heads, spare."),
    ("at what is quantized already", lambda w: qfunc.quantize(TARGET, submodules="backbone")(w.inside), "CalibrationError",
     "quantize, submodules='backbone': found 'backbone', which is already quantized, wanted a float submodule. Quantize the "
     "float model that it came from."),
    ("at a submodule that does not run on the example",
     lambda w: qfunc.quantize(TARGET, (w.x,), submodules="spare")(w.outer), "CaptureError",
     "quantize, example_inputs: found no call of 'spare', wanted a run of every submodule. Pass inputs for which it runs, "
     "or leave it out of `submodules`."),
    ("at with a tied weight that is folded", lambda w: qfunc.quantize(TARGET, submodules="spare")(w.tied), "SpecError",
     "quantize, submodules='spare': found tensor spare.0.weight, which is shared with rest.weight and would change in one "
     "place only, "
     "wanted shared tensors that do not change. Name a submodule that contains both, or give one of them a copy."),
)
# fmt: on
