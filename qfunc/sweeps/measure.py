"""What a worker computes for one target: its score, its share of integers, and its files."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from attrs import evolve, frozen
from torch import fx, nn

from qfunc.analysis.integer_share import integer_share
from qfunc.diagnosis.scoring import Metric, Scorer, binder_for
from qfunc.errors import CalibrationError, QfuncError, first_line
from qfunc.execution.batches import first_batch
from qfunc.graph.stages import require_stage
from qfunc.graph.view import QuantizedModel
from qfunc.lowering.artifact import REPORT, Artifact
from qfunc.specs import Target
from qfunc.sweeps.report import NO_LOWERING, SweepRow
from qfunc.transforms.deploy import deploy
from qfunc.transforms.validate import describe

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


def measure_row(task: Task) -> tuple[SweepRow, Artifact | None]:
    """Return the row of a target, without its time, and its files; a step that fails is the reason in the row."""
    row = SweepRow(task.name)
    try:
        calibrated = task.calibrated if task.then is None else _corrected(task.then, task.calibrated)
        network = calibrated if task.predict is None else _predicted(task.predict, task.target, calibrated)
        bind = binder_for(calibrated, task.metric, "sweep")
        original = QuantizedModel(task.calibrated).float_network  # `then` may change the float weights, as correct_bias does
        scorer = Scorer(original, bind, task.batches, task.metric, "sweep", task.best)
        share = integer_share(QuantizedModel(calibrated), bind(first_batch(task.batches, "sweep", "batches"))).share
        row = evolve(row, value=scorer.score(network).value, integer=share)
        if task.target.lowering is None:
            return evolve(row, why=NO_LOWERING), None
        artifact = deploy(task.target)(calibrated)
    except Exception as e:
        return evolve(row, why=reason(e)), None
    return evolve(row, size=sum(len(content) for name, content in artifact.files.items() if name != REPORT)), artifact


def _corrected(then: Callable[[Any], Any], calibrated: fx.GraphModule) -> fx.GraphModule:
    found: Any = _called("then", "a calibrated model", then, calibrated)
    require_stage(found, "calibrated", "sweep, then")
    return found  # type: ignore[no-any-return]


def _predicted(predict: Predict, target: Target, calibrated: fx.GraphModule) -> fx.GraphModule:
    found: Any = _called("predict", "a network", lambda: predict(target)(calibrated))
    if not isinstance(found, nn.Module):
        do = "Return a function from a calibrated model to a network, as qfunc.emulate does."
        raise CalibrationError(where="sweep, predict", found=describe(found), wanted="a network", do=do)
    return found  # type: ignore[return-value]


def _called(name: str, wanted: str, function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except QfuncError:
        raise
    except Exception as e:
        do = f"Fix the function that was passed as {name}."
        raise CalibrationError(where=f"sweep, {name}", found=first_line(e), wanted=wanted, do=do) from e


def reason(error: BaseException) -> str:
    """Return an error as the reason of a row.

    >>> from qfunc.errors import DeployError
    >>> reason(DeployError(where="deploy", found="a", wanted="b", do="Write c."))
    'deploy: found a, wanted b'
    >>> reason(TypeError("no number"))
    'TypeError: no number'
    """
    return f"{error.where}: found {error.found}, wanted {error.wanted}" if isinstance(error, QfuncError) else first_line(error)
