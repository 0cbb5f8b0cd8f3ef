"""An ONNX file from outside: its model with all tensors, its operator sets, and what shape inference knows of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import torch
from attrs import field, frozen
from onnx import inliner

from qfunc.errors import CaptureError, FileError, first_line
from qfunc.files.json_text import damage_error
from qfunc.files.onnx_model import require_sound
from qfunc.reading.onnx.ops import CORE, reader_of
from qfunc.reading.size_arithmetic import torch_type
from qfunc.reading.trial_sizes import Dims

OPSETS = range(7, onnx.defs.onnx_opset_version() + 1)
_SMALL = 1024
"""Tensors up to this number of entries may be shapes: shape inference gets their values."""
_CONTROL = ("If", "Loop", "Scan")


@frozen(eq=False)
class Source:
    """A model that can be read.

    Attributes:
        model: The model, all tensors inside, without functions.
        versions: Domain -> version of its operators.
        known: Name -> sizes and type, as far as shape inference knows them.
        file: Its name in errors.
    """

    model: onnx.ModelProto
    versions: Mapping[str, int]
    known: Mapping[str, tuple[Dims | None, torch.dtype | None]] = field(repr=False)
    file: str

    @classmethod
    def of(cls, given: str | os.PathLike[str] | bytes | onnx.ModelProto, sizes: Mapping[str, int]) -> Source:
        """Return the source of a path, the bytes of a file, or a model, with sizes fixed by name.

        Raises:
            FileError: no ONNX file, a damaged one, or one with tensors in other places.
            CaptureError: operators that are too old, or names of sizes that the file does not have.
        """
        model, file = _loaded(given)
        require_sound(model, file)
        versions = {o.domain: o.version for o in model.opset_import}
        version = versions.get("", versions.get("ai.onnx"))
        if version is None or version not in OPSETS:
            found = "no version of ONNX's operators" if version is None else f"operators of version {version}"
            do = "Convert it: onnx.version_converter.convert_version(model, 21)."
            raise CaptureError(where=file, found=found, wanted=f"a version from {OPSETS[0]} to {OPSETS[-1]}", do=do)
        if sizes:
            model = _with_sizes(model, sizes, file)
        model = _without_functions(model, file)
        return cls(model, {**versions, "": version, "ai.onnx": version}, _inferred(model), file)


def _loaded(given: Any) -> tuple[onnx.ModelProto, str]:
    if isinstance(given, onnx.ModelProto):
        return _whole(given, "", "the model"), "the model"
    if isinstance(given, bytes | bytearray | memoryview):
        return _whole(_parsed(bytes(given), "the bytes"), "", "the bytes"), "the bytes"
    path = Path(given)
    if path.is_dir() or not path.exists():
        found = "a folder" if path.is_dir() else "no such file"
        raise FileError(
            where=str(path), found=found, wanted="an ONNX file", do="Give the path of a .onnx file, or the model itself."
        )
    return _whole(_parsed(path.read_bytes(), str(path)), str(path.parent), str(path)), str(path)


def _parsed(content: bytes, file: str) -> onnx.ModelProto:
    if content.startswith(b"version https://git-lfs"):
        do = "Fetch it: git lfs pull."
        raise FileError(where=file, found="a pointer of Git LFS", wanted="the file that it stands for", do=do)
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except Exception as e:  # protobuf's DecodeError, whose module has no types
        raise damage_error(file, "", f"no ONNX model ({first_line(e)})", "an ONNX model") from e
    if not model.HasField("graph") or not (model.graph.node or model.graph.output):
        raise damage_error(file, "graph", "no graph", "an ONNX model")
    return model


def _whole(model: onnx.ModelProto, folder: str, file: str) -> onnx.ModelProto:
    # Read the tensors of other files, which must be in the folder of the model.
    outside = [t for t in _tensors(model.graph) if t.data_location == onnx.TensorProto.EXTERNAL]
    if not outside:
        return model
    if not folder:
        do = "Give the path of the file, whose folder has the tensors."
        raise FileError(where=file, found="tensors in other files", wanted="a path", do=do)
    base = Path(folder).resolve()
    for tensor in outside:
        entries = {e.key: e.value for e in tensor.external_data}
        place = (base / entries.get("location", "")).resolve()
        if base not in place.parents or not place.is_file():
            do = "Keep the tensors beside the model, as onnx.save does."
            found = f"a tensor in {entries.get('location', '')!r}"
            raise FileError(where=f"{file}: {tensor.name}", found=found, wanted="a file in the folder of the model", do=do)
        numbers = [entries.get("offset", "0"), entries.get("length", "-1")]
        if not all(n.removeprefix("-").isdecimal() for n in numbers) or int(numbers[0]) < 0:
            raise damage_error(file, f"{tensor.name}.external_data", f"{numbers}", "an offset and a length")
        with place.open("rb") as f:
            f.seek(int(numbers[0]))
            tensor.raw_data = f.read(int(numbers[1]))
        tensor.data_location = onnx.TensorProto.DEFAULT
        del tensor.external_data[:]
    return model


def _tensors(graph: onnx.GraphProto) -> list[onnx.TensorProto]:
    found = list(graph.initializer)
    for node in graph.node:
        for attribute in node.attribute:
            found += [attribute.t] if attribute.HasField("t") else []
            found += _tensors(attribute.g) if attribute.HasField("g") else []
    return found


def _with_sizes(model: onnx.ModelProto, sizes: Mapping[str, int], file: str) -> onnx.ModelProto:
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    unknown, names = dict(sizes), list[str]()
    for info in fixed.graph.input:
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            name = name_of_size(info.name, axis, dim)
            names += [name] if name else []
            if name in sizes:
                unknown.pop(name, None)
                dim.dim_value = sizes[name]
    if unknown:
        wanted = f"the name of a size that varies: {', '.join(map(repr, dict.fromkeys(names))) or 'the file has none'}"
        raise CaptureError(
            where=f"{file}, sizes", found=repr(next(iter(unknown))), wanted=wanted, do="Give one of these names."
        )
    del fixed.graph.value_info[:]
    return fixed


def name_of_size(tensor: str, axis: int, dim: onnx.TensorShapeProto.Dimension) -> str:
    """Return the name of a size that varies, "x_1" for the size without a name of axis 1 of x; "" for a known size."""
    if dim.HasField("dim_value") and dim.dim_value >= 0:
        return ""
    return dim.dim_param or f"{tensor}_{axis}"


def _without_functions(model: onnx.ModelProto, file: str) -> onnx.ModelProto:
    # The functions of the file, and operators that ONNX defines by others, where no reader is.
    local = {(f.domain, f.name) for f in model.functions}
    nodes = [n for g in _graphs(model.graph) for n in g.node]
    defined = {(n.domain, n.op_type) for n in nodes if reader_of(n) is None and _is_function(n, model)}
    if not local and not defined:
        return model
    try:
        model = _with_defaults(inliner.inline_local_functions(model) if local else model, defined)
        ids = [(domain, name) for domain, name in defined if domain in CORE]
        return inliner.inline_selected_functions(model, ids, inline_schema_functions=True) if ids else model
    except Exception as e:  # the checker's and the inliner's errors have no common type
        do = "Check the file with onnx.checker.check_model."
        raise FileError(
            where=file, found=f"functions that cannot be expanded ({first_line(e)})", wanted="a valid model", do=do
        ) from e


def _with_defaults(model: onnx.ModelProto, ops: set[tuple[str, str]]) -> onnx.ModelProto:
    # The inliner leaves attributes out that a node leaves to their default.
    filled = onnx.ModelProto()
    filled.CopyFrom(model)
    version = next((o.version for o in model.opset_import if o.domain in CORE), 1)
    for node in (n for g in _graphs(filled.graph) for n in g.node if (n.domain, n.op_type) in ops and n.domain in CORE):
        named = {a.name for a in node.attribute}
        attributes = onnx.defs.get_schema(node.op_type, version, "").attributes
        node.attribute.extend(a.default_value for n, a in attributes.items() if a.default_value.name and n not in named)
    return filled


def _is_function(node: onnx.NodeProto, model: onnx.ModelProto) -> bool:
    version = next((o.version for o in model.opset_import if o.domain in CORE), 1)
    if node.domain not in CORE or node.op_type in _CONTROL or not onnx.defs.has(node.op_type, version, ""):
        return False
    schema: Any = onnx.defs.get_schema(node.op_type, version, "")
    return bool(schema.has_function or schema.has_context_dependent_function)


def _graphs(graph: onnx.GraphProto) -> list[onnx.GraphProto]:
    found = [graph]
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                found += _graphs(attribute.g)
    return found


def _inferred(model: onnx.ModelProto) -> dict[str, tuple[Dims | None, torch.dtype | None]]:
    # Shape inference of the graph without its large tensors, which it needs no values of.
    light = onnx.ModelProto()
    light.ir_version = max(model.ir_version, 4)  # from 4 on initializers are no inputs
    light.opset_import.extend(model.opset_import)
    graph = light.graph
    graph.name = model.graph.name or "graph"
    for kind in ("node", "output", "value_info"):
        getattr(graph, kind).extend(getattr(model.graph, kind))
    stored = {t.name for t in model.graph.initializer}
    graph.input.extend(i for i in model.graph.input if i.name not in stored)
    for tensor in model.graph.initializer:
        count = 1
        for n in tensor.dims:
            count *= n
        if count <= _SMALL:
            graph.initializer.append(tensor)
        else:
            graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    try:
        found = onnx.shape_inference.infer_shapes(light, data_prop=True).graph
    except Exception:  # an invalid or unknown op: the readers say what they lack
        found = graph
    known = {info.name: _known(info, named=False) for info in (*found.value_info, *found.output)}
    return known | {info.name: _known(info, named=True) for info in found.input}


def _known(info: onnx.ValueInfoProto, named: bool) -> tuple[Dims | None, torch.dtype | None]:
    kind = info.type.tensor_type
    names = [name_of_size(info.name if named else "", axis, d) for axis, d in enumerate(kind.shape.dim)]
    dims = tuple(name or d.dim_value for name, d in zip(names, kind.shape.dim, strict=True))
    return dims if kind.HasField("shape") else None, torch_type(kind.elem_type) if kind.elem_type else None
