"""What each element of the units' outputs matters for what the network says: squared gradients, in one pass."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx

from qfunc.reconstruction.cache import Cache, Key
from qfunc.reconstruction.rows import Layout
from qfunc.transforms.batches import tensors_of

_IMAGES = 4


class _Marked(fx.Interpreter):
    """Runs a network whose values at some nodes can be differentiated for."""

    def __init__(self, network: fx.GraphModule, names: Collection[str]) -> None:
        super().__init__(network)
        self.names, self.seen = names, dict[str, Tensor]()
        self.extra_traceback = False

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if n.name in self.names:
            value = self.seen[n.name] = value if value.requires_grad else value.detach().requires_grad_()
        return value


def importances(
    real: fx.GraphModule,
    quantized: fx.GraphModule,
    inputs: Collection[str],
    names: Collection[str],
    layout: Mapping[str, Layout],
    cache: Cache,
    chunk: int,
) -> None:
    """Writes g^2 / mean g^2 of the nodes `names` into the cache, g the gradient of KL(p || p_hat) for each image."""
    sums = dict.fromkeys(names, 0.0)
    counts = dict.fromkeys(names, 0)
    for start in range(0, cache.images, chunk):
        stop = min(start + chunk, cache.images)
        given = [cache.part(Key("float", name), start, stop) for name in inputs]
        with torch.no_grad():
            wanted = fx.Interpreter(real).run(*given, enable_io_processing=False)
        marked = _Marked(quantized, names)
        with torch.enable_grad():
            loss = divergence(wanted, marked.run(*given, enable_io_processing=False))
            found = torch.autograd.grad(loss, list(marked.seen.values()), allow_unused=True)
        for (name, value), gradient in zip(marked.seen.items(), found, strict=True):
            square = torch.zeros_like(value) if gradient is None else gradient.square()
            sums[name] += float(square.double().sum())
            counts[name] += square.numel()
            cache.write(Key("gradient", name), start, square, layout[name])
    for name in names:
        mean = sums[name] / max(counts[name], 1)
        # Where nothing has a gradient all elements count the same.
        cache.change(Key("gradient", name), partial(_divide, mean))


def _divide(mean: float, square: Tensor) -> None:
    square.mul_(1 / mean) if mean else square.fill_(1.0)


def divergence(wanted: Any, found: Any) -> Tensor:
    """The sum over images of KL(p || p_hat), both softmax of what a network returns, over all floating tensors of it."""
    total = torch.zeros(())
    for p, q in zip(tensors_of(wanted), tensors_of(found), strict=True):
        if p.is_floating_point() and p.ndim:
            axis = 1 if p.ndim >= _IMAGES else -1
            total = total.to(p.device) + torch.nn.functional.kl_div(
                q.log_softmax(axis), p.log_softmax(axis), reduction="sum", log_target=True
            )
    return total


__all__ = ["divergence", "importances"]
