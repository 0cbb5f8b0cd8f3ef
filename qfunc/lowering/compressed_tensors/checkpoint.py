"""A checkpoint: the tensors of a model with quantized linear layers, and the `quantization_config` that describes them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import onnx
import torch
from attrs import frozen
from onnx import numpy_helper
from torch import Tensor

from qfunc.errors import DeployError
from qfunc.lowering.compressed_tensors.layers import Layer, layer_of, module_of
from qfunc.lowering.qdq_reader import QdqModel, copies
from qfunc.lowering.quantized_tensor import QuantizedTensor

_PRODUCTS = ("Gemm", "MatMul")


@frozen(eq=False)
class Checkpoint:
    """Tensors by name, and the fields of the config."""

    tensors: Mapping[str, Tensor]
    config: Mapping[str, Any]


def checkpoint_of(model: onnx.ModelProto, sites: Iterable[QuantizedTensor]) -> Checkpoint:
    """Return the checkpoint of a Q/DQ model whose metadata names its parameters.

    Raises:
        DeployError: a parameter that the model does not have as it is, or a layer that the format does not have.
    """
    source, formats = QdqModel(model), {place.real: site.format for site in sites for place in site.places}
    parameters: dict[str, list[int]] = next((json.loads(p.value) for p in model.metadata_props if p.key == "parameters"), {})
    layers: dict[str, Layer] = {}
    ignored: set[str] = set()
    for node in model.graph.node:
        name = _before_copies(source, node.input[1]) if node.op_type in _PRODUCTS else ""
        weight = source.dequantizer(name)
        if weight is not None and weight.input[0] in source.initializers:
            layer = layer_of(source, node, weight, formats[name])
            layers.setdefault(layer.name, layer)
        elif name in parameters:
            ignored |= {module_of(name), node.name.removesuffix(".rows")}
    weights = {f"{name}.weight" for name in layers}
    tensors = {f"{layer.name}.{key}": value for layer in layers.values() for key, value in layer.tensors.items()}
    for name, shape in parameters.items():
        held, quantized = source.initializers.get(name), name in weights
        if quantized and held is None:
            continue
        if quantized:
            found, do = "a weight that other ops read in float", "Keep the layer in float by edit.skip."
            raise DeployError(where=f"tensor {name!r}", found=found, wanted="one that only linear layers read", do=do)
        if held is None or list(held.dims) != shape:
            found, do = "another form of the parameter in ONNX", "Deploy the layers that are quantized, as submodules."
            wanted = "the parameter as it is, or as the weight of a linear layer"
            raise DeployError(where=f"tensor {name!r}", found=found, wanted=wanted, do=do)
        tensors[name] = torch.from_numpy(numpy_helper.to_array(held).copy())
    return Checkpoint(tensors, _config(list(layers.values()), sorted(ignored)))


def _before_copies(source: QdqModel, name: str) -> str:
    while name in source.producers and copies(source.producers[name]):
        name = source.producers[name].input[0]
    return name


def _config(layers: list[Layer], ignored: list[str]) -> dict[str, Any]:
    groups: dict[str, list[Layer]] = {}
    for layer in layers:
        groups.setdefault(json.dumps([layer.form, layer.weights, layer.inputs], sort_keys=True), []).append(layer)
    forms = {layer.form for layer in layers}
    return {
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "format": forms.pop() if len(forms) == 1 else "mixed-precision",
        "config_groups": {
            f"group_{i}": {
                "targets": ["Linear"] if len(groups) == 1 else [layer.name for layer in group],
                "weights": dict(group[0].weights),
                "input_activations": group[0].inputs,
                "output_activations": None,
                "format": group[0].form,
            }
            for i, group in enumerate(groups.values())
        },
        "ignore": ignored,
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
    }


__all__ = ["Checkpoint", "checkpoint_of"]
