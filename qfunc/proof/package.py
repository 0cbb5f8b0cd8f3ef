"""The files of a proof beside those of an artifact: how they are written, and how those of others are read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as to_bytes
from torch import Tensor

from qfunc.files.fields import Count, Flag, JsonObject, Many, Nullable, Number, Text, Word, require
from qfunc.files.folder import read_file
from qfunc.files.json_text import damage_error, parse
from qfunc.files.ncnn_param import input_shapes, read_param
from qfunc.files.tensors import read_tensors
from qfunc.lowering.artifact import REPORT, Artifact, digests
from qfunc.lowering.checked_runtime import CheckedRuntime
from qfunc.proof.expected import Expected

PROOF, TENSORS, CHECKER, PAGE = "proof.json", "proof.safetensors", "check.py", "index.html"

_OF_RUNTIME = {"onnxruntime": ("optimise",), "litert": ("kernels",), "ncnn": ("outputs",), "openvino": ()}
"""The runtimes of check.py, each with its own fields."""
_FILES = {"ncnn": 2}
"""The number of files that a runtime loads, where it is not 1."""

_QPARAMS = JsonObject({
    "scale": Many(Number(), least=1), "zero_point": Many(Count(-(1 << 63)), least=1), "axis": Nullable(Count(-64, 64)),
})  # fmt: skip
_INPUT = JsonObject({"tensor": Text()}, {"blob": Text()})
_ENTRY = JsonObject(
    {"name": Text(), "tensor": Text(), "shown": Nullable(Text()), "output": Nullable(Count()), "step": Number(),
     "exact": Flag()},
    {"qparams": _QPARAMS},
)  # fmt: skip
_FIELDS = JsonObject(
    {"runtime": Word(tuple(_OF_RUNTIME)), "cpu": Text(), "target": Text(), "files": Many(Text(), least=1, most=2),
     "inputs": Many(_INPUT, least=1), "tensors": Many(_ENTRY, least=1)},
    {"optimise": Flag(), "threads": Count(), "kernels": Word(("xnnpack", "reference", "optimised")), "outputs": Many(Text())},
)  # fmt: skip
"""The fields that `with_proof` writes."""


def with_proof(
    artifact: Artifact, runtime: CheckedRuntime, target: Any, inputs: Sequence[Tensor], expected: Sequence[Expected], page: str
) -> Artifact:
    """Return the artifact with the files of a proof.

    Args:
        page: The folder of onnxruntime-web as a URL, in the page.
    """
    shown, settings = runtime.shown(artifact), runtime.settings(artifact)
    blobs, qparams = settings.pop("blobs", [None] * len(inputs)), settings.pop("qparams", {})
    tensors = {f"input.{i}": x for i, x in enumerate(inputs)}
    entries, count = [], 0
    for each in expected:
        key = f"output.{count}" if each.shown is None else each.shown
        entry = {"name": each.name, "tensor": key, "step": each.step, "exact": each.exact, "shown": None, "output": None}
        if each.shown is None:
            entry["output"], count = count, count + 1
        else:
            entry["shown"] = shown[each.shown]
            entry |= {"qparams": qparams[entry["shown"]]} if qparams else {}
        tensors[key] = each.value
        entries.append(entry)
    proof = {
        "runtime": runtime.name,
        "cpu": str(target.runtime.cpu or "any processor"),
        "target": target.name,
        "files": runtime.names(artifact),
        "inputs": [{"tensor": f"input.{i}"} | ({"blob": b} if b else {}) for i, b in enumerate(blobs)],
        "tensors": entries,
        **settings,
    }
    added = {
        PROOF: _text(proof),
        TENSORS: to_bytes({name: t.detach().cpu().contiguous().clone() for name, t in sorted(tensors.items())}),
        CHECKER: _resource(CHECKER).encode(),
    }
    if runtime.page:
        added[PAGE] = _resource(PAGE).replace('"./"', json.dumps(page).replace("<", "\\u003c"), 1).encode()
    files = {**artifact.files, **added}
    return Artifact({**files, REPORT: _text(artifact.report | {"files": digests(files)})})


def _text(value: Any) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()


def _resource(name: str) -> str:
    return (resources("qfunc") / "proof" / name).read_text(encoding="utf-8")


def read_proof(place: Path, artifact: Artifact) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (the fields of proof.json, the arrays of proof.safetensors) of a folder.

    Args:
        place: The folder.
        artifact: The files in it.
    Raises:
        FileError: names the file and the field.
    """
    where = str(place / PROOF)
    proof: dict[str, Any] = require(_FIELDS, parse(read_file(place / PROOF), where), where)
    runtime, count = proof["runtime"], _FILES.get(proof["runtime"], 1)
    for name in _OF_RUNTIME[runtime]:
        if name not in proof:
            raise damage_error(where, name, "no such field", f"one for {runtime}")
    if len(proof["files"]) != count:
        raise damage_error(where, "files", f"{len(proof['files'])} names", f"{count}")
    for i, name in enumerate(proof["files"]):
        if name not in artifact.files:
            raise damage_error(where, f"files[{i}]", repr(name[:60]), "a file of the package")
    arrays = _arrays(place)
    for field in ("inputs", "tensors"):
        for i, entry in enumerate(proof[field]):
            if entry["tensor"] not in arrays:
                raise damage_error(where, f"{field}[{i}].tensor", repr(entry["tensor"][:60]), f"a tensor of {TENSORS}")
    for i, entry in enumerate(proof["tensors"]):
        if (entry["shown"] is None) == (entry["output"] is None) or entry["step"] <= 0:
            raise damage_error(where, f"tensors[{i}]", "no place or no step", "a tensor's name or an output, and its step")
        if runtime == "openvino" and entry["shown"] is not None and "qparams" not in entry:
            raise damage_error(where, f"tensors[{i}].qparams", "no such field", "one for openvino")
    if runtime == "ncnn":
        _require_inputs(proof, arrays, artifact.files, where)
    elif runtime != "litert":
        # Import here, so that `import qfunc` does not import onnx.
        from qfunc.files.onnx_model import read_model

        read_model(artifact.files[proof["files"][0]], proof["files"][0])  # runtimes would open the files that a model names
    return proof, arrays


def _arrays(place: Path) -> dict[str, Any]:
    found = read_tensors(place / TENSORS)
    known = {getattr(torch, d) for d in ("float32", "float64", "int8", "uint8", "int16", "int32", "int64", "bool")}
    for name, tensor in found.items():
        if tensor.dtype not in known:
            raise damage_error(str(place / TENSORS), f"[{name[:60]!r}].dtype", str(tensor.dtype), "one that check.py reads")
    return {name: tensor.numpy() for name, tensor in found.items()}


def _require_inputs(proof: dict[str, Any], arrays: Mapping[str, Any], files: Mapping[str, bytes], where: str) -> None:
    # With inputs of other shapes ncnn reads beyond its memory.
    lines = read_param(files[proof["files"][0]], proof["files"][0])
    shapes = {line.outputs[0]: input_shapes([line]).get(line.name) for line in lines if line.kind == "Input" and line.outputs}
    for i, entry in enumerate(proof["inputs"]):
        array = arrays[entry["tensor"]]
        example = array.shape[1:] if array.ndim > 1 else (1,)
        wanted = shapes.get(entry.get("blob", ""))
        if array.ndim == 0 or wanted != example:
            raise damage_error(
                where, f"inputs[{i}]", f"the shape {list(array.shape)[:8]}", f"examples of {wanted}, as in the model"
            )
