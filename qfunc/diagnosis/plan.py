"""A plan: the corrections, the edits of the target and the batches with which a float model is quantized."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

from attrs import field, frozen

from qfunc.specs import Target, edit
from qfunc.transforms.calibrate import calibrate
from qfunc.transforms.quantize import quantize


@frozen
class Correction:
    """A transform of a model by its maker, such as `qfunc.equalize`, and the maker's arguments.

    `reads_batches`: the maker's first argument is the batches of the calibration.

    >>> import qfunc
    >>> Correction(qfunc.correct_bias, reads_batches=True)
    qfunc.correct_bias(batches)
    """

    maker: Callable[..., Callable[[Any], Any]]
    arguments: tuple[Any, ...] = ()
    reads_batches: bool = False

    def transform(self, batches: Iterable[Any]) -> Callable[[Any], Any]:
        """Return the transform."""
        return self.maker(batches, *self.arguments, progress=False) if self.reads_batches else self.maker(*self.arguments)

    def __repr__(self) -> str:
        given = (*(("batches",) if self.reads_batches else ()), *map(repr, self.arguments))
        return f"qfunc.{self.maker.__name__}({', '.join(given)})"


@frozen
class Plan:
    """How a float model becomes a calibrated one.

    Attributes:
        before: Corrections of the float model.
        edits: Edits of the target: pairs of the code that makes an edit, and the edit.
        after: Corrections of the calibrated model.
        evaluated: True to calibrate on the evaluated batches.

    >>> Plan(edits=(("edit.weights(bits=4)", edit.weights(bits=4)),))
    edit.weights(bits=4)
    """

    before: tuple[Correction, ...] = ()
    edits: tuple[tuple[str, Callable[[Target], Target]], ...] = ()
    after: tuple[Correction, ...] = ()
    evaluated: bool = False

    def joined(self, other: Plan) -> Plan:
        """Return a plan that does what both do; a correction that both have is made once."""
        fields = {n: tuple(dict.fromkeys((*getattr(self, n), *getattr(other, n)))) for n in ("before", "edits", "after")}
        return Plan(**fields, evaluated=self.evaluated or other.evaluated)

    def target(self, target: Target) -> Target:
        """Return the edited target."""
        return edit.pipe(target, *(change for _, change in self.edits))

    def __repr__(self) -> str:
        words = (*map(repr, self.before), *(code for code, _ in self.edits), *map(repr, self.after))
        return "; ".join((*words, *(("calibrate on the evaluated batches",) if self.evaluated else ()))) or "as it is"


@frozen
class Setting:
    """What all plans of a diagnosis have in common: the target, the batches and the example inputs of `quantize`."""

    target: Target
    batches: Iterable[Any] = field(repr=False, eq=False)
    calibration: Iterable[Any] = field(repr=False, eq=False)
    example_inputs: tuple[Any, ...] | None = field(default=None, repr=False, eq=False)

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


__all__ = ["Correction", "Plan", "Setting"]
