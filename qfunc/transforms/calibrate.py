"""calibrate: one float pass over the batches gives every activation its qparams."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar, overload

import torch
from attrs import evolve, field, frozen
from torch import fx, nn

from qfunc.analysis.integer_share import warn_of_share
from qfunc.errors import CalibrationError, SpecError
from qfunc.execution.batches import require_batches, warn_caller
from qfunc.execution.distributed import gather_counts, merge, propagate_errors, ranks, require_group, require_mergeable
from qfunc.execution.feed import Observe, feeder
from qfunc.execution.observers import Observer, statistics
from qfunc.execution.progress import track
from qfunc.execution.stored_statistics import StoredStatistics
from qfunc.execution.tensor_ranges.losses import range_warnings
from qfunc.execution.tensor_ranges.parts import joins
from qfunc.graph.interpreter import run_with_sizes
from qfunc.graph.record import TensorInfo, attach
from qfunc.graph.submodules import require_submodules, same_outer_model, with_submodules
from qfunc.graph.view import QuantizedModel
from qfunc.placement.legality.sizes import limits_sizes, require_sizes
from qfunc.transforms.calibration_source import FloatPass, QuantizedPass, different_networks_error, require_through
from qfunc.transforms.reconcile import bias_qparams, set_qparams
from qfunc.transforms.validate import describe

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


Model = TypeVar("Model", bound=nn.Module)


@frozen(repr=False)
class Calibration:
    """A transform of one quantized model, or of a tuple of them, that `calibrate(batches)` returns."""

    batches: Iterable[Any] = field(eq=id)
    progress: bool
    through: FloatPass | QuantizedPass
    group: ProcessGroup | None = field(eq=id)
    resume: str | os.PathLike[str] | None

    def __repr__(self) -> str:
        given = [repr(self.batches)] + ([] if self.progress else ["progress=False"])
        given += [] if self.through == FloatPass() else [f"through={self.through!r}"]
        given += [] if self.group is None else [f"group={self.group!r}"]
        return f"calibrate({', '.join([*given, *([] if self.resume is None else [f'resume={self.resume!r}'])])})"

    @overload
    def __call__(self, quantized: Model) -> Model: ...
    @overload
    def __call__(self, quantized: tuple[Model, ...]) -> tuple[Model, ...]: ...
    def __call__(self, quantized: Any) -> Any:
        """Return new models with qparams at all sites; the models themselves do not change."""
        models = quantized if isinstance(quantized, tuple) else (quantized,)
        # Under the caller's inference_mode the copies would be tensors that no training could use.
        with torch.inference_mode(False), torch.no_grad():
            results = self._calibrated(models)
        return results if isinstance(quantized, tuple) else results[0]

    def _calibrated(self, models: tuple[Any, ...]) -> tuple[Any, ...]:
        count, group = 0, ranks(self.group)
        with propagate_errors(group):
            views = _views(models)
            runs = _runs(models, views, self.through)
            observers = [o for of_run in runs.values() for o in of_run.values()]
            require_mergeable(observers, group)
            feeders = [
                feeder(models[i], {p: _read(o, [views[m][p] for m in o.models]) for p, o in of_run.items()}, "calibrate")
                for i, of_run in runs.items()
            ]
            stored = StoredStatistics(self.resume, observers, group)
            done = stored.load()
            shown = track(self.batches, "calibrate", "batch", self.progress, skipped=done)
            for count, batch in enumerate(shown, 1):
                if stored.has(batch, count):
                    continue
                for feed in feeders:
                    feed(batch, count)
                stored.save(count)
            if count < done:
                raise _too_few(self.resume, count, done)
        if not merge(observers, count, group):
            do = "Pass a non-empty iterable, not one already used up."
            raise CalibrationError(where="calibrate", found="no batches", wanted="at least one", do=do)
        with propagate_errors(group):
            results = _results(models, views, runs)
        gather_counts((), 1, ["the result"], group, "calibrate")  # each has ended
        stored.remove()
        return results


def calibrate(
    batches: Iterable[Any],
    progress: bool = True,
    *,
    through: FloatPass | QuantizedPass = FloatPass(),
    group: ProcessGroup | None = None,
    resume: str | os.PathLike[str] | None = None,
) -> Calibration:
    """Return a transform that estimates the qparams of activations from the values of the float network.

    It reads the batches once, and memory does not grow with their number. One float pass serves a tuple of quantized
    models of the same network. The network runs in evaluation mode, whatever the mode of the model. Calibrating a
    calibrated model estimates the activations and the biases with scales of their own again. Its weights keep their qparams.

    A tensor with `FixedQParams` keeps these, except where `smaller` allows a smaller scale. Where they round most of the
    sum of its values to 0, as of a softmax over very many entries, one warning names the site and the cure. More
    warnings name the ops whose formats no integer kernel takes, with the share of the multiply-accumulates on integers;
    the ops that put parts of very unlike ranges under one scale, as a concat or a write into a slice does, if a part
    keeps fewer than 8 codes or the target ties the parts; the tensors whose values all got one code; and those whose
    range a few absurd values determine.

    If torch.distributed is initialised, every process of the group calibrates the same model on its own batches, also on
    none. At the end the statistics are merged in order of rank. All processes get the qparams that one process would
    get from the batches of rank 0, then of rank 1, and so on.

    Args:
        batches: Tensors, tuples or dicts of the model's inputs. A tuple that is longer than the required inputs keeps
            its leading elements, with one warning. Read once, in order.
        progress: Show a progress bar on a terminal, else a line every 30 seconds.
        through: `FloatPass()`; or `QuantizedPass()`, which takes the values from the network as quantized so far, in one
            pass over the batches that runs each of several models.
        group: The processes whose statistics are merged; by default the default group, if there is one. All its
            processes must calibrate. Give a process that calibrates alone a separate group, such as
            `dist.new_subgroups(1)[0]`.
        resume: A file for the statistics, written once a minute and deleted at the end.  If it is there, its batches are
            read again but not run: give the same batches in the same order.  Each rank of a group has a file of its own,
            `name-RANK.suffix`.
    Raises:
        CalibrationError: no batches, a wrong batch structure, NaN or infinite activations (by site), a
            model that is not quantized, models of different networks, or batches between which the number of
            an activation's scales changes; in several processes also an estimator without `merge`, another
            model in another process, or a process that failed; or `resume` has statistics of another model, of
            other batches, or of another number of processes.
        FileError: `resume` is damaged, or cannot be written.
        SpecError: `group` is not a process group, or this process is not in it; or the hardware refuses the sizes of a
            tensor (`Target.legality`).

    >>> import qfunc
    >>> from qfunc import targets
    >>> quantized = qfunc.quantize(targets.onnxruntime)(torch.nn.Linear(2, 2))
    >>> calibrate([torch.tensor([[0.0, 2.55]])])(quantized).get_submodule("quantizers.input.output").scale.item()
    0.009999999776482582
    """
    require_batches(batches, "calibrate", progress)
    require_through(through)
    require_group(group)
    if resume is not None and not isinstance(resume, str | os.PathLike):
        do = "Write resume='statistics.safetensors'."
        raise SpecError(where="calibrate, resume", found=describe(resume), wanted="the path of a file", do=do)
    return Calibration(batches, progress, through, group, resume)


def _too_few(resume: Any, count: int, done: int) -> CalibrationError:
    found, do = f"{count} batches", "Give the batches of the calibration that was stopped, from the first one on."
    wanted = f"more than the {done} whose statistics it has"
    return CalibrationError(where=f"calibrate, resume={str(resume)!r}", found=found, wanted=wanted, do=do)


def _views(models: tuple[Any, ...]) -> list[dict[str, QuantizedModel]]:
    # Return for each model its quantized parts by path.
    if not models:
        do = "Pass a quantized model or a tuple of them."
        raise CalibrationError(where="calibrate", found="an empty tuple", wanted="at least one model", do=do)
    parts = [require_submodules(model, "quantized", "calibrate") for model in models]
    if any(each.keys() != parts[0].keys() for each in parts):
        raise different_networks_error()
    return [{path: QuantizedModel(part) for path, part in each.items()} for each in parts]


def _runs(
    models: tuple[Any, ...], views: list[dict[str, QuantizedModel]], through: FloatPass | QuantizedPass
) -> dict[int, dict[str, Observer]]:
    # Return for each model that runs (by index) the observers of its quantized parts.
    runs: dict[int, dict[str, Observer]] = {}
    for path in views[0]:
        parts = tuple(of_model[path] for of_model in views)
        for network, models_of_pass in through.passes(parts):
            found = statistics([parts[i].quantizers for i in models_of_pass])
            joined = dict.fromkeys(name for i in models_of_pass for join in joins(parts[i]) for name, _ in join.parts)
            observer = Observer(network, models_of_pass, found, tuple(joined))
            runs.setdefault(models_of_pass[0], {})[path] = observer
    pairs = [(index, other) for index, of_run in runs.items() for o in of_run.values() for other in o.models]
    if not all(same_outer_model(models[index], models[other]) for index, other in pairs):
        raise different_networks_error()
    return runs


def _results(
    models: tuple[Any, ...], views: list[dict[str, QuantizedModel]], runs: dict[int, dict[str, Observer]]
) -> tuple[Any, ...]:
    # The calibrated models, with a warning of what the statistics show.
    of_path = [(path, o) for of_run in runs.values() for path, o in of_run.items()]
    texts = [text for _, o in of_path for text in o.warnings()]
    found: dict[int, dict[str, fx.GraphModule]] = {i: {} for i in range(len(models))}
    for path, o in of_path:
        for i, qparams in zip(o.models, o.qparams(path), strict=True):
            found[i][path] = _with_qparams(views[i][path], qparams, o.inputs)
            texts += range_warnings(QuantizedModel(found[i][path]), o.ranges, views[i][path])
    for text in dict.fromkeys(texts):
        warn_caller(text)
    examples = {path: o.example for path, o in of_path if o.example}
    for of_model in found.values():
        warn_of_share(of_model, examples)
    return tuple(with_submodules(model, found[i], "calibrate") for i, model in enumerate(models))


def _read(observer: Observer, views: list[QuantizedModel]) -> Observe:
    # Return a function that updates the statistics; from the first batch it also checks the sizes of tensors.
    targets = [target for view in views if (target := view.record.target) is not None and limits_sizes(target)]

    def read(arguments: tuple[Any, ...], number: int) -> Any:
        if targets:
            network = views[0].float_network
            _, sizes = run_with_sizes(network, arguments, f"calibrate, batch {number}")
            while targets:
                require_sizes(network, targets.pop(), sizes)
        return observer.read(arguments, number)

    return read


def _with_qparams(view: QuantizedModel, found: dict[str, Any], inputs: tuple[TensorInfo, ...]) -> fx.GraphModule:
    calibrated = copy.deepcopy(view.model)
    own = QuantizedModel(calibrated)
    set_qparams(own, {**found, **bias_qparams(own)})
    return attach(calibrated, evolve(view.record, stage="calibrated", inputs=inputs))
