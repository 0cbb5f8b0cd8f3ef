"""sweep: one model on many targets, calibrated in one pass."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Executor, as_completed
from contextlib import closing
from typing import Any

import torch
from attrs import frozen
from torch import fx, nn
from torch.export import ExportedProgram

from qfunc._transform import Transform
from qfunc.analysis.report_format import name_of
from qfunc.diagnosis.labelled_batches import Inputs, without_labels
from qfunc.diagnosis.scoring import Metric, Scorer, binder_for
from qfunc.errors import SpecError, first_line
from qfunc.execution.batches import first_batch, require_repeatable, require_some, tensors_of
from qfunc.execution.distributed import require_one_process
from qfunc.execution.progress import Progress
from qfunc.graph.view import QuantizedModel
from qfunc.lowering.artifact import Artifact
from qfunc.specs import Target
from qfunc.sweeps.measure import Predict, Task, measure_row, reason
from qfunc.sweeps.report import Sweep, SweepRow
from qfunc.sweeps.stored import Stored, shared_digest
from qfunc.sweeps.timing import time_rows
from qfunc.transforms.calibrate import calibrate
from qfunc.transforms.quantize import quantize
from qfunc.transforms.validate import describe, require_target_value


def sweep(
    targets: Mapping[str, Target] | Sequence[Target],
    batches: Iterable[Any],
    progress: bool = True,
    *,
    metric: Metric | None = None,
    calibration: Iterable[Any] | None = None,
    then: Callable[[Any], Any] | None = None,
    predict: Predict | None = None,
    runs: int = 0,
    executor: Executor | None = None,
    folder: str | os.PathLike[str] | None = None,
    example_inputs: tuple[Any, ...] | None = None,
) -> Callable[[nn.Module | ExportedProgram], Sweep]:
    """Return a function from a float model to a `Sweep`: accuracy, size and time of the model on each of several targets.

    All targets are calibrated in one pass over the batches.  A target that refuses the model, or a step that fails, gets a row
    with the reason.
    The score of a target is the mean of the metric over its simulation, or over the network that `predict` returns.

    Args:
        targets: Name -> target, or targets of different names.  Edits make variants: `edit.weights(bits=4)(target)`.
        batches: The evaluated batches; they are iterated many times.
        progress: Show a progress bar on a terminal, else a line every 30 seconds.
        metric: As for `diagnose`; None for the SQNR of the outputs, in dB.  With one, batches may have labels.
        calibration: The batches for `calibrate`; None for the evaluated ones.
        then: A transform of each calibrated model, such as `qfunc.correct_bias(batches)`.
        predict: `qfunc.emulate` scores the emulation instead of the simulation.
        runs: The number of timed runs of the first batch on the runtime of each target, of which the least counts.  The
            artifacts run in turns in this process, after all else.  0 measures no time.
        executor: Runs the rows: an executor of `concurrent.futures`, or one with its interface.  Batches, metric, `then` and
            `predict` are then sent to its processes.  None runs them here, one after the other.
        folder: Stores the row and the files of each target as soon as they are known.  A sweep of the same model, batches and
            functions goes on where an earlier one was stopped, and tries again what failed.
        example_inputs: As for `quantize`.
    Raises:
        CalibrationError: no batches, batches that can be iterated only once, or a metric that returns no numbers.
        SpecError: no targets, two of one name, arguments of another type, or a default process group of several processes.
        FileError: `folder` is a file, cannot be written, or has a damaged row.

    >>> from qfunc import targets
    >>> report = sweep([targets.onnxruntime, targets.tensorrt], [torch.randn(64, 8)], progress=False)(nn.Linear(8, 4))
    >>> [row.name for row in report.rows], report["onnxruntime"].integer
    (['onnxruntime', 'tensorrt'], 1.0)
    """
    require_one_process("sweep", _ALONE)
    chosen = _by_name(targets)
    for name, given in (("batches", batches), ("calibration", calibration)):
        if given is not None:
            require_repeatable(given, "sweep", name, progress, "qfunc.sweep(targets, batches)(model)")
            require_some(given, "sweep", name)
    for name, function in (("metric", metric), ("then", then), ("predict", predict)):
        if function is not None and not callable(function):
            do = "See the arguments of qfunc.sweep."
            raise SpecError(where=f"sweep, {name}", found=describe(function), wanted="a function", do=do)
    if type(runs) is not int or runs < 0:
        raise SpecError(where="sweep, runs", found=repr(runs), wanted="0 or a positive integer", do="Write runs=30.")
    if executor is not None and (isinstance(executor, type) or not callable(getattr(executor, "submit", None))):
        do = "Pass concurrent.futures.ProcessPoolExecutor(4)."
        raise SpecError(where="sweep, executor", found=describe(executor), wanted="an executor with submit", do=do)
    given_batches = batches if calibration is None else calibration
    study = _Study(chosen, batches, given_batches, metric, then, predict, runs, executor, folder, example_inputs, progress)

    def transform(model: nn.Module | ExportedProgram) -> Sweep:
        require_one_process("sweep", _ALONE)
        with torch.inference_mode(False), torch.no_grad():
            return study.of(model)

    arguments = {
        "targets": targets, "batches": batches, "progress": progress, "metric": metric, "calibration": calibration,
        "then": then, "predict": predict, "runs": runs, "executor": executor, "folder": folder,
        "example_inputs": example_inputs,
    }  # fmt: skip
    return Transform(sweep, arguments, transform)


_ALONE = "Call it in one process, before init_process_group, and share the rows by executor=ProcessPoolExecutor(4)."


def _by_name(targets: Any) -> dict[str, Target]:
    pairs = list(targets.items()) if isinstance(targets, Mapping) else None
    if pairs is None and isinstance(targets, Iterable) and not isinstance(targets, Target | str):
        pairs = [(getattr(target, "name", ""), target) for target in targets]
    if not pairs:
        do = "Pass [targets.litert, targets.onnxruntime], or a dict of names to targets."
        raise SpecError(where="sweep, targets", found=describe(targets), wanted="at least one target", do=do)
    for _, target in pairs:
        require_target_value(target, "sweep")
    names = [name for name, _ in pairs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        do = f"Pass a dict: {{{twice!r}: ..., {twice + ', 4 bits'!r}: ...}}."
        raise SpecError(where="sweep, targets", found=f"two targets of the name {twice!r}", wanted="different names", do=do)
    return dict(pairs)


@frozen(eq=False)
class _Study:
    targets: dict[str, Target]
    batches: Iterable[Any]
    calibration: Iterable[Any]
    metric: Metric | None
    then: Callable[[Any], Any] | None
    predict: Predict | None
    runs: int
    executor: Any
    folder: Any
    example_inputs: Any
    progress: bool

    def of(self, model: Any) -> Sweep:
        """Return the report of a model."""
        first_batch(self.batches, "sweep", "batches")
        first_batch(self.calibration, "sweep", "calibration")
        quantized, refused = self._each(self.targets, lambda name: self._quantized(name, model))
        first = next(iter(quantized.values()), None)
        scored_by = "SQNR, dB" if self.metric is None else name_of(self.metric, "metric")
        if first is None:
            return Sweep(scored_by, None, 0, tuple(refused.values()))
        network, bind = QuantizedModel(first).float_network, binder_for(first, self.metric, "sweep")
        rows, artifacts = dict(refused), dict[str, Artifact]()
        stored = self._stored(network)
        best = Scorer(network, bind, self.batches, self.metric, "sweep").best
        first_batch(self.batches, "sweep", "batches")  # a stream may be used up
        if stored is not None:
            found = {name: stored.row(name, self.targets[name]) for name in quantized}
            rows |= {name: row for name, row in found.items() if row is not None}
        calibrated, others = self._calibrated({n: m for n, m in quantized.items() if n not in rows})
        rows |= others
        tasks = [Task(n, self.targets[n], m, self.batches, self.metric, best, self.then, self.predict)
                 for n, m in calibrated.items()]  # fmt: skip
        with Progress("sweep", len(tasks), "target", self.progress) as bar, closing(self._results(tasks)) as results:
            for row, artifact in results:
                rows[row.name] = row
                if stored is not None:
                    stored.write(self.targets[row.name], row, artifact)
                elif artifact is not None and self.runs:
                    artifacts[row.name] = artifact
                bar.advance()
        if stored is not None and self.runs:
            artifacts = {name: stored.artifact(name) for name, row in rows.items() if row.size is not None}
        inputs = tensors_of(bind(first_batch(self.batches, "sweep", "batches")))
        rows |= time_rows(self.targets, rows, artifacts, [t.cpu() for t in inputs], self.runs)
        size = sum(t.numel() * t.element_size() for t in network.state_dict().values())
        return Sweep(scored_by, best, size, tuple(rows[name] for name in self.targets))

    def _stored(self, network: fx.GraphModule) -> Stored | None:
        if self.folder is None:
            return None
        functions = {"metric": self.metric, "then": self.then, "predict": self.predict}
        batches = {"batches": self.batches}
        if self.calibration is not self.batches:
            batches["calibration"] = self.calibration
        return Stored(self.folder, self.targets, shared_digest(network, functions, batches))

    def _quantized(self, name: str, model: Any) -> fx.GraphModule:
        made: fx.GraphModule = quantize(self.targets[name], example_inputs=self.example_inputs)(model)
        return made

    def _each(
        self, names: Iterable[str], make: Callable[[str], fx.GraphModule]
    ) -> tuple[dict[str, fx.GraphModule], dict[str, SweepRow]]:
        made, refused = dict[str, fx.GraphModule](), dict[str, SweepRow]()
        for name in names:
            try:
                made[name] = make(name)
            except Exception as e:
                refused[name] = SweepRow(name, why=reason(e))
        return made, refused

    def _calibrated(self, models: dict[str, fx.GraphModule]) -> tuple[dict[str, fx.GraphModule], dict[str, SweepRow]]:
        # In one pass; if a target refuses what calibration finds, such as a size, without those that refuse the first batch.
        if not models:
            return {}, {}
        batches = self.calibration
        if self.metric is not None:
            batches = Inputs(batches, without_labels(next(iter(models.values()))))
        try:
            return self._in_one_pass(models, batches), {}
        except Exception as error:
            start = [next(iter(batches))]
            accepted, refused = self._each(models, lambda name: calibrate(start, progress=False)(models[name]))
            if len(refused) in (0, len(models)):
                raise error
            return self._in_one_pass({name: models[name] for name in accepted}, batches), refused

    def _in_one_pass(self, models: dict[str, fx.GraphModule], batches: Iterable[Any]) -> dict[str, fx.GraphModule]:
        found = calibrate(batches, self.progress)(tuple(models.values()))
        return dict(zip(models, found, strict=True))

    def _results(self, tasks: list[Task]) -> Generator[tuple[SweepRow, Artifact | None], None, None]:
        if self.executor is None:
            yield from map(measure_row, tasks)
            return
        futures = dict[Any, str]()
        for task in tasks:
            try:
                futures[self.executor.submit(measure_row, task)] = task.name
            except Exception as e:  # of an executor that can run no more, because a process of it died
                yield SweepRow(task.name, why=f"sweep, executor: {first_line(e)}"), None
        try:
            for future in as_completed(futures):
                try:
                    found = future.result()
                except Exception as e:  # the process died, or the task cannot be sent to it
                    found = SweepRow(futures[future], why=f"sweep, executor: {first_line(e)}"), None
                yield found
        finally:  # after an interrupt or a full disk, the executor need not run the others
            for future in futures:
                future.cancel()
