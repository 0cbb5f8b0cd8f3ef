"""Optimize the rounding and the scales of one unit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from zlib import crc32

import torch
from attrs import frozen
from torch import Tensor, fx
from torch.optim import Adam
from torch.optim.lr_scheduler import CosineAnnealingLR

from qfunc.numerics.qparams import Affine
from qfunc.ops.definition import Trait
from qfunc.ops.node import op_of
from qfunc.reconstruction.cache import Cache, Key
from qfunc.reconstruction.methods import Method
from qfunc.reconstruction.random_drop import DropRate, mix
from qfunc.reconstruction.steps import Step
from qfunc.reconstruction.trainable import Trainable


@frozen(eq=False)
class Optimized:
    """The result of a unit, by path: for each rounded weight where it rounds up, for each learned activation its qparams."""

    up: dict[str, Tensor]
    qparams: dict[str, Affine]


class Distance:
    """The loss of a unit's outputs, summed over its target tensors."""

    def __init__(self, step: Step, method: Method, cache: Cache) -> None:
        self.targets, self.loss, self.cache = step.targets, method.loss, cache
        # Channels are axis 1 in units with convolutions, else the last axis.
        ops = [op for n in step.real.graph.nodes if (op := op_of(n)) is not None]
        self.axis = 1 if any(op.spatial is not None and Trait.WEIGHTED in op.traits for op in ops) else -1
        self.places = [step.outputs.index(name) for name in step.targets]

    def of(self, outputs: Sequence[Tensor], take: Callable[[Key], Tensor]) -> Tensor:
        """Return the loss, a scalar; `take` returns the cached values of the same images."""
        total = torch.zeros((), device=outputs[0].device)
        for name, place in zip(self.targets, self.places, strict=True):
            found, wanted = outputs[place], take(Key("float", name))
            if found.is_floating_point():
                importance = take(Key("gradient", name)) if self.loss.weighted else None
                channels = found.shape[self.axis] if found.ndim > 1 else 1
                total = total + self.loss.of(found, wanted, channels, importance)
        return total


def optimise(
    step: Step,
    rounded: Sequence[str],
    learning: Sequence[str],
    method: Method,
    cache: Cache,
    report: Callable[[int, Tensor], None],
) -> Optimized:
    """Learn the rounding of a unit's weights, and scales, from the cached tensors; nothing else is changed.

    Args:
        step: The unit.
        rounded, learning: The paths of its quantizers with rounding, and with scales, to learn.
        report: Called after each iteration, with its number and the loss.
    """
    # Each unit has its own generators, so that a resumed run draws the same numbers as an uninterrupted one.
    order, device = torch.Generator().manual_seed(_seed(method, step, "order")), _device(step, cache)
    dropping = torch.Generator(device).manual_seed(_seed(method, step, "chance"))
    quantized = DropRate(1 - method.drop, dropping) if method.drop else None
    unit = Trainable(step.simulated, rounded, learning, quantized)
    rounding, distance = unit.rounding, Distance(step, method, cache)
    optimizer = Adam(rounding.v, lr=method.rounding_lr, fused=device.type in ("cpu", "cuda"))
    scales = unit.scales() if method.scale_lr is not None else []
    scale_optimizer = Adam(scales, lr=method.scale_lr or 0.0, fused=device.type in ("cpu", "cuda")) if scales else None
    schedule = CosineAnnealingLR(scale_optimizer, method.iterations) if scale_optimizer is not None else None
    size = min(method.batch, cache.images)
    with torch.enable_grad():
        for i in range(method.iterations):
            index = torch.randperm(cache.images, generator=order)[:size]
            rounding.soften()
            outputs = unit.module(*(_input(name, index, quantized, cache) for name in step.inputs))
            loss = distance.of(outputs, partial(_take, cache, index))
            for scale in scales:
                scale.grad = None
            loss.backward()  # type: ignore[no-untyped-call]
            rounding.differentiate(method.regulariser.weight, method.regulariser.exponent(i, method.iterations))
            optimizer.step()
            if scale_optimizer is not None and schedule is not None:
                scale_optimizer.step()
                schedule.step()
            report(i, loss.detach())
    up = dict(zip(unit.paths, rounding.rounds_up(), strict=True))
    return Optimized(up, {path: a.qparams() for path, a in unit.activations.items()} if scales else {})


def _take(cache: Cache, index: Tensor, key: Key) -> Tensor:
    return cache.take(key, index)


def _input(name: str, index: Tensor, quantized: DropRate | None, cache: Cache) -> Tensor:
    value = cache.take(Key("quantized", name), index)
    if quantized is None or not value.is_floating_point() or cache.is_alias(Key("quantized", name), Key("float", name)):
        return value
    return mix(cache.take(Key("float", name), index), value, quantized(value))


def _seed(method: Method, step: Step, use: str) -> int:
    # 32 bits, because torch's CPU generator does not use more.
    return crc32(f"{method.seed} {use} {' '.join(step.unit.nodes if step.unit else ())}".encode())


def _device(step: Step, cache: Cache) -> torch.device:
    first = torch.zeros(1, dtype=torch.int64)
    return cache.take(Key("quantized", step.inputs[0]), first).device


def run(module: fx.GraphModule, names: Sequence[str], stream: str, cache: Cache, start: int, stop: int) -> tuple[Tensor, ...]:
    """Run a step's module on the images from start to stop of a stream."""
    outputs: tuple[Tensor, ...] = module(*(cache.part(Key(stream, name), start, stop) for name in names))
    return outputs


__all__ = ["Distance", "Optimized", "optimise", "run"]
