"""calibrate: one float pass over the batches gives every activation its qparams."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable
from typing import Any, overload

import torch
from attrs import evolve, frozen
from torch import Tensor, fx
from tqdm import tqdm

from qfunc.errors import CalibrationError
from qfunc.graph.network import Seat, Walk, float_network, require, same_network, seats
from qfunc.graph.record import TensorInfo, attach
from qfunc.graph.site import Site
from qfunc.numerics.qparams import Affine
from qfunc.transforms.batches import Binder
from qfunc.transforms.quantize import require_finite
from qfunc.transforms.reconcile import reconcile

Models = tuple[fx.GraphModule, ...]


class Calibration:
    """What `calibrate(batches)` returns: a transform of one quantized model or of a tuple of them."""

    def __init__(self, batches: Iterable[Any], progress: bool) -> None:
        self.batches, self.progress = batches, progress

    @overload
    def __call__(self, quantized: fx.GraphModule) -> fx.GraphModule: ...
    @overload
    def __call__(self, quantized: Models) -> Models: ...
    def __call__(self, quantized: fx.GraphModule | Models) -> fx.GraphModule | Models:
        """New models whose sites all have qparams; the given ones are unchanged."""
        models = quantized if isinstance(quantized, tuple) else (quantized,)
        done = _calibrate(models, self.batches, self.progress)
        return done if isinstance(quantized, tuple) else done[0]


def calibrate(batches: Iterable[Any], progress: bool = True) -> Calibration:
    """A transform that finds the qparams of activations from the float network's values.

    One pass; memory does not grow with the number of batches.  Given a tuple of quantized models of the
    same network, one float pass serves them all.  Evaluation semantics whatever the mode.

    Args:
        batches: Tensors, tuples or dicts of the model's inputs; a tuple longer than the required inputs
            keeps the leading ones and says so once.  Read once, in order.
        progress: A progress bar, if standard error is a terminal.
    Raises:
        CalibrationError: no batches, a wrong batch structure, NaN or infinite activations (by site), a
            model that is not quantized, or models of different networks.

    >>> import qfunc
    >>> from qfunc import targets
    >>> quantized = qfunc.quantize(targets.onnxruntime)(torch.nn.Linear(2, 2))
    >>> calibrate([torch.tensor([[0.0, 2.55]])])(quantized).get_submodule("quantizers.input_1.output").scale.item()
    0.009999999776482582
    """
    return Calibration(batches, progress)


@frozen(eq=False)
class _Statistic:
    """One estimator: the sites that it serves and the tensors that it must see in every batch."""

    site: Site
    owners: tuple[tuple[int, str], ...]
    tensors: tuple[str, ...]


def _calibrate(models: Models, batches: Iterable[Any], progress: bool) -> Models:
    for model in models:
        require(model, "quantized", "calibrate")
    networks = [float_network(m) for m in models]
    if not all(same_network(networks[0], n) for n in networks[1:]):
        do = "Calibrate them one by one."
        raise CalibrationError(where="calibrate", found="quantized models of different networks", wanted="one network", do=do)
    placed = [seats(m) for m in models]
    states, inputs = _observe(networks[0], _statistics(placed), batches, progress)
    result = []
    for index, model in enumerate(models):
        found: dict[str, Affine] = {}
        for statistic, state in states:
            for owner, path in statistic.owners:
                if owner == index:
                    found[path] = statistic.site.estimator.finalize(state, statistic.site.scheme)
                    require_finite(found[path], statistic.site.name, "the activations")
        result.append(_hold(model, found, inputs))
    return tuple(result)


def _statistics(placed: list[tuple[Seat, ...]]) -> list[_Statistic]:
    made: dict[Any, _Statistic] = {}
    for index, seats_of_model in enumerate(placed):
        for seat in seats_of_model:
            site = seat.module.site
            if site.constant or seat.module.ready and site.value is not None and not hasattr(site.value, "scale"):
                continue
            if not hasattr(site.value, "rounding") or site.slot == "bias":
                continue  # fixed or derived
            union = (index, site.tie) if site.tie and site.leader == "union" else seat.tensor
            key = (union, site.estimator, site.scheme)
            old = made.get(key, _Statistic(site, (), ()))
            tensors = old.tensors if seat.tensor in old.tensors else (*old.tensors, seat.tensor)
            made[key] = _Statistic(old.site, (*old.owners, (index, seat.path)), tensors)
    return list(made.values())


def _observe(
    network: fx.GraphModule, statistics: list[_Statistic], batches: Iterable[Any], progress: bool
) -> tuple[list[tuple[_Statistic, Any]], tuple[TensorInfo, ...]]:
    states: list[Any] = [None] * len(statistics)
    wanted: dict[str, list[int]] = {}
    for index, statistic in enumerate(statistics):
        for name in statistic.tensors:
            wanted.setdefault(name, []).append(index)
    waiting: dict[int, dict[str, Tensor]] = {}

    def see(name: str, value: Any) -> None:
        for index in wanted[name]:
            statistic = statistics[index]
            if len(statistic.tensors) > 1:
                waiting.setdefault(index, {})[name] = value
                if len(waiting[index]) < len(statistic.tensors):
                    continue
                value = torch.cat([v.flatten() for v in waiting.pop(index).values()])
            if not isinstance(value, Tensor) or not value.is_floating_point():
                found = getattr(value, "dtype", type(value).__name__)
                do = "Use edit.skip for ops on such values."
                raise CalibrationError(where=f"site {statistic.site.name!r}", found=str(found), wanted="a float tensor", do=do)
            estimator, scheme = statistic.site.estimator, statistic.site.scheme
            before = estimator.init(scheme, value) if states[index] is None else states[index]
            states[index] = estimator.update(before, value, scheme)

    bind, walk, inputs = Binder(network), Walk(network, see, set(wanted)), ()
    bar = tqdm(batches, desc="calibrate", unit="batch", disable=not progress or not sys.stderr.isatty())
    count = 0
    with torch.inference_mode():
        for count, batch in enumerate(bar, 1):
            arguments = bind(batch, "calibrate")
            inputs = inputs or _infos(arguments)
            walk.run(*arguments)
    if count == 0:
        raise CalibrationError(where="calibrate", found="no batches", wanted="at least one", do="Pass a non-empty iterable, not one already used up.")
    return list(zip(statistics, states, strict=True)), inputs


def _infos(arguments: tuple[Any, ...]) -> tuple[TensorInfo, ...]:
    leaves = torch.utils._pytree.tree_leaves(arguments)
    return tuple(TensorInfo(tuple(v.shape), str(v.dtype)) for v in leaves if isinstance(v, Tensor))


def _hold(model: fx.GraphModule, found: dict[str, Affine], inputs: tuple[TensorInfo, ...]) -> fx.GraphModule:
    calibrated = copy.deepcopy(model)
    places = seats(calibrated)
    with torch.no_grad():
        for path, qparams in reconcile(calibrated, places, found).items():
            module = next(s.module for s in places if s.path == path)
            module.hold(module.site.function.init(qparams, module.scale, module.site.scheme))
    record = require(model, "quantized", "calibrate")
    return attach(calibrated, evolve(record, stage="calibrated", inputs=inputs))
