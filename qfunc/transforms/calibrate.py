"""calibrate: one float pass over the batches gives every activation its qparams."""

from __future__ import annotations

import copy
import itertools
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, overload

import torch
from attrs import evolve, frozen
from torch import Tensor, fx
from tqdm import tqdm

from qfunc.errors import CalibrationError, SpecError
from qfunc.graph.network import Seat, Walk, require, seats
from qfunc.graph.record import TensorInfo, attach, record_of
from qfunc.graph.site import Site
from qfunc.graph.trees import leaves
from qfunc.numerics.qparams import qparams_shape
from qfunc.specs import PerTensor, Scheme
from qfunc.transforms.batches import Binder, infos, require_batches
from qfunc.transforms.merging import merge, ranks, require_group, require_mergeable, told
from qfunc.transforms.quantize import require_finite
from qfunc.transforms.reconcile import hold
from qfunc.transforms.through import Float, Models, Quantized, require_through

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class Calibration:
    """What `calibrate(batches)` returns: a transform of one quantized model or of a tuple of them."""

    def __init__(self, batches: Iterable[Any], progress: bool, through: Float | Quantized, group: ProcessGroup | None) -> None:
        self.batches, self.progress, self.through, self.group = batches, progress, through, group

    @overload
    def __call__(self, quantized: fx.GraphModule) -> fx.GraphModule: ...
    @overload
    def __call__(self, quantized: Models) -> Models: ...
    def __call__(self, quantized: fx.GraphModule | Models) -> fx.GraphModule | Models:
        """New models whose sites all have qparams; the given ones are unchanged."""
        models = quantized if isinstance(quantized, tuple) else (quantized,)
        # Under the caller's inference_mode the copies would be tensors that no training could use.
        with torch.inference_mode(False), torch.no_grad():
            done = self._calibrated(models)
        return done if isinstance(quantized, tuple) else done[0]

    def _calibrated(self, models: Models) -> Models:
        count, group = 0, ranks(self.group)
        with told(group):
            observers = _observers(models, self.through)
            require_mergeable(observers, group)
            for count, batch in enumerate(_bar(self.batches, self.progress), 1):
                for observer in observers:
                    observer.read(batch, count)
        if not merge(observers, count, group):
            do = "Pass a non-empty iterable, not one already used up."
            raise CalibrationError(where="calibrate", found="no batches", wanted="at least one", do=do)
        found = {i: (o, qparams) for o in observers for i, qparams in zip(o.served, o.qparams(), strict=True)}
        return tuple(_hold(model, found[i][1], found[i][0].inputs) for i, model in enumerate(models))


def calibrate(
    batches: Iterable[Any],
    progress: bool = True,
    *,
    through: Float | Quantized = Float(),
    group: ProcessGroup | None = None,
) -> Calibration:
    """A transform that finds the qparams of activations from the float network's values.

    One pass; memory does not grow with the number of batches.  Given a tuple of quantized models of the
    same network, one float pass serves them all.  Evaluation semantics whatever the mode.  Calibrating a
    calibrated model estimates the activations anew; its weights keep their qparams.

    Where torch.distributed is initialised, every process of the group calibrates the same model on its own batches,
    as many as it has, also none.  At the end their statistics are merged, in order of rank: all get the qparams that
    one process would find on the batches of rank 0, then of rank 1, and so on.

    Args:
        batches: Tensors, tuples or dicts of the model's inputs; a tuple longer than the required inputs
            keeps the leading ones and says so once.  Read once, in order.
        progress: A progress bar, if standard error is a terminal.
        through: `Float()`; or `Quantized()`, by which the values come from the network as quantized so far, in one
            pass over the batches that runs each of several models.
        group: Whose statistics are merged; the default group if there is one.  All its processes must calibrate; one
            that should do so alone is given a group of its own, such as `dist.new_subgroups(1)[0]`.
    Raises:
        CalibrationError: no batches, a wrong batch structure, NaN or infinite activations (by site), a
            model that is not quantized, models of different networks, or batches between which the number of
            an activation's scales changes; in several processes also an estimator without `merge`, another
            model in another process, or a process that failed.
        SpecError: a group that is none, or not this process's.

    >>> import qfunc
    >>> from qfunc import targets
    >>> quantized = qfunc.quantize(targets.onnxruntime)(torch.nn.Linear(2, 2))
    >>> calibrate([torch.tensor([[0.0, 2.55]])])(quantized).get_submodule("quantizers.input.output").scale.item()
    0.009999999776482582
    """
    require_batches(batches, "calibrate")
    require_through(through)
    require_group(group)
    return Calibration(batches, progress, through, group)


