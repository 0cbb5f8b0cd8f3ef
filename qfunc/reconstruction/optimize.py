"""Optimize the rounding and the scales of one unit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple
from zlib import crc32

import torch
from torch import Tensor, fx
from torch.optim import Adam
from torch.optim.lr_scheduler import CosineAnnealingLR

from qfunc.numerics.qparams import Affine
from qfunc.ops.definition import Trait
from qfunc.ops.node import op_of
from qfunc.reconstruction.cache import Cache, Key
from qfunc.reconstruction.methods import Method
from qfunc.reconstruction.random_drop import DropRate, mix
from qfunc.reconstruction.sharing.gradients import Gradients
from qfunc.reconstruction.sharing.parts import Drawn
from qfunc.reconstruction.sharing.shared import Shared
from qfunc.reconstruction.steps import Step
from qfunc.reconstruction.trainable import Trainable


class Optimized(NamedTuple):
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
    shared: Shared,
    report: Callable[[int, Tensor], None],
) -> Optimized:
    """Learn the rounding of a unit's weights, and scales, from the cached tensors; nothing else is changed.

    Args:
        step: The unit.
        rounded, learning: The paths of its quantizers with rounding, and with scales, to learn.
        cache: The tensors of the images of this process.
        shared: The images of all processes.
        report: Called after each iteration, with its number and the loss.
    """
    with shared.guard():
        training = _Training(step, rounded, learning, method, cache, shared)
    shared.gather((), f"unit {training.name}")  # all are ready
    training.run(report)
    return training.result()


class _Training:
    # The training of one unit.
    def __init__(
        self, step: Step, rounded: Sequence[str], learning: Sequence[str], method: Method, cache: Cache, shared: Shared
    ) -> None:
        self.step, self.method, self.cache, self.shared = step, method, cache, shared
        self.name = step.unit.name if step.unit is not None else ""
        # Each unit has its own generators, so that a resumed run draws the same numbers as an uninterrupted one.
        self.order, device = torch.Generator().manual_seed(_seed(method, step, "order")), _device(step, cache)
        dropping = torch.Generator(device).manual_seed(_seed(method, step, "chance"))
        self.quantized = DropRate(1 - method.drop, dropping) if method.drop else None
        self.unit = Trainable(step.simulated, rounded, learning, self.quantized, shared.layout)
        self.rounding, self.distance = self.unit.rounding, Distance(step, method, cache)
        self.optimizer = Adam(self.rounding.v, lr=method.rounding_lr, fused=device.type in ("cpu", "cuda"))
        self.scales = self.unit.scales() if method.scale_lr is not None else []
        fused = device.type in ("cpu", "cuda")
        self.scale_optimizer = Adam(self.scales, lr=method.scale_lr or 0.0, fused=fused) if self.scales else None
        optimizer = self.scale_optimizer
        self.schedule = CosineAnnealingLR(optimizer, method.iterations) if optimizer is not None else None
        self.size = min(method.batch, shared.parts.images)

    def run(self, report: Callable[[int, Tensor], None]) -> None:
        """Run all iterations."""
        leaves, method = [*self.rounding.weights, *self.scales], self.method
        gradients = Gradients(leaves, self.shared.parts, method.iterations, self.shared.group)
        with torch.enable_grad(), gradients:
            for i in range(method.iterations):
                index = torch.randperm(self.shared.parts.images, generator=self.order)[: self.size]
                self.rounding.soften()
                if self.quantized is not None:
                    self.quantized.begin()
                loss = gradients.add(index, self._backward, self._idle)
                self.rounding.differentiate(method.regulariser.weight, method.regulariser.exponent(i, method.iterations))
                self.optimizer.step()
                if self.scale_optimizer is not None and self.schedule is not None:
                    self.scale_optimizer.step()
                    self.schedule.step()
                report(i, loss)

    def result(self) -> Optimized:
        """Return the rounding, and the scales that train."""
        up = dict(zip(self.unit.paths, self.rounding.rounds_up(), strict=True))
        return Optimized(up, {path: a.qparams() for path, a in self.unit.activations.items()} if self.scales else {})

    def _backward(self, drawn: Drawn) -> Tensor:
        loss = self.distance.of(self._outputs(drawn), partial(_take, self.cache, drawn.rows))
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _idle(self) -> None:
        # Draw the masks of a mini-batch of other processes.
        if self.quantized is not None:
            with torch.no_grad():
                self._outputs(Drawn(torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)))

    def _outputs(self, drawn: Drawn) -> Sequence[Tensor]:
        if self.quantized is not None and not self.shared.parts.single:
            self.quantized.of(drawn.places, self.size)
        outputs: Sequence[Tensor] = self.unit.module(*(self._input(name, drawn.rows) for name in self.step.inputs))
        return outputs

    def _input(self, name: str, rows: Tensor) -> Tensor:
        value = self.cache.take(Key("quantized", name), rows)
        same = self.cache.is_alias(Key("quantized", name), Key("float", name))
        if self.quantized is None or not value.is_floating_point() or same:
            return value
        return mix(self.cache.take(Key("float", name), rows), value, self.quantized(value, self.shared.layout[name]))


def _take(cache: Cache, index: Tensor, key: Key) -> Tensor:
    return cache.take(key, index)


def _seed(method: Method, step: Step, use: str) -> int:
    # 32 bits, because torch's CPU generator does not use more.
    return crc32(f"{method.seed} {use} {' '.join(step.unit.nodes if step.unit else ())}".encode())


def _device(step: Step, cache: Cache) -> torch.device:
    first = torch.zeros(1, dtype=torch.int64)
    return cache.take(Key("quantized", step.inputs[0]), first).device


def run_step(
    module: fx.GraphModule, names: Sequence[str], stream: str, cache: Cache, start: int, stop: int
) -> tuple[Tensor, ...]:
    """Run a step's module on the images from start to stop of a stream."""
    outputs: tuple[Tensor, ...] = module(*(cache.part(Key(stream, name), start, stop) for name in names))
    return outputs
