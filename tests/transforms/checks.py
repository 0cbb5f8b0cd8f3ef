"""What several tests of transforms ask."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import qfunc
from qfunc.specs import Target
from tests.onnxruntime_target import ONNXRUNTIME
from tests.transforms.nets import network


def arguments(batch: Any) -> tuple[Any, ...]:
    """A batch as positional arguments."""
    return batch if isinstance(batch, tuple) else (batch,)


def leaves(value: Any) -> list[Tensor]:
    """The tensors of an output, in order."""
    if isinstance(value, Tensor):
        return [value]
    return [t for v in (value.values() if isinstance(value, dict) else value) for t in leaves(v)]


def equal(a: Any, b: Any) -> bool:
    """Whether two outputs are bit-equal."""
    pairs = list(zip(leaves(a), leaves(b), strict=True))
    return all(x.dtype == y.dtype and torch.equal(x, y) for x, y in pairs)


def state(model: nn.Module) -> dict[str, Tensor]:
    """A copy of a state_dict."""
    return {k: v.clone() for k, v in model.state_dict().items()}


def same_state(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """Whether two state_dicts are bit-equal, NaN included."""
    return a.keys() == b.keys() and all(torch.equal(a[k].nan_to_num(12345.0), b[k].nan_to_num(12345.0)) for k in a)


def quantized(name: str, *, export: bool = False, target: Target = ONNXRUNTIME) -> tuple[nn.Module, Any, Any]:
    """(a float model, a batch, the quantized model)."""
    model, batch = network(name)
    return model, batch, qfunc.quantize(target, arguments(batch) if export else None)(model)


def calibrated(name: str, *, export: bool = False, target: Target = ONNXRUNTIME) -> tuple[nn.Module, Any, Any]:
    """(a float model, a batch, the calibrated model)."""
    model, batch, made = quantized(name, export=export, target=target)
    return model, batch, qfunc.calibrate([batch])(made)