def _observers(models: Models, through: Float | Quantized) -> list[_Observer]:
    if not models:
        do = "Pass a quantized model or a tuple of them."
        raise CalibrationError(where="calibrate", found="an empty tuple", wanted="at least one model", do=do)
    for model in models:
        require(model, "quantized", "calibrate")
    passes = through.passes(models)
    return [_Observer(network, served, _statistics([seats(models[i]) for i in served])) for network, served in passes]


def _bar(batches: Iterable[Any], progress: bool) -> Iterable[Any]:
    return tqdm(batches, desc="calibrate", unit="batch", disable=not progress or not sys.stderr.isatty())


@frozen(eq=False)
class _Statistic:
    """One estimator, the (model, path) of the sites that it serves, and the tensors it sees, each with its site's name."""

    site: Site
    owners: tuple[tuple[int, str], ...]
    tensors: dict[str, str]


def _statistics(placed: list[tuple[Seat, ...]]) -> list[_Statistic]:
    # Sites of one tensor, scheme and estimator share their statistics, whichever model they are of.
    made: dict[Any, _Statistic] = {}
    for index, seats_of_model in enumerate(placed):
        for seat in seats_of_model:
            site = seat.module.site
            if site.constant or seat.module.dynamic or not isinstance(site.value, Scheme):
                continue  # weights are known from the start; fixed, derived and dynamic qparams are never estimated
            tensor = (index, site.tie) if site.tie and site.leader == "union" else seat.tensor
            key = (tensor, site.estimator, site.scheme)
            old = made.get(key, _Statistic(site, (), {}))
            made[key] = _Statistic(old.site, (*old.owners, (index, seat.path)), {seat.tensor: site.name, **old.tensors})
    return list(made.values())


