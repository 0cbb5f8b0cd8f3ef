"""A plan: the corrections, the edits of the target and the batches with which a float model is quantized."""

from __future__ import annotations

import glob
import re
import warnings
from collections.abc import Callable, Iterable
from typing import Any

from attrs import evolve, field, frozen

from qfunc.diagnosis.labelled_batches import Inputs, without_labels
from qfunc.specs import Target, edit
from qfunc.transforms.calibrate import calibrate
from qfunc.transforms.quantize import quantize


@frozen
class Correction:
    """A transform of a model by its maker, such as `qfunc.equalize`, and the maker's arguments, pairs of name and value.

    `reads_batches`: the maker's first argument is the batches of the calibration.

    >>> import qfunc
    >>> Correction(qfunc.correct_bias, reads_batches=True)
    qfunc.correct_bias(batches)
    >>> Correction(qfunc.equalize, (("deviations", 3.0),))
    qfunc.equalize(deviations=3.0)
    """

    maker: Callable[..., Callable[[Any], Any]]
    arguments: tuple[tuple[str, Any], ...] = ()
    reads_batches: bool = False

    def transform(self, batches: Iterable[Any]) -> Callable[[Any], Any]:
        """Return the transform."""
        named = dict(self.arguments)
        return self.maker(batches, progress=False, **named) if self.reads_batches else self.maker(**named)

    def __repr__(self) -> str:
        given = (*(("batches",) if self.reads_batches else ()), *(f"{name}={value!r}" for name, value in self.arguments))
        return f"qfunc.{self.maker.__name__}({', '.join(given)})"


@frozen
class Plan:
    """How a float model becomes a calibrated one.

    Attributes:
        before: Corrections of the float model.
        edits: Edits of the target: pairs of the code that makes an edit, and the edit.
        floats: The paths of the ops that stay in float.
        after: Corrections of the calibrated model.
        evaluated: True to calibrate on the evaluated batches.

    >>> Plan(edits=(("edit.weights(bits=4)", edit.weights(bits=4)),))
    edit.weights(bits=4)
    >>> Plan(floats=frozenset({"head", "body.10", "body.9"}))
    edit.skip(edit.name('body.9', 'body.10', 'head'))
    """

    before: tuple[Correction, ...] = ()
    edits: tuple[tuple[str, Callable[[Target], Target]], ...] = ()
    floats: frozenset[str] = frozenset()
    after: tuple[Correction, ...] = ()
    evaluated: bool = False

    def joined(self, other: Plan) -> Plan:
        """Return a plan that does what both do; a correction that both have is made once."""
        fields = {n: tuple(dict.fromkeys((*getattr(self, n), *getattr(other, n)))) for n in ("before", "edits", "after")}
        return Plan(**fields, floats=self.floats | other.floats, evaluated=self.evaluated or other.evaluated)

    def target(self, target: Target) -> Target:
        """Return the edited target."""
        skipped = [edit.skip(edit.name(*self._patterns()))] if self.floats else []
        return edit.pipe(target, *(change for _, change in self.edits), *skipped)

    def _patterns(self) -> list[str]:
        # In the order of their numbers: body.9 before body.10.
        parts = ((re.split(r"(\d+)", path), path) for path in self.floats)
        key = sorted(([(int(p), "") if p.isdigit() else (-1, p) for p in split], path) for split, path in parts)
        return [glob.escape(path) for _, path in key]

    def __repr__(self) -> str:
        skipped = (f"edit.skip(edit.name({', '.join(map(repr, self._patterns()))}))",) if self.floats else ()
        words = (*map(repr, self.before), *(code for code, _ in self.edits), *skipped, *map(repr, self.after))
        return "; ".join((*words, *(("calibrate on the evaluated batches",) if self.evaluated else ()))) or "as it is"


@frozen
class Setting:
    """What all plans of a diagnosis have in common: the target, the batches and the example inputs of `quantize`."""

    target: Target
    batches: Iterable[Any] = field(repr=False, eq=False)
    calibration: Iterable[Any] = field(repr=False, eq=False)
    example_inputs: tuple[Any, ...] | None = field(default=None, repr=False, eq=False)

    def without_labels(self, model: Any) -> Setting:
        """Return a setting whose batches have only what a model reads."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # `calibrated` quantizes again
            inputs = without_labels(quantize(self.target, self.example_inputs)(model))
        batches = Inputs(self.batches, inputs)
        calibration = batches if self.calibration is self.batches else Inputs(self.calibration, inputs)
        return evolve(self, batches=batches, calibration=calibration)

    def calibrated(self, plan: Plan, model: Any) -> Any:
        """Return a float model, quantized and calibrated by a plan.

        Raises:
            SpecError: the target cannot do what the plan asks.
        """
        batches = self.batches if plan.evaluated else self.calibration
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "(quantize|calibrate), op ")  # the report has the share of each plan
            # Metrics read the labels in the batches. Without a metric, diagnose itself warns of elements that nothing reads.
            warnings.filterwarnings("ignore", r"\w+: batches of \d+ elements ")
            for correction in plan.before:
                model = correction.transform(batches)(model)
            quantized: Any = quantize(plan.target(self.target), self.example_inputs)(model)
            calibrated = calibrate(batches, progress=False)(quantized)
            for correction in plan.after:
                calibrated = correction.transform(batches)(calibrated)
        return calibrated
