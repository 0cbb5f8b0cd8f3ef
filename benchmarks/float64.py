"""Compare a simulation with itself with float64 sums, which bounds the precision of any float simulation."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, fx, nn


def _narrow(module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(v.float() if isinstance(v, Tensor) else v for v in given)


def _wide(module: nn.Module, given: tuple[Any, ...], value: Tensor) -> Tensor:
    return value.double()


def in_float64(model: fx.GraphModule) -> fx.GraphModule:
    """Return a copy that computes in float64, except that its quantizers first round their inputs to float32, as before.

    A quantizer's result is a float32 number.  So both models use the same operands, and only the sums differ.
    """
    wide = copy.deepcopy(model).double()
    for module in wide.modules():
        if hasattr(module, "site"):
            module.float()
            module.register_forward_pre_hook(_narrow)
            module.register_forward_hook(_wide)
    return wide
