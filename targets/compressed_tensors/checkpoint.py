"""A checkpoint: the tensors of a model with quantized linear layers, and the `quantization_config` that describes them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import onnx
import torch
from onnx import helper, numpy_helper
from torch import Tensor

from qfunc.errors import DeployError
from qfunc.files.part import Part
from qfunc.files.stored_tensor import StoredTensor
from qfunc.lowering.qdq.reader import QdqModel
from qfunc.lowering.quantized_tensor import QuantizedTensor
from qfunc.targets.compressed_tensors.layers import Layer, before_copies, layer_of, module_of

_PRODUCTS = ("Gemm", "MatMul")
_KINDS = {
    "float64": "F64", "float32": "F32", "float16": "F16", "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint8": "U8", "bool": "BOOL", "float8_e4m3fn": "F8_E4M3",
}  # fmt: skip
"""Name of a dtype -> that of safetensors."""


def checkpoint_part(model: onnx.ModelProto, sites: Iterable[QuantizedTensor]) -> Part:
    """Return the tensors of a Q/DQ model whose metadata names its parameters; the notes describe its layers.

    Raises:
        DeployError: a parameter that the model does not have as it is, or a layer that the format does not have.
    """
    source, formats = QdqModel(model), {place.real: site.format for site in sites for place in site.places}
    parameters: dict[str, list[int]] = next((json.loads(p.value) for p in model.metadata_props if p.key == "parameters"), {})
    layers: dict[str, Layer] = {}
    ignored: set[str] = set()
    largest = _largest_scales(source)
    for node in model.graph.node:
        name = before_copies(source, node.input[1]) if node.op_type in _PRODUCTS else ""
        weight = source.dequantizer(name)
        if weight is not None and weight.input[0] in source.initializers:
            layer = layer_of(source, node, weight, formats[name], largest[before_copies(source, node.input[0])])
            layers.setdefault(layer.name, layer)
        elif name in parameters:
            ignored |= {module_of(name), node.name.removesuffix(".rows")}
    weights = {f"{name}.weight" for name in layers}
    tensors = {f"{layer.name}.{key}": _stored(value) for layer in layers.values() for key, value in layer.tensors.items()}
    for name, shape in parameters.items():
        if name in weights:
            continue
        held = source.initializers.get(name)
        if held is None or list(held.dims) != shape:
            found, do = "another form of the parameter in ONNX", "Deploy the layers that are quantized, as submodules."
            wanted = "the parameter as it is, or as the weight of a linear layer"
            raise DeployError(where=f"tensor {name!r}", found=found, wanted=wanted, do=do)
        tensors[name] = _as_it_is(held)
    described = [{"name": x.name, "form": x.form, "weights": x.weights, "inputs": x.inputs} for x in layers.values()]
    notes = {"layers": described, "ignored": sorted(ignored)}
    inputs, outputs = (tuple(value.name for value in values) for values in (model.graph.input, model.graph.output))
    return Part(tensors, notes, inputs, outputs)


def _largest_scales(source: QdqModel) -> dict[str, float]:
    # By the name of a tensor: the largest scale of the weights that it is multiplied by.
    found: dict[str, float] = {}
    for node in source.model.graph.node:
        weight = source.dequantizer(before_copies(source, node.input[1])) if node.op_type in _PRODUCTS else None
        if weight is not None and weight.input[1] in source.initializers:
            scale = float(source.constant(weight, 1).max(initial=0.0))
            tensor = before_copies(source, node.input[0])
            found[tensor] = max(found.get(tensor, 0.0), scale)
    return found


def _as_it_is(held: onnx.TensorProto) -> StoredTensor:
    kind = _KINDS[helper.tensor_dtype_to_np_dtype(held.data_type).name]
    return StoredTensor(kind, tuple(held.dims), lambda: numpy_helper.to_array(held).tobytes())


def _stored(tensor: Tensor) -> StoredTensor:
    kind = _KINDS[str(tensor.dtype).removeprefix("torch.")]
    return StoredTensor(kind, tuple(tensor.shape), lambda: tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())


def quantization_config(parts: Sequence[Part]) -> dict[str, Any]:
    """Return the fields of a config that describe the quantized layers of some parts."""
    layers = [layer for part in parts for layer in part.notes["layers"]]
    groups: dict[str, list[dict[str, Any]]] = {}
    for layer in layers:
        key = json.dumps([layer["form"], layer["weights"], layer["inputs"]], sort_keys=True)
        groups.setdefault(key, []).append(layer)
    forms = {layer["form"] for layer in layers}
    return {
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "format": forms.pop() if len(forms) == 1 else "mixed-precision",
        "config_groups": {
            f"group_{i}": {
                "targets": ["Linear"] if len(groups) == 1 else [layer["name"] for layer in group],
                "weights": group[0]["weights"],
                "input_activations": group[0]["inputs"],
                "output_activations": None,
                "format": group[0]["form"],
            }
            for i, group in enumerate(groups.values())
        },
        "ignore": sorted({name for part in parts for name in part.notes["ignored"]}),
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
    }
