"""What a worker computes for one target: its score, its share of integers, and its files."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from attrs import evolve, frozen
from torch import fx

from qfunc.analysis.integer_share import integer_share
from qfunc.diagnosis.scoring import Metric, Scorer
from qfunc.errors import QfuncError
from qfunc.execution.batches import Binder
from qfunc.graph.view import QuantizedModel
from qfunc.lowering.artifact import REPORT, Artifact
from qfunc.specs import Target
from qfunc.sweeps.report import SweepRow
from qfunc.transforms.deploy import deploy

Predict = Callable[[Target], Callable[[fx.GraphModule], fx.GraphModule]]
"""Returns, for a target, the transform of a calibrated model to the network that is scored, such as `qfunc.emulate`."""


@frozen(eq=False)
class Task:
    """A calibrated model, and what is measured of it.  It can be pickled if its batches and functions can."""

    name: str
    target: Target
    calibrated: fx.GraphModule
    batches: Iterable[Any]
    metric: Metric | None
    best: float | None
    """The metric of the float network."""
    then: Callable[[Any], Any] | None
    predict: Predict | None


def binder_of(model: fx.GraphModule, metric: Metric | None) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function from a batch to the arguments of a model."""
    binder = Binder(model)
    binder.warned = metric is not None  # it reads the labels that are behind the inputs
    return lambda batch: binder(batch, "sweep")


def measured(task: Task) -> tuple[SweepRow, Artifact | None]:
    """Return the row of a target, without its time, and its files."""
    row = SweepRow(task.name)
    try:
        calibrated = task.calibrated if task.then is None else task.then(task.calibrated)
        network = calibrated if task.predict is None else task.predict(task.target)(calibrated)
        bind = binder_of(calibrated, task.metric)
        original = QuantizedModel(task.calibrated).float_network  # `then` may change the float weights, as correct_bias does
        scorer = Scorer(original, bind, task.batches, task.metric, "sweep", task.best)
        share = integer_share(QuantizedModel(calibrated), bind(next(iter(task.batches)))).share
        row = evolve(row, value=scorer.score(network).value, integer=share)
        if task.target.lowering is None:
            return evolve(row, why="no files: the target has no lowering"), None
        artifact = deploy(task.target)(calibrated)
    except QfuncError as e:
        return evolve(row, why=reason(e)), None
    return evolve(row, size=sum(len(content) for name, content in artifact.files.items() if name != REPORT)), artifact


def reason(error: QfuncError) -> str:
    """Return an error as the reason of a row.

    >>> from qfunc.errors import DeployError
    >>> reason(DeployError(where="deploy", found="a", wanted="b", do="Write c."))
    'deploy: found a, wanted b'
    """
    return f"{error.where}: found {error.found}, wanted {error.wanted}"


__all__ = ["Predict", "Task", "binder_of", "measured", "reason"]
