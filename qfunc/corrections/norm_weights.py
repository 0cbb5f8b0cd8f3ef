"""gamma and beta of a BatchNorm: what they tell of the values that it gives, and how they are changed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx, nn


def moments(model: fx.GraphModule, norm: fx.Node) -> tuple[Tensor, Tensor]:
    """Deviation |gamma| and mean beta of what a BatchNorm gives, by channel, in float64.

    >>> from qfunc.frontend.capture import capture
    >>> net = capture()(nn.Sequential(nn.BatchNorm2d(2)))
    >>> moments(net, next(n for n in net.graph.nodes if n.op == "call_module"))
    (tensor([1., 1.], dtype=torch.float64), tensor([0., 0.], dtype=torch.float64))
    """
    module: Any = model.get_submodule(str(norm.target))
    one = torch.ones_like(module.running_var, dtype=torch.float64)
    gamma = one if module.weight is None else module.weight.detach().double().abs()
    return gamma, 0 * one if module.bias is None else module.bias.detach().double()


def divide_norm(module: Any, by: Tensor) -> None:
    """Divides gamma and beta by one positive number a channel; makes them where there are none."""
    gamma = torch.ones_like(by) if module.weight is None else module.weight.detach().double()
    beta = torch.zeros_like(by) if module.bias is None else module.bias.detach().double()
    store_norm(module, gamma / by, beta / by)


def store_norm(module: Any, gamma: Tensor, beta: Tensor) -> None:
    """Gives an own BatchNorm another gamma and beta."""
    for name, value in (("weight", gamma), ("bias", beta)):
        held = getattr(module, name)
        trained, dtype = (True, module.running_var.dtype) if held is None else (held.requires_grad, held.dtype)
        setattr(module, name, nn.Parameter(value.to(dtype), requires_grad=trained))
    module.affine = True


__all__ = ["divide_norm", "store_norm", "moments"]
