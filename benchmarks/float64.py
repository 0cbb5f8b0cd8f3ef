"""A simulation beside itself with its sums in float64: how near can any simulation in float come?"""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, fx, nn


def _narrow(module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(v.float() if isinstance(v, Tensor) else v for v in given)


def _wide(module: nn.Module, given: tuple[Any, ...], value: Tensor) -> Tensor:
    return value.double()


def in_float64(model: fx.GraphModule) -> fx.GraphModule:
    """A copy that computes in float64, but for its quantizers: they round what they get to float32 first, as before.

    A quantizer's result is a float32 number, so that both start from the same operands, and only sums differ.
    """
    wide = copy.deepcopy(model).double()
    for module in wide.modules():
        if hasattr(module, "site"):
            module.float()
            module.register_forward_pre_hook(_narrow)
            module.register_forward_hook(_wide)
    return wide
