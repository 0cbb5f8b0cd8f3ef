"""The products that OpenVINO computes in float."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_PRODUCTS, _CLAMPS = ("Conv", "ConvTranspose", "Gemm", "MatMul"), ("Relu", "Clip")
"""Nodes that sum products, and those that are fused with them.  All other layers compute the same from codes as from reals."""
_LAYERS = ("Convolution", "Deconvolution", "FullyConnected", "MatMul")
"""The layers of products; a bias may have a separate layer."""


def float_products(compiled: Any, model: Any, tensors: Iterable[str]) -> dict[str, str]:
    """Return code tensor -> "float" for the results of products whose kernels read reals.

    Products of codes of 8 bits are left out. They may be predicted in float, too, where their results are read as real
    numbers: both are within the bounds of a float unit.

    Args:
        compiled: The compiled model.
        model: The `onnx.ModelProto` that it was compiled from.
        tensors: The tensors before each FakeQuantize.

    Source: OpenVINO, execution graph: `originalLayersNames` and `primitiveType` of each layer.
    """
    kernels = dict(_kernels(compiled))
    producers = {o: n for n in model.graph.node for o in n.output}
    found = {}
    for tensor in tensors:
        product = _product(producers.get(tensor), producers)
        kernel = "" if product is None else kernels.get(product.name, "")
        if kernel and not kernel.lower().endswith("i8"):
            found[f"{tensor}.codes"] = "float"
    return found


def _kernels(compiled: Any) -> Iterator[tuple[str, str]]:
    # (name of a product in the model, the kernel of the layer that computes it)
    for layer in compiled.get_runtime_model().get_ordered_ops():
        facts = layer.get_rt_info()
        kind, kernel, names = (str(facts[k].astype(str)) for k in ("layerType", "primitiveType", "originalLayersNames"))
        if kind in _LAYERS:
            yield from ((name.partition("/")[0], kernel) for name in names.split(","))  # it may be "conv/WithoutBiases"


def _product(node: Any, producers: Mapping[str, Any]) -> Any:
    # The product whose result a tensor is, also after an activation; else None.
    while node is not None and node.op_type in _CLAMPS:
        node = producers.get(node.input[0])
    return node if node is not None and node.op_type in _PRODUCTS else None
