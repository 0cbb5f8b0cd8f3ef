"""Read norms."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from qfunc.reading.node import NodeReader, Reader
from qfunc.reading.values import Constant, Value

_BATCH_NORMS = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}


def _batch_norm(r: NodeReader) -> Any:
    if r.attribute("training_mode", 0) or (r.version < 14 and len([o for o in r.outputs if o]) > 1):
        raise r.refuse("a BatchNorm that trains", "one with its statistics", "Export the model in evaluation mode.")
    names, rank = ("weight", "bias", "running_mean", "running_var"), r.known_rank()
    values = {name: r.x(i + 1) for i, name in enumerate(names)}
    eps = float(r.attribute("epsilon", 1e-5))
    known = {name: v for name, v in values.items() if isinstance(v, Constant)}
    if len(known) == len(values) and rank in _BATCH_NORMS and not isinstance(r.value(0), Constant):
        module = _BATCH_NORMS[rank](len(known["weight"].tensor), eps=eps)
        return r.network.module(r.path, module, known, r.x())
    return r.call(F.batch_norm, r.x(), *(values[n] for n in (*names[2:], *names[:2])), False, 0.1, eps)


def _instance_norm(r: NodeReader) -> Any:
    eps = float(r.attribute("epsilon", 1e-5))
    return r.call(F.instance_norm, r.x(), None, None, r.weight(1), r.weight(2), True, 0.1, eps)


def _layer_norm(r: NodeReader) -> Any:
    rank, axis = r.known_rank(), int(r.attribute("axis", -1))
    shape = [r.length(a) for a in range(axis % rank, rank)]
    if any(n is None for n in shape):
        raise r.refuse(f"a norm over axes of sizes {shape}", "known sizes", r.network.how_to_fix_sizes)
    weight, bias = (_of_shape(r, i, [int(n) for n in shape]) for i in (1, 2))  # type: ignore[arg-type]
    eps = float(r.attribute("epsilon", 1e-5))
    found: list[Value | None] = [r.call(F.layer_norm, r.x(), tuple(shape), weight, bias, eps)]
    if any(r.outputs[1:]):
        found += _moments(r, tuple(range(axis % rank, rank)), eps)
    return found


def _moments(r: NodeReader, axes: tuple[int, ...], eps: float) -> Any:
    # The mean, and the inverse of the deviation.
    mean = r.call(torch.mean, r.x(), axes, True)
    centred = r.call(torch.sub, r.x(), mean)
    variance = r.call(torch.mean, r.call(torch.mul, centred, centred), axes, True)
    return [mean, r.call(torch.rsqrt, r.call(torch.add, variance, eps))]


def _of_shape(r: NodeReader, index: int, shape: list[int]) -> Any:
    value = r.weight(index)
    if not isinstance(value, Constant) or list(value.tensor.shape) == shape:
        return value
    return Constant(value.tensor.expand(shape).contiguous(), value.name, True)


def _group_norm(r: NodeReader) -> Any:
    groups, channels = int(r.attribute("num_groups")), r.length(1)
    weight, bias = r.weight(1), r.weight(2)
    if r.version < 21 and channels is not None:  # one entry a group
        each = channels // groups
        weight, bias = (_repeated(v, each) for v in (weight, bias))
    return r.call(F.group_norm, r.x(), groups, weight, bias, float(r.attribute("epsilon", 1e-5)))


def _repeated(value: Any, times: int) -> Any:
    return Constant(value.tensor.repeat_interleave(times), value.name, True) if isinstance(value, Constant) else value


def _rms_norm(r: NodeReader) -> Any:
    rank, axis = r.known_rank(), int(r.attribute("axis", -1))
    shape = [r.length(a) for a in range(axis % rank, rank)]
    if any(n is None for n in shape):
        raise r.refuse(f"a norm over axes of sizes {shape}", "known sizes", r.network.how_to_fix_sizes)
    weight = _of_shape(r, 1, [int(n) for n in shape])  # type: ignore[arg-type]
    return r.call(F.rms_norm, r.x(), tuple(shape), weight, float(r.attribute("epsilon", 1e-5)))


def _response_norm(r: NodeReader) -> Any:
    size = int(r.attribute("size"))
    if size % 2 == 0:
        raise r.refuse(
            f"neighbours of an even number, {size}", "an odd number", "Use an odd size: torch centres others elsewhere."
        )
    numbers = [float(r.attribute(name, default)) for name, default in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0))]
    return r.call(F.local_response_norm, r.x(), size, *numbers)


def _lp_norm(r: NodeReader) -> Any:
    return r.call(F.normalize, r.x(), float(r.attribute("p", 2)), int(r.attribute("axis", -1)), 1e-38)


READERS: dict[str, Reader] = {
    "BatchNormalization": _batch_norm, "InstanceNormalization": _instance_norm, "LayerNormalization": _layer_norm,
    "GroupNormalization": _group_norm, "RMSNormalization": _rms_norm, "LRN": _response_norm, "LpNormalization": _lp_norm,
    "SimplifiedLayerNormalization": _rms_norm,
}  # fmt: skip
"""The readers of this family, by operator."""
