"""The score of a network on batches: the mean of a metric, or the agreement of its outputs with the float network's."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import isnan
from typing import Any

import torch
from attrs import frozen
from torch import Tensor, fx

from qfunc.analysis.metrics import Sums
from qfunc.analysis.replay import outputs_of, require_float_output
from qfunc.diagnosis.labelled_batches import without_labels
from qfunc.errors import CalibrationError
from qfunc.execution.batches import Binder, tensors_of
from qfunc.execution.evaluate import evaluated_value
from qfunc.transforms.scores import user_error

Metric = Callable[[list[Tensor], Any], Any]
"""(the outputs in the model's order, the original batch) -> one number per example, or one for all; higher is better."""


def binder_for(network: fx.GraphModule, metric: Metric | None, step: str) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function from a batch to the arguments of a network; with a metric, the batch may have labels.

    Raises:
        CalibrationError: by the function, as `Binder` does.
    """
    binder = Binder(network)
    if metric is None:
        return lambda batch: binder(batch, step)
    inputs = without_labels(network)
    return lambda batch: binder(inputs(batch), step)


@frozen
class Score:
    """What one network scores, and what it loses.

    Attributes:
        value: The mean of the metric; without a metric, the SQNR of the outputs in dB.
        loss: The metric of the float network less `value`; without a metric, noise / signal of the outputs.
    """

    value: float
    loss: float

    def recovered(self, base: Score) -> float:
        """Return the share of another score's loss that this one does not have: 1 - loss / loss of `base`.

        >>> Score(0.9, 0.05).recovered(Score(0.75, 0.2))
        0.75
        """
        return 1.0 - self.loss / base.loss if base.loss > 0 else 0.0


class Scorer:
    """Scores networks on the same batches.

    Args:
        network: The float network.
        bind: Returns the arguments of a batch.
        batches: The batches.
        metric: The metric, or None.
        step: The name of the public function, for messages.
        best: The metric of the float network; None if it is not known yet.
    """

    def __init__(
        self,
        network: fx.GraphModule,
        bind: Callable[[Any], tuple[Any, ...]],
        batches: Iterable[Any],
        metric: Metric | None,
        step: str,
        best: float | None = None,
    ) -> None:
        self.network, self.bind, self.batches, self.metric, self.step = network, bind, batches, metric, step
        self.has_float_outputs = True  # of the last batch
        self.best = self._mean(network, metric) if metric is not None and best is None else best

    def score(self, network: fx.GraphModule) -> Score:
        """Return the score of a simulation."""
        if self.metric is not None and self.best is not None:
            value = self._mean(network, self.metric)
            return Score(value, self.best - value)
        sums = Sums()
        for batch in self.batches:
            leaves = tensors_of(self.bind(batch))
            for x, y in zip(self._outputs(self.network, leaves), self._outputs(network, leaves), strict=True):
                if x.is_floating_point():
                    sums.add(x, y)
        found = sums.agreement()
        if isnan(found.sqnr):
            where, do = f"{self.step}, outputs", "Look for NaN and infinite values in the batches and in the outputs."
            raise CalibrationError(where=where, found="an SQNR of nan", wanted="finite outputs", do=do)
        return Score(found.sqnr, found.noise / found.signal if found.signal else found.noise)

    def _outputs(self, network: fx.GraphModule, leaves: list[Tensor]) -> list[Tensor]:
        value = evaluated_value(network, leaves, self.step)
        self.has_float_outputs = bool(outputs_of(value))
        if self.metric is None:
            require_float_output(value, self.step, "Pass metric=, a function (outputs, batch) -> one number per example.")
        return tensors_of(value)

    def _mean(self, network: fx.GraphModule, metric: Metric) -> float:
        found = []
        for batch in self.batches:
            outputs = self._outputs(network, tensors_of(self.bind(batch)))
            try:
                value = metric(outputs, batch)
            except Exception as e:
                raise user_error(e, f"{self.step}, metric", CalibrationError) from e
            try:
                found.append(torch.as_tensor(value, dtype=torch.float64).flatten().cpu())
            except (TypeError, ValueError, RuntimeError) as e:
                raise self._no_numbers(repr(value)[:80]) from e
        scores = torch.cat(found)
        mean = float(scores.mean())
        if isnan(mean):
            raise self._no_numbers("a mean of nan" if len(scores) else "no numbers")
        return mean

    def _no_numbers(self, found: str) -> CalibrationError:
        do = "Return a tensor of numbers or booleans, such as outputs[0].argmax(1) == batch[1]."
        return CalibrationError(where=f"{self.step}, metric", found=found, wanted="one number per example", do=do)
