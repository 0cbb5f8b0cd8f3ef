"""Losses of a unit's output against the float network's: squared error, uniform or weighted by importance."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from attrs import field, frozen
from torch import Tensor, fx

from qfunc.execution.batches import tensors_of
from qfunc.reconstruction.cache import Cache, Key
from qfunc.reconstruction.layout import Layout, inner
from qfunc.specs._check import number, refuse


class _Squares(torch.autograd.Function):
    """factor * sum (found - wanted)^2 importance, in few passes; the gradient has the memory layout of `found`."""

    @staticmethod
    def forward(ctx: Any, found: Tensor, wanted: Tensor, importance: Tensor | None, factor: float) -> Tensor:
        difference = found - wanted
        weighted = difference if importance is None else difference * importance
        ctx.factor = factor
        ctx.save_for_backward(weighted)
        return inner(difference, weighted) * factor

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.saved_tensors[0].mul_(2 * ctx.factor * grad_outputs[0]), None, None, None


def _squares(found: Tensor, wanted: Tensor, importance: Tensor | None, channels: int) -> Tensor:
    factor = channels / max(found.numel(), 1)
    result: Tensor = _Squares.apply(found, wanted, importance, factor)  # type: ignore[no-untyped-call]
    return result


@frozen
class SquaredError:
    """The sum over channels of (z_hat - z)^2, averaged over images and positions; z is the float output of the unit.

    z_hat is the output of the quantized unit.

    Source: Nagel et al., arXiv:2004.10568, equation 21, scaled as in the implementation of Li et al., arXiv:2102.05426.

    >>> SquaredError().of(torch.ones(2, 3), torch.zeros(2, 3), 3, None).item()
    3.0
    """

    weighted: ClassVar[bool] = False

    def of(self, found: Tensor, wanted: Tensor, channels: int, importance: Tensor | None) -> Tensor:
        """Return the loss over some images, a scalar."""
        return _squares(found, wanted, None, channels)


def _damping(instance: Any, attribute: Any, value: Any) -> None:
    number()(instance, attribute, value)
    if value < 0:
        raise refuse(instance, attribute.name, value, "a number of at least 0", "Use 0.0 for the gradients alone.")


@frozen
class Fisher:
    """SquaredError with each square times w / mean w, w = (|g| / rms g + damping)^2; g is dL/dz.

    The loss L is the divergence KL(p || p_hat) of the class probabilities, p of the float network and p_hat of the
    network rounded to nearest.  Classes are along axis 1 of images, else along the last axis.  One pass over the images,
    before the first unit, computes all gradients.  Dividing by the mean preserves the relative weight of the regulariser.

    Without damping, this is the paper's loss.  Then the few images on which the rounded network's prediction differs
    dominate, which reduces accuracy at 2 bits.  The authors' code adds 1 to |g|, far more than |g| in most networks.

    Args:
        damping: At least 0, in units of the root mean square of g; for large values the loss approaches SquaredError.
    Raises:
        SpecError: damping is negative or not a number.
    Source: Li et al., arXiv:2102.05426, equation 10 (the diagonal of the Fisher information), and quant/data_utils.py of
        its implementation.

    >>> Fisher().of(torch.ones(2, 2), torch.zeros(2, 2), 2, torch.tensor([[2.0, 0.0], [1.0, 1.0]])).item()
    2.0
    """

    weighted: ClassVar[bool] = True

    damping: float = field(default=1.0, validator=_damping)

    def of(self, found: Tensor, wanted: Tensor, channels: int, importance: Tensor | None) -> Tensor:
        """Return the loss over some images, a scalar."""
        assert importance is not None
        return _squares(found, wanted, importance, channels)


_IMAGES = 4


class _GradientPoints(fx.Interpreter):
    """Runs a network and records the values of some nodes, so that gradients with respect to them can be computed."""

    def __init__(self, network: fx.GraphModule, names: Collection[str]) -> None:
        super().__init__(network)
        self.names, self.values = names, dict[str, Tensor]()
        self.extra_traceback = False

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if n.name in self.names:
            value = self.values[n.name] = value if value.requires_grad else value.detach().requires_grad_()
        return value


Moments = tuple[int, float, float]
"""The number, the sum and the sum of squares of some magnitudes, in float64."""


def gradients_of_divergence(
    real: fx.GraphModule,
    quantized: fx.GraphModule,
    inputs: Collection[str],
    names: Collection[str],
    layout: Mapping[str, Layout],
    cache: Cache,
    chunks: Collection[tuple[int, int]],
) -> dict[str, list[Moments]]:
    """Write the magnitude of the gradient of KL(p || p_hat) of each image at the nodes `names` into the cache.

    Returns:
        Sums over each of the chunks, by name, from which `normalize` makes `Fisher`'s importance.
    """
    sums: dict[str, list[Moments]] = {name: [] for name in names}
    for start, stop in chunks:
        arguments = [cache.part(Key("float", name), start, stop) for name in inputs]
        with torch.no_grad():
            wanted = fx.Interpreter(real).run(*arguments, enable_io_processing=False)
        points = _GradientPoints(quantized, names)
        with torch.enable_grad():
            loss = divergence(wanted, points.run(*arguments, enable_io_processing=False))
            gradients = torch.autograd.grad(loss, list(points.values.values()), allow_unused=True)
        for (name, value), gradient in zip(points.values.items(), gradients, strict=True):
            magnitude = torch.zeros_like(value) if gradient is None else gradient.abs()
            double = magnitude.double()
            sums[name].append((magnitude.numel(), float(double.sum()), float(double.square().sum())))
            cache.write(Key("gradient", name), start, magnitude, layout[name])
    return sums


def normalize(sums: Sequence[Mapping[str, list[Moments]]], damping: float, cache: Cache) -> None:
    """Replace the magnitudes in the cache by `Fisher`'s importance; `sums` are those of all processes, in order."""
    for name in sums[0]:
        count, total, squares = 0, 0.0, 0.0
        for chunk in (chunk for each in sums for chunk in each[name]):
            count, total, squares = count + chunk[0], total + chunk[1], squares + chunk[2]
        mean, rms = total / max(count, 1), (squares / max(count, 1)) ** 0.5
        cache.change(Key("gradient", name), partial(_normalize, mean, rms, damping))


def _normalize(mean: float, rms: float, damping: float, magnitude: Tensor) -> None:
    # If all gradients are 0, all elements have the same importance.
    if rms:
        magnitude.mul_(1 / rms).add_(damping).square_().mul_(1 / (1 + 2 * damping * mean / rms + damping**2))
    else:
        magnitude.fill_(1.0)


def divergence(wanted: Any, found: Any) -> Tensor:
    """Return the sum over images and floating-point outputs of KL(p || p_hat), with p and p_hat the softmax of the outputs."""
    total = torch.zeros(())
    for p, q in zip(tensors_of(wanted), tensors_of(found), strict=True):
        if p.is_floating_point() and p.ndim:
            axis = 1 if p.ndim >= _IMAGES else -1
            total = total.to(p.device) + torch.nn.functional.kl_div(
                q.log_softmax(axis), p.log_softmax(axis), reduction="sum", log_target=True
            )
    return total
