"""One model on one target: quantized, calibrated, emulated and deployed lazily, when a law first needs it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import torch
from attrs import evolve, frozen
from torch import Tensor, fx, nn

from qfunc.execution.batches import tensors_of
from qfunc.graph.view import QuantizedModel
from qfunc.lowering.artifact import Artifact
from qfunc.placement.partition import Partition
from qfunc.specs import Scheme, Target, Unknown
from qfunc.specs.protocols import OptionalRunner
from qfunc.testing.beside_ties import beside_powers, beside_ties
from qfunc.testing.expected_warnings import without_range_warnings
from qfunc.transforms.calibrate import calibrate
from qfunc.transforms.deploy import deploy
from qfunc.transforms.emulate import emulate
from qfunc.transforms.quantize import quantize
from qfunc.transforms.reconcile import set_qparams

Example = Tensor | tuple[Tensor, ...]
"""The arguments of one call of a model."""


@frozen
class Rescaling:
    """Other scales than those of calibration: `change(calibrated, example)` returns a copy with them; `text` describes them."""

    text: str
    change: Callable[[fx.GraphModule, Example], fx.GraphModule]


class Pipeline:
    """A model, an input or a tuple of them, and a target with its runner; scales as calibrated, or those of `rescaling`.

    `changed` records which parts of its input each transform changed.  `float_kinds` are the ops in float for which the
    comparison with the runtime could find coarse errors only.  `alone` is True if the arithmetic is public, and no
    runner is there to compare it with.
    """

    def __init__(
        self, target: Target, run: Any, model: nn.Module, example: Example, rescaling: Rescaling | None = None
    ) -> None:
        self.target, self.model, self.example, self.rescaling = target, model, example, rescaling
        self.base: Pipeline | None = None
        default_run = target.runtime.runner
        absent = isinstance(default_run, OptionalRunner) and default_run.missing()
        self.run = run if run is not None or absent else default_run
        self.public = not any(isinstance(k.arithmetic, Unknown) for k in target.kernels)
        self.alone = self.public and bool(target.kernels) and run is None and default_run is None
        self.changed: dict[str, list[str]] = {}
        self.float_kinds: set[str] = set()

    def rescaled(self, rescaling: Rescaling) -> Pipeline:
        """Return the pipeline with other scales, which shares the quantized model and the calibrated one before the change."""
        twin = Pipeline(self.target, self.run, self.model, self.example, rescaling)
        twin.base, twin.alone = self, self.alone
        return twin

    def __repr__(self) -> str:
        scales = "" if self.rescaling is None else f", {self.rescaling.text}"
        shapes = [tuple(leaf.shape) for leaf in self.leaves]
        inputs = f"Its input: {shapes[0]}" if len(shapes) == 1 else f"Its inputs: {', '.join(map(str, shapes))}"
        return f"The model: {self.model!r}\n{inputs}{scales}"

    @property
    def leaves(self) -> list[Tensor]:
        """The inputs of the model."""
        return tensors_of(self.example)

    @property
    def batches(self) -> list[Any]:
        """The batches on which runtime and emulation are compared: the example, and twice it in the other order."""
        twice = tuple(2 * leaf.flip(0) for leaf in self.leaves)
        return [self.example, twice if isinstance(self.example, tuple) else twice[0]]

    @cached_property
    def quantized(self) -> fx.GraphModule:
        """The quantized model."""
        if self.base is not None:
            return self.base.quantized
        result: fx.GraphModule = self._pure("quantize", quantize(self.target), self.model)
        return result

    @cached_property
    def estimated(self) -> fx.GraphModule:
        """The calibrated model before limits change scales."""
        if not self.target.limits:
            return self.calibrated
        if self.base is not None:
            return self.base.estimated
        with without_range_warnings():
            return calibrate([self.example], progress=False)(quantize(evolve(self.target, limits=()))(self.model))

    @cached_property
    def calibrated(self) -> fx.GraphModule:
        """The calibrated model, with the scales of `rescaling`."""
        if self.base is not None and self.rescaling is not None:
            return self.rescaling.change(self.base.calibrated, self.example)
        with without_range_warnings():
            result: fx.GraphModule = self._pure("calibrate", calibrate([self.example], progress=False), self.quantized)
        return result

    @cached_property
    def partition(self) -> Partition:
        """The units and encodings of a copy of the calibrated model."""
        return Partition(QuantizedModel(copy.deepcopy(self.calibrated)), self.target)

    @cached_property
    def emulation(self) -> fx.GraphModule:
        """The emulation of the chip, if its arithmetic is public."""
        result: fx.GraphModule = self._pure("emulate", emulate(self.target), self.calibrated)
        return result

    @cached_property
    def artifact(self) -> Artifact | None:
        """The artifact for the toolchain; None without a lowering."""
        if self.target.lowering is None:
            return None
        result: Artifact = self._pure("deploy", deploy(self.target), self.calibrated)
        return result

    def _pure(self, name: str, transform: Callable[[Any], Any], model: nn.Module) -> Any:
        before = _state(model) | {f"its input {i}": leaf.clone() for i, leaf in enumerate(self.leaves)}
        result = transform(model)
        after = _state(model) | {f"its input {i}": leaf for i, leaf in enumerate(self.leaves)}
        self.changed[name] = [k for k, (a, b) in _pairs(before, after) if not _equal(a, b)]
        return result


def _rounded(calibrated: fx.GraphModule, _: Example) -> fx.GraphModule:
    twin = copy.deepcopy(calibrated)
    view, powers = QuantizedModel(twin), {}
    for quantizer in view.quantizers:
        if isinstance(quantizer.module.site.value, Scheme) and not quantizer.module.dynamic:
            qparams = quantizer.module.qparams()
            power = torch.exp2(torch.ceil(torch.log2(qparams.scale.abs())))
            powers[quantizer.path] = qparams._replace(scale=torch.copysign(power, qparams.scale))
    set_qparams(view, powers)
    return twin


POWERS = Rescaling("every scale rounded up to a power of two", _rounded)
BESIDE_POWERS = Rescaling("every scale next to a power of two", lambda model, _: beside_powers(model))
BESIDE_TIES = Rescaling("with a value of each tensor next to a tie", beside_ties)
BEFORE_TIES = Rescaling("with a value of each tensor that two roundings make a tie", partial(beside_ties, seed=1))


def _state(model: nn.Module) -> dict[str, Any]:
    graph = {"the graph": str(model.graph)} if isinstance(model, fx.GraphModule) else {}
    modes = {f"{n}.training": m.training for n, m in model.named_modules()}
    return {**graph, **modes, **{k: v.detach().clone() for k, v in model.state_dict().items()}}


def _pairs(a: dict[str, Any], b: dict[str, Any]) -> Sequence[tuple[str, tuple[Any, Any]]]:
    return [(k, (a.get(k), b.get(k))) for k in a.keys() | b.keys()]


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())
    return bool(a == b)
