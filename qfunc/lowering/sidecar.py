"""Files of qparams beside an ONNX model: which tensors they may name, what a format cannot say, their bytes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from qfunc.errors import DeployError
from qfunc.lowering.tensors import QuantizedTensor
from qfunc.specs import Int


def tensors_of(model: Any) -> set[str]:
    """The names of all tensors of a model: inputs, constants and what its nodes write."""
    graph = model.graph
    return {v.name for v in (*graph.input, *graph.initializer)} | {o for n in graph.node for o in n.output}


def by_tensor(model: Any, sites: Iterable[QuantizedTensor]) -> dict[str, QuantizedTensor]:
    """The quantized tensors by each name that they have in the model, in the order of the sites.

    Raises:
        DeployError: two quantizers of different qparams on one tensor, which a file by names cannot say.
    """
    there = tensors_of(model)
    found: dict[str, QuantizedTensor] = {}
    for site in sites:
        for tensor in site.tensors:
            if tensor not in there:
                continue
            other = found.setdefault(tensor, site)
            if _qparams(other) != _qparams(site):
                raise DeployError(
                    where=f"tensor {tensor!r}",
                    found=f"two quantizers, {other.name!r} and {site.name!r}",
                    wanted="one, for the file names every tensor once",
                    do="Edit the target's rules so that all its readers take the same qparams.",
                )
    return found


def derived(site: QuantizedTensor) -> bool:
    """Whether this is a bias at the scale of its accumulator, which toolchains derive by themselves."""
    return site.role == "bias" and isinstance(site.format, Int) and site.format.bits == 32


def refused(site: QuantizedTensor, tensor: str, found: str, wanted: str, do: str) -> DeployError:
    """The error of a format that cannot hold a site."""
    return DeployError(where=f"{site.role} {tensor!r}", found=found, wanted=wanted, do=do)


def require_integers(site: QuantizedTensor, tensor: str, artifact: str) -> Int:
    """The integer format of a site.

    Raises:
        DeployError: another format.
    """
    if isinstance(site.format, Int):
        return site.format
    raise refused(site, tensor, repr(site.format), f"integers: {artifact} has no other formats", "Edit the scheme.")


def require_symmetric(site: QuantizedTensor, tensor: str, artifact: str) -> None:
    """Refuses zero points.

    Raises:
        DeployError: a zero point that is not 0.
    """
    if any(site.zero_point):
        found, wanted = f"zero point {next(z for z in site.zero_point if z)}", f"0: {artifact} has no zero points"
        raise refused(site, tensor, found, wanted, "Edit the scheme: zero_point=None.")


def require_per_tensor(site: QuantizedTensor, tensor: str, artifact: str) -> None:
    """Refuses several scales.

    Raises:
        DeployError: a scale a channel.
    """
    if len(set(zip(site.scale, site.zero_point, strict=True))) > 1:
        wanted = f"one: {artifact} has one number a tensor"
        raise refused(site, tensor, f"{len(site.scale)} scales", wanted, "Edit the scheme: Scale(PerTensor()).")


def json_bytes(content: Mapping[str, Any]) -> bytes:
    """JSON in the order given; every number reads back as the same float64."""
    return (json.dumps(content, indent=1, allow_nan=False) + "\n").encode()


def _qparams(site: QuantizedTensor) -> tuple[Any, ...]:
    return site.format, site.scale, site.zero_point, site.axis


__all__ = [
    "by_tensor",
    "derived",
    "json_bytes",
    "refused",
    "require_integers",
    "require_per_tensor",
    "require_symmetric",
    "tensors_of",
]