class _Observer:
    """The states of all statistics while a network runs."""

    def __init__(self, network: fx.GraphModule, served: tuple[int, ...], statistics: list[_Statistic]) -> None:
        self.served, self.statistics = served, statistics
        self.states: list[Any] = [None] * len(statistics)
        self.readers: dict[str, list[int]] = {}
        for index, statistic in enumerate(statistics):
            for name in statistic.tensors:
                self.readers.setdefault(name, []).append(index)
        self.shapes: dict[int, tuple[int, ...]] = {}
        self.waiting: dict[int, list[Tensor]] = {}
        self.batch = 0
        record = record_of(network)
        self.rank_two = {n: record.facts[n].path for n in record.rank_two} if record else {}
        self.bind, self.walk = Binder(network), Walk(network, self.see, {*self.readers, *self.rank_two})
        self.inputs: tuple[TensorInfo, ...] = ()
        self.device = next((t.device for t in itertools.chain(network.parameters(), network.buffers())), None)

    def read(self, batch: Any, number: int) -> None:
        """Updates all statistics; `inputs` are the shapes of the first batch that is not empty."""
        self.batch = number
        arguments = self.bind(batch, "calibrate")
        if not self.inputs or any(0 in i.shape for i in self.inputs):
            self.inputs = infos(arguments)
        self.walk.guarded(arguments, f"calibrate, batch {number}")

    def see(self, name: str, value: Any) -> None:
        """Updates the statistics that read a tensor."""
        if name in self.rank_two and value.ndim != 2:
            raise CalibrationError(
                where=f"op {self.rank_two[name]!r}",
                found=f"values of rank {value.ndim} before its BatchNorm1d",
                wanted="rank 2, where a BatchNorm1d can be folded into the linear layer",
                do="Flatten the leading axes before this layer, or put the BatchNorm1d elsewhere.",
            )
        for index in self.readers.get(name, ()):
            statistic = self.statistics[index]
            require_float(value, statistic.tensors[name])
            if len(statistic.tensors) == 1:
                self._update(index, value)
                # NaN and infinity show in the statistics; only then is the tensor read once more, to be sure.
                if not _finite(self.states[index]):
                    self._require_finite(index, name, value)
                continue
            self._require_finite(index, name, value)
            # Tied tensors are one tensor to their estimator, once a batch.
            together = self.waiting.setdefault(index, [])
            together.append(value.flatten())
            if len(together) == len(statistic.tensors):
                self._update(index, torch.cat(self.waiting.pop(index)))

    def _require_finite(self, index: int, name: str, value: Tensor) -> None:
        require_finite(value, self.statistics[index].tensors[name], f"the activations of batch {self.batch}")

    def _update(self, index: int, value: Tensor) -> None:
        if value.numel():
            estimator, scheme = self.statistics[index].site.estimator, self.statistics[index].site.scheme
            if not isinstance(scheme.scale.shared, PerTensor):
                self._require_same_channels(index, tuple(value.shape))
            before = estimator.init(scheme, value) if self.states[index] is None else self.states[index]
            self.states[index] = estimator.update(before, value, scheme)

    def _require_same_channels(self, index: int, shape: tuple[int, ...]) -> None:
        site, wanted, scales = self.statistics[index].site, "an axis of the tensor", None
        try:
            scales = qparams_shape(site.scheme, shape)
            wanted = f"scales of shape {self.shapes.setdefault(index, scales)}, as in the batches before"
        except SpecError:  # not an axis of it
            do = f"Name another axis than that of {site.scheme.scale.shared!r}, by a rule for this op if others have it."
        else:
            do = "Give batches that differ in the axes that share a scale only, or use a scale per tensor."
        if scales is None or scales != self.shapes[index]:
            found = f"a tensor of shape {shape} in batch {self.batch}"
            raise CalibrationError(where=f"site {site.name!r}", found=found, wanted=wanted, do=do)

    def qparams(self) -> list[dict[str, Any]]:
        """For each model that is served, path -> qparams."""
        found: list[dict[str, Any]] = [{} for _ in self.served]
        for statistic, state in zip(self.statistics, self.states, strict=True):
            site = statistic.site
            if state is None:
                do = "Give batches of size 1 or more."
                raise CalibrationError(where=f"site {site.name!r}", found="only empty tensors", wanted="some values", do=do)
            for owner, path in statistic.owners:
                found[owner][path] = site.estimator.finalize(state, site.scheme)
        return found


def _finite(state: Any) -> bool:
    tensors = (t for t in leaves(state) if isinstance(t, Tensor) and t.is_floating_point())
    return all(bool(t.isfinite().all()) for t in tensors)


def require_float(value: Any, name: str) -> None:
    """Refuses values that have no scale.

    Raises:
        CalibrationError: names the site.
    """
    if not isinstance(value, Tensor) or not value.is_floating_point():
        found = f"{value.dtype} values" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        do = "Use edit.skip for ops on such values."
        raise CalibrationError(where=f"site {name!r}", found=found, wanted="a float tensor", do=do)


def _hold(model: fx.GraphModule, found: dict[str, Any], inputs: tuple[TensorInfo, ...]) -> fx.GraphModule:
    calibrated = copy.deepcopy(model)
    hold(calibrated, found)
    record = require(model, "quantized", "calibrate")
    return attach(calibrated, evolve(record, stage="calibrated", inputs=inputs))
