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
    damping: float,
) -> None:
    """Writes `Fisher`'s importance of the nodes `names` into the cache, by the gradient of KL(p || p_hat) for each image."""
    sums: dict[str, tuple[int, float, float]] = dict.fromkeys(names, (0, 0.0, 0.0))
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
            size = torch.zeros_like(value) if gradient is None else gradient.abs()
            count, total, squares = sums[name]
            exact = size.double()
            sums[name] = count + size.numel(), total + float(exact.sum()), squares + float(exact.square().sum())
            cache.write(Key("gradient", name), start, size, layout[name])
    for name, (count, total, squares) in sums.items():
        cache.change(Key("gradient", name), partial(_weigh, total / max(count, 1), (squares / max(count, 1)) ** 0.5, damping))


def _weigh(mean: float, rms: float, damping: float, size: Tensor) -> None:
    # Where nothing has a gradient all elements count the same.
    if rms:
        size.mul_(1 / rms).add_(damping).square_().mul_(1 / (1 + 2 * damping * mean / rms + damping**2))
    else:
        size.fill_(1.0)


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
