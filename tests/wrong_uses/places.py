"""Directories and files: what is written and read."""

from __future__ import annotations

from torch import nn

import qfunc
from qfunc.lowering.artifact import Artifact
from tests.wrong_uses.world import Row

# fmt: off
ROWS: tuple[Row, ...] = (
    ("saving to no place", lambda w: w.artifact.save(None), "DeployError",
     "Artifact.save: found None, wanted a directory. Write artifact.save('directory')."),
    ("saving over a file", lambda w: w.artifact.save(w.folder / "notes.txt"), "DeployError",
     "Artifact.save('{folder}/notes.txt'): found a file, wanted an empty directory. Choose a new or empty directory."),
    ("saving below a file", lambda w: w.artifact.save(w.folder / "notes.txt" / "out"), "DeployError",
     "Artifact.save('{folder}/notes.txt/out'): found a file in the path, 'notes.txt', wanted a directory. Choose a path "
     "of directories."),
    ("saving among other files", lambda w: w.artifact.save(w.folder / "mine"), "DeployError",
     "Artifact.save('{folder}/mine'): found a directory with other files (notes.txt), wanted an empty directory. Choose "
     "a new or empty directory."),
    ("saving a page over a directory", lambda w: qfunc.explain(w.calibrated).save(w.folder), "VerifyError",
     "save('{folder}'): found a directory, wanted a file to write. Name a file: 'report.html'."),
    ("saving a float model", lambda w: qfunc.save(w.folder / "new")(w.net), "CalibrationError",
     "save: found a Sequential that is not quantized, wanted a quantized model. First run qfunc.quantize(target)(model)."),
    ("saving the whole around submodules", lambda w: qfunc.save(w.folder / "new")(w.inside), "DeployError",
     "save: found an Outer whose submodules are quantized: 'backbone', wanted one quantized model. Take them one by one: "
     "qfunc.save(...)(model.get_submodule('backbone'))."),
    ("saving without a place", lambda w: qfunc.save(w.calibrated), "SpecError",
     "save: found a GraphModule, wanted a directory. Write qfunc.save('directory')(model)."),
    ("saving over somebody's files", lambda w: qfunc.save(w.folder / "mine")(w.calibrated), "DeployError",
     "Artifact.save('{folder}/mine'): found a directory with other files (notes.txt), wanted an empty directory. Choose "
     "a new or empty directory."),
    ("loading without a place", lambda w: qfunc.load(w.net), "SpecError",
     "load: found a Sequential, wanted a directory. Write qfunc.load('directory')(model)."),
    ("running what load returns", lambda w: qfunc.load(w.folder / "saved")(w.x), "CalibrationError",
     "load('{folder}/saved'): found a Tensor, wanted the float model that was quantized, which the files do not contain. Write "
     "load(directory)(model)."),
    ("loading from nowhere", lambda w: qfunc.load(w.folder / "nowhere")(w.net), "CalibrationError",
     "load('{folder}/nowhere'): found no saved model, wanted qfunc.json and model.safetensors. Pass the directory that "
     "qfunc.save wrote."),
    ("loading from a file", lambda w: qfunc.load(w.folder / "notes.txt")(w.net), "CalibrationError",
     "load('{folder}/notes.txt'): found no saved model, wanted qfunc.json and model.safetensors. Pass the directory "
     "that qfunc.save wrote."),
    ("loading from an artifact", lambda w: qfunc.load(w.folder / "deployed")(w.net), "CalibrationError",
     "load('{folder}/deployed'): found no saved model, wanted qfunc.json and model.safetensors. Pass the directory that "
     "qfunc.save wrote."),
    ("loading cut text", lambda w: qfunc.load(w.folder / "cut")(w.net), "FileError",
     "{folder}/cut/qfunc.json: found no JSON (Expecting property name enclosed in double quotes: line 1 column 2 (char 1)), "
     "wanted JSON text. Write the file again: it is damaged, or another program changed it."),
    ("loading cut tensors", lambda w: qfunc.load(w.folder / "torn")(w.net), "FileError",
     "{folder}/torn/model.safetensors: found 4 bytes, wanted a header and its tensors. Write the file again: it is damaged, "
     "or another program changed it."),
    ("loading into another model", lambda w: qfunc.load(w.folder / "saved")(nn.Linear(3, 2)), "CalibrationError",
     "load('{folder}/saved'): found tensors that differ from the saved ones: 0.bias, 0.weight, 3.bias, 3.weight, bias, wanted "
     "the saved network. Build the model as it was when it was saved, and pass the arguments of the original quantize."),
    ("loading into a quantized model", lambda w: qfunc.load(w.folder / "saved")(w.quantized), "CalibrationError",
     "quantize: found a quantized model, wanted a float model. Quantize the float model that it came from."),
    ("an artifact with folders in its names", lambda w: Artifact({"../model.onnx": b'', "qfunc.json": b'{}'}), "DeployError",
     "Artifact.files: found '../model.onnx', wanted a plain file name. Return names without folders from the lowering."),
    ("an artifact without a report", lambda w: Artifact({"model.onnx": b''}), "DeployError",
     "Artifact.files: found ['model.onnx'], wanted a report. Add 'qfunc.json', which marks a directory as an artifact."),
)
# fmt: on
