"""Side files: the qparams of an ONNX model in a separate file, by the names of its tensors."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from qfunc.errors import DeployError
from qfunc.lowering.quantized_tensor import QuantizedTensor
from qfunc.specs import Int


def tensors_of(model: Any) -> set[str]:
    """Return the names of all tensors of a model: inputs, constants and outputs of nodes."""
    graph = model.graph
    return {v.name for v in (*graph.input, *graph.initializer)} | {o for n in graph.node for o in n.output}


def by_tensor(model: Any, sites: Iterable[QuantizedTensor]) -> dict[str, QuantizedTensor]:
    """Return {name in the model: quantized tensor}, in the order of the sites; a tensor may have several names.

    Raises:
        DeployError: two quantizers with different qparams on one tensor.
    """
    names = tensors_of(model)
    found: dict[str, QuantizedTensor] = {}
    for site in sites:
        for tensor in site.tensors:
            if tensor not in names:
                continue
            other = found.setdefault(tensor, site)
            if _qparams(other) != _qparams(site):
                raise DeployError(
                    where=f"tensor {tensor!r}",
                    found=f"two quantizers, {other.name!r} and {site.name!r}",
                    wanted="one quantizer, because the file has one entry for each tensor",
                    do="Edit the target's rules so that all its readers share one quantizer.",
                )
    return found


def derived(site: QuantizedTensor) -> bool:
    """Return True for a bias with the scale of its accumulator, which toolchains compute themselves."""
    return site.role == "bias" and isinstance(site.format, Int) and site.format.bits == 32


def json_bytes(content: Mapping[str, Any]) -> bytes:
    """Return JSON with the keys in their order; each number reads back as the same float64."""
    return (json.dumps(content, indent=1, allow_nan=False) + "\n").encode()


def _qparams(site: QuantizedTensor) -> tuple[Any, ...]:
    return site.format, site.scale, site.zero_point, site.axis
