"""Reconstruct one quantized graph unit by unit; each tensor is computed once in float and once quantized."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import isfinite
from typing import TYPE_CHECKING

import torch
from torch import Tensor, fx

from qfunc import specs
from qfunc.errors import CalibrationError
from qfunc.execution.distributed import map_tensors, propagate_errors
from qfunc.execution.time_budget import Budget, seconds_per_iteration, within
from qfunc.files.tensors import digest
from qfunc.graph.constants import read_attr
from qfunc.graph.record import attach, path_of, record_of
from qfunc.graph.selectors import Context, matches
from qfunc.graph.sites import QuantizerNode, quantizer_nodes
from qfunc.graph.view import QuantizedModel
from qfunc.numerics.qparams import Affine
from qfunc.ops.node import kind_of
from qfunc.reconstruction.cache import Cache, Key
from qfunc.reconstruction.checkpoint import Checkpoint
from qfunc.reconstruction.data_flow import DataFlow
from qfunc.reconstruction.layout import NoBatchAxis, NoTensor, layouts
from qfunc.reconstruction.losses import Fisher, gradients_of_divergence, normalize
from qfunc.reconstruction.methods import Method
from qfunc.reconstruction.optimize import Distance, Optimized, optimise, run_step
from qfunc.reconstruction.partition import ReconstructionUnit, units_of
from qfunc.reconstruction.rounding import harden, rounds_up
from qfunc.reconstruction.sharing.inputs import Inputs
from qfunc.reconstruction.sharing.parts import require_sums
from qfunc.reconstruction.sharing.shared import Shared
from qfunc.reconstruction.steps import Step, steps
from qfunc.reconstruction.trainable import learnable, roundable, with_adaround
from qfunc.specs.selectors import Selector

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Observe = Callable[[str, int, Tensor | None], None]


class Subgraph:
    """A calibrated graph; `run` rounds its weights.

    Args:
        model: The graph, which is changed in place.
        select: The ops with weights to round; None for all.
        group: The processes that share the images; None for this process alone.
    """

    def __init__(
        self,
        model: fx.GraphModule,
        method: Method,
        inputs: Inputs,
        select: Selector | None,
        memory: int,
        group: ProcessGroup | None,
    ) -> None:
        self.model, self.method, self.inputs, self.select, self.memory = model, method, inputs, select, memory
        self.group = group
        self.model_digest = self._digest()
        view = QuantizedModel(model)
        network, record = view.float_network, record_of(model)
        flow = DataFlow(network)
        self.units = units_of(flow, method.unit)
        context = Context(network, record.target.ops if record and record.target else ())
        nodes = {n.name: n for n in network.graph.nodes}
        rounded = roundable(network, view.quantizers)
        self.ops = list(dict.fromkeys(path_of(network, nodes[reader]) for s in rounded for reader in s.readers))
        chosen = [s for s in rounded if select is None or any(matches(select, nodes[r], context) for r in s.readers)]
        of_unit = {name: unit for unit in self.units for name in unit.nodes}
        self.weights: dict[str, list[str]] = {}  # the weights of each unit that no earlier unit rounds
        for quantizer in chosen:
            first = min((of_unit[r] for r in quantizer.readers if r in of_unit), key=self.units.index, default=None)
            if first is not None:
                self.weights.setdefault(first.name, []).append(quantizer.path)
        self.units = [u for u in self.units if u.name in self.weights]

    @property
    def count(self) -> int:
        """The number of units."""
        return len(self.units)

    def digests(self) -> dict[str, str]:
        """Return digests of the model and the images, and the method as text."""
        batches, parts = digest({}, *self.inputs.digests), [n for sizes in self.inputs.parts.sizes for n in sizes]
        return {
            "model": self.model_digest,
            "method": f"{self.method!r}, {self.select!r}",
            "set of images": batches,
            "division into parts": f"{parts}",
        }

    def _digest(self) -> str:
        record = record_of(self.model)
        assert record is not None
        graph = "\n".join(f"{n.name} {n.op} {tuple(n.args)}" for n in self.model.graph.nodes)
        tensors = {str(n.target): read_attr(self.model, n) for n in self.model.graph.nodes if n.op == "get_attr"}
        constants = {name: t for name, t in tensors.items() if isinstance(t, Tensor)}
        return digest({**constants, **self.model.state_dict()}, graph, specs.to_json(record.target))

    def estimate(self) -> float:
        """Return an estimate of the seconds of all units."""
        images = min(self.method.batch, self.inputs.parts.images)
        arguments = within(self.inputs.values, self.inputs.split, -(-images // len(self.inputs.parts.sizes)))
        network = QuantizedModel(self.model).float_network
        return self.method.iterations * seconds_per_iteration(network, arguments, self.count)

    def run(self, finished: Checkpoint, report: Observe, budget: Budget) -> None:
        """Round the weights of all units, or of the first ones for which the budget has time."""
        rounded = {path for paths in self.weights.values() for path in paths}
        record, before = record_of(self.model), {path: self.model.get_submodule(path) for path in rounded}
        results = self._run(rounded, finished, report, budget)
        done = {path for result in results for path in result.up}
        if done != rounded:  # the others stay as they were
            assert record is not None
            attach(self.model, record)
            for path, module in before.items():
                self.model.set_submodule(path, module)
            with_adaround(self.model, done)
            quantizers = {q.path: q for q in quantizer_nodes(self.model)}
            for result in results:
                _store(quantizers, result)

    def _run(self, rounded: set[str], finished: Checkpoint, report: Observe, budget: Budget) -> list[Optimized]:
        with propagate_errors(self.group):
            with_adaround(self.model, rounded)
            view = QuantizedModel(self.model)
            flow, quantized = DataFlow(view.float_network), view.network_so_far
            few = {name: self._in_memory(value) for name, value in self.inputs.few.items()}
            self.layout = layouts(flow.network, few, set(self.inputs.split))
            inline = frozenset(name for name, layout in self.layout.items() if isinstance(layout, NoTensor))
            ordered = steps(flow, quantized, self.units, inline)
            require_sums([name for step in ordered if step.unit for name in step.unit.nodes], self.layout, self.inputs.parts)
        self.shared = shared = Shared(self.inputs.parts, self.layout, self.group)
        last = {name: step for step in ordered for name in step.inputs}
        quantizers = {s.path: s for s in view.quantizers}
        learned: set[str] = set()
        with Cache(self.inputs.images, self.memory) as cache:
            with shared.guard():
                self._fill(cache)
            if isinstance(self.method.loss, Fisher):
                names = dict.fromkeys(name for step in ordered for name in step.targets if step.unit)
                inputs, chunks = list(self.inputs.values), self.inputs.chunks()
                with shared.guard():
                    own = gradients_of_divergence(flow.network, quantized, inputs, list(names), self.layout, cache, chunks)
                normalize(shared.gather(own, "importances"), self.method.loss.damping, cache)
            results = list[Optimized]()
            for step in ordered:
                if step.unit is not None and not shared.of_first(budget.allows, f"unit {step.unit.name}"):
                    break
                with shared.guard():
                    self._advance(step, "float", cache)
                    if step.unit is None:
                        self._advance(step, "quantized", cache)
                if step.unit is not None:
                    learning = self._learning(step, quantizers, learned)
                    results.append(self._unit(step, len(results), learning, quantizers, cache, finished, report))
                    budget.count()
                done = {*(n for n in step.inputs if last[n] is step), *(n for n in step.outputs if n not in last)}
                for key in (Key(stream, name) for name in done for stream in ("float", "quantized")):
                    cache.drop(key)
                for name in step.targets:
                    cache.drop(Key("gradient", name))
        return results

    def _fill(self, cache: Cache) -> None:
        for name, value in self.inputs.values.items():
            layout = self.layout[name] if name in self.inputs.split else NoBatchAxis()
            cache.write(Key("float", name), 0, self._in_memory(value), layout)
            cache.alias(Key("quantized", name), Key("float", name))

    def _in_memory(self, value: Tensor) -> Tensor:
        # Images with channels last: convolutions are faster, and preserve the layout.
        if value.ndim == 4 and value.device.type == "cpu" and any(kind_of(n) == "conv" for n in self.model.graph.nodes):
            return value.contiguous(memory_format=torch.channels_last)
        return value

    def _advance(self, step: Step, stream: str, cache: Cache, distance: Distance | None = None) -> list[float]:
        # Run a step once on the images of this process; return the sum of the losses of each call.
        module, losses = step.real if stream == "float" else step.simulated, list[float]()
        for start, stop in self.inputs.chunks():
            with torch.no_grad():
                values = run_step(module, step.inputs, stream, cache, start, stop)
                for name, value in zip(step.outputs, values, strict=True):
                    cache.write(Key(stream, name), start, value, self.layout[name])
                if distance is not None:
                    losses.append((stop - start) * float(distance.of(values, partial(_part, cache, start, stop))))
        return losses

    def _learning(self, step: Step, quantizers: dict[str, QuantizerNode], learned: set[str]) -> list[str]:
        # The quantizers of activations that no earlier unit reads.  The network's inputs keep their scales, because training
        # them would require the first layer's gradient of the images.
        paths = dict.fromkeys(str(n.target) for n in step.simulated.graph.nodes if str(n.target) in quantizers)
        new = [p for p in paths if p not in learned and quantizers[p].tensor not in self.inputs.values
                 and not quantizers[p].module.site.constant]  # fmt: skip
        learned.update(new)
        return [p for p in new if self.method.scale_lr is not None and learnable(quantizers[p].module)]

    def _unit(
        self,
        step: Step,
        number: int,
        learning: list[str],
        quantizers: dict[str, QuantizerNode],
        cache: Cache,
        finished: Checkpoint,
        report: Observe,
    ) -> Optimized:
        assert step.unit is not None
        name, rounded, shared = step.unit.name, self.weights[step.unit.name], self.shared
        nearest = Optimized(
            {path: rounds_up(quantizers[path].module) for path in rounded},
            {path: map_tensors(quantizers[path].module.qparams(), Tensor.clone) for path in learning},
        )
        result = shared.of_first(lambda: finished.read(number, nearest), f"unit {name}")
        if result is not None:
            with shared.guard():
                _store(quantizers, result)
                self._advance(step, "quantized", cache)
            report(name, self.method.iterations, None)
            return result
        with shared.guard():
            distance = Distance(step, self.method, cache)
            _store(quantizers, Optimized(nearest.up, {}), with_rounding=False)
            own = self._advance(step, "quantized", cache, distance)
        before = shared.total(own, name)
        if not isfinite(before):
            where, do = f"reconstruct, unit {name!r}", "Remove batches with NaN or infinite values, or repair the weights."
            raise CalibrationError(where=where, found=f"a loss of {before}", wanted="a finite loss", do=do)
        trained = optimise(step, rounded, learning, self.method, cache, shared, lambda i, loss: report(name, i, loss))
        result = shared.of_first(lambda: trained, f"unit {name}")
        with shared.guard():
            _store(quantizers, result)
            own = self._advance(step, "quantized", cache, distance)
        after = shared.total(own, name)
        with shared.guard():
            if not after <= before:
                result = nearest
                _store(quantizers, result)
                self._advance(step, "quantized", cache)
            images = shared.parts.images
            losses = {"unit": name, "nearest": f"{before / images!r}", "reconstructed": f"{after / images!r}"}
            if shared.first:
                finished.write(number, result, losses)
        return result


def _part(cache: Cache, start: int, stop: int, key: Key) -> Tensor:
    return cache.part(key, start, stop)


def _store(quantizers: Mapping[str, QuantizerNode], result: Optimized, with_rounding: bool = True) -> None:
    # Store a unit's result in the model's quantizers, by path.
    for path, up in result.up.items() if with_rounding else ():
        module = quantizers[path].module
        harden(module, up.to(module.get_parameter("v").device))
    for path, qparams in result.qparams.items():
        module = quantizers[path].module
        device = module.qparams().scale.device
        module.set_qparams(Affine(qparams.scale.to(device), qparams.zero_point.to(device)))


__all__ = ["Subgraph", "ReconstructionUnit"]
