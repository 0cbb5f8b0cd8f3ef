"""Read and change gamma and beta of a BatchNorm."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx, nn


def moments(model: fx.GraphModule, norm: fx.Node) -> tuple[Tensor, Tensor]:
    """Return the deviation |gamma| and the mean beta of a BatchNorm's output, per channel, in float64.

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
    """Divide gamma and beta by one positive number per channel; create them if the norm has none."""
    gamma = torch.ones_like(by) if module.weight is None else module.weight.detach().double()
    beta = torch.zeros_like(by) if module.bias is None else module.bias.detach().double()
    store_norm(module, gamma / by, beta / by)


def store_norm(module: Any, gamma: Tensor, beta: Tensor) -> None:
    """Replace gamma and beta of a BatchNorm that the caller owns."""
    for name, value in (("weight", gamma), ("bias", beta)):
        old = getattr(module, name)
        trained, dtype = (True, module.running_var.dtype) if old is None else (old.requires_grad, old.dtype)
        setattr(module, name, nn.Parameter(value.to(dtype), requires_grad=trained))
    module.affine = True


__all__ = ["divide_norm", "store_norm", "moments"]
