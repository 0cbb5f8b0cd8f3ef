"""Every format that qfunc reads: a good file, how it is damaged, and who reads it."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attrs import frozen
from torch import nn

import qfunc
from qfunc import specs, targets
from qfunc.__main__ import main
from qfunc.command_line.calibration_data import inputs_of, read_batches
from qfunc.command_line.quantize import read_program
from qfunc.files.fields import require
from qfunc.files.json_text import parse
from qfunc.files.ncnn_param import input_shapes, read_param
from qfunc.lowering.artifact import Artifact
from qfunc.lowering.report_fields import read_quantized
from qfunc.numerics.qparams import Affine
from qfunc.proof.package import read_proof
from qfunc.proof.saved_check import check_saved
from qfunc.reconstruction.checkpoint import Checkpoint
from qfunc.reconstruction.optimize import Optimized
from qfunc.specs import Everything, edit
from qfunc.targets.executorch import schema as xnnpack
from qfunc.targets.executorch.pte import delegate_of
from qfunc.targets.onnxruntime.runner import OnnxRuntimeRunner
from qfunc.targets.tosa import schema as tosa
from tests.files.damage import JSON, Damage, damage_archive, damage_bytes, damage_safetensors

INPUT = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
UNIT = Optimized({"fc.weight": torch.ones(2, 3, dtype=torch.bool)}, {"fc": Affine(torch.tensor(0.5), torch.tensor(0.0))})
BELONGS = {"model": "0" * 64, "method": "1" * 64}


@frozen(eq=False)
class Format:
    """A file of a kind, the damage that is done to its content, and what reads it."""

    name: str
    content: bytes
    damage: Damage
    read: Callable[[bytes], Any]


def network() -> nn.Module:
    """A convolution and a linear layer."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2)).eval()


def layer() -> nn.Module:
    """One linear layer: it is captured for each damaged file."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 2)).eval()


def saved_model(place: Path, build: Callable[[], nn.Module] = network) -> Path:
    """Save a calibrated model and return its folder."""
    return qfunc.save(place)(calibrated(targets.qdq, build))


def calibrated(target: Any, build: Callable[[], nn.Module] = network) -> Any:
    """Return a model that is calibrated for a target."""
    return qfunc.calibrate([INPUT], progress=False)(qfunc.quantize(target)(build()))


def artifact(name: str, build: Callable[[], nn.Module] = network) -> Artifact:
    """Return the artifact of a model for a target by its name."""
    target = getattr(targets, name)
    return qfunc.deploy(target)(calibrated(target, build))


def formats(folder: Path) -> Iterator[Format]:
    """Yield the formats; those in folders read from `folder`."""
    model, deployed, unit = (
        saved_model(folder / "model", layer),
        artifact("onnx_qnn", layer).save(folder / "artifact"),
        folder / "units",
    )
    Checkpoint(unit, BELONGS).write(0, UNIT, {})
    (folder / "target.json").write_text(specs.to_json(targets.qdq))
    yield Format("spec", specs.to_json(targets.ppl_cuda).encode(), JSON, lambda c: specs.from_json(c.decode(errors="replace")))
    yield _at("target.json", folder / "target.json", JSON, lambda: command("show", folder / "target.json"))
    net = layer()
    yield _at("load qfunc.json", model / "qfunc.json", JSON, lambda: qfunc.load(model)(net))
    yield _at("load tensors", model / "model.safetensors", damage_safetensors, lambda: qfunc.load(model)(net))
    yield _at("verify model", model / "qfunc.json", JSON, lambda: check_saved(model))
    yield _at("verify tensors", model / "model.safetensors", damage_safetensors, lambda: check_saved(model))
    yield _at("verify artifact", deployed / "qfunc.json", JSON, lambda: check_saved(deployed))
    target = targets.onnxruntime
    proven = qfunc.prove(target)(calibrated(target, layer), INPUT)
    place = proven.save(folder / "proof")
    yield _at("proof", place / "proof.json", JSON, lambda: read_proof(place, proven))
    yield _at("proof tensors", place / "proof.safetensors", damage_safetensors, lambda: read_proof(place, proven))
    index, first, again = unit / "reconstruction.json", unit / "unit-0000.safetensors", Checkpoint(unit, BELONGS)
    yield _at("checkpoint index", index, JSON, lambda: Checkpoint(unit, BELONGS))
    yield _at("checkpoint unit", first, damage_safetensors, lambda: again.read(0, UNIT))
    files = artifact("onnxruntime").files
    yield Format("report", files["qfunc.json"], JSON, lambda c: read_quantized(Artifact({"qfunc.json": c}).report))
    runner = OnnxRuntimeRunner(optimise=False)
    yield Format("onnx", files["model.onnx"], damage_bytes, lambda c: runner.inside(Artifact({**files, "model.onnx": c})))
    yield Format("float onnx", float_onnx(), damage_bytes, qfunc.read)
    yield from _of_runtimes()
    yield from _of_command_line(folder)


def float_onnx() -> bytes:
    """A float ONNX file of a small network."""
    target = edit.skip(Everything())(targets.qdq)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that no op is quantized is meant
        return qfunc.deploy(target, (INPUT,))(qfunc.quantize(target)(network())).files["model.onnx"]


def _of_command_line(folder: Path) -> Iterator[Format]:
    program = torch.export.export(nn.Linear(4, 3).eval(), (torch.randn(2, 4),))
    torch.export.save(program, folder / "model.pt2")
    np.savez(folder / "data.npz", x=np.zeros((6, 4), np.float32))
    data, inputs = folder / "data.npz", inputs_of(program)
    yield _at("npz", data, damage_archive, lambda: list(read_batches(str(data), inputs, 2)))
    yield _at("pt2", folder / "model.pt2", damage_archive, lambda: read_program(folder / "model.pt2"))


def _of_runtimes() -> Iterator[Format]:
    files, name = artifact("tosa").files, "model.values.json"
    yield Format("tosa values", files[name], JSON, lambda c: require(tosa.VALUES, parse(c, name), name))
    yield Format("tosa", files["model.tosa"], damage_bytes, tosa.block_of)
    files = artifact("executorch_xnnpack").files
    yield Format("xnnpack values", files[name], JSON, lambda c: require(xnnpack.VALUES, parse(c, name), name))
    yield Format("pte", files["model.pte"], damage_bytes, lambda c: xnnpack.read(delegate_of(c)))
    param = artifact("ncnn").files["model.ncnn.param"]
    yield Format("ncnn", param, damage_bytes, lambda c: input_shapes(read_param(c, "model.ncnn.param")))


def command(*words: Any) -> int:
    """Run a command of `python -m qfunc` and return its exit code."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return main([str(word) for word in words])


def _at(name: str, path: Path, damage: Damage, read: Callable[[], Any]) -> Format:
    content = path.read_bytes()

    def of(changed: bytes) -> Any:
        path.write_bytes(changed)
        try:
            return read()
        finally:
            path.write_bytes(content)

    return Format(name, content, damage, of)
