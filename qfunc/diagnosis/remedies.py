"""Plans that remove causes of a loss, whether or not a target can do them."""

from __future__ import annotations

import glob
from collections.abc import Sequence

from qfunc.corrections.correct_bias import correct_bias
from qfunc.corrections.equalize import equalize
from qfunc.corrections.migration.smooth import smooth_quant
from qfunc.diagnosis.plan import Correction, Plan
from qfunc.estimators import MinMax, Mse
from qfunc.specs import PerChannel, edit

RECALIBRATED = Plan(evaluated=True)
CLOSE_ACTIVATIONS = Plan(edits=(("edit.activations(estimator=Mse())", edit.activations(estimator=Mse())),))
CLOSE_WEIGHTS = Plan(edits=(("edit.weights(estimator=Mse())", edit.weights(estimator=Mse())),))
WIDE_ACTIVATIONS = Plan(edits=(("edit.activations(bits=16)", edit.activations(bits=16)),))
PER_CHANNEL = Plan(edits=(("edit.weights(granularity=PerChannel())", edit.weights(granularity=PerChannel())),))
SMOOTHED = Plan(before=(Correction(smooth_quant, reads_batches=True),))
EQUALIZED = Plan(before=(Correction(equalize, (("deviations", 3.0),)),))
UNBIASED = Plan(after=(Correction(correct_bias, reads_batches=True),))


def keep_float(ops: Sequence[str]) -> tuple[Plan, ...]:
    """Return the plan that keeps some ops in float, given their paths; none for no ops.

    >>> keep_float(["head.0"])
    (edit.skip(edit.name('head.0')),)
    """
    return (Plan(floats=frozenset(ops)),) if ops else ()


def unclipped(sites: Sequence[str]) -> Plan:
    """Return the plan that takes the whole range of some tensors, given the names of their sites."""
    return _override(sites, "MinMax()", MinMax())


def clipped(sites: Sequence[str]) -> Plan:
    """Return the plan that clips some tensors where the squared error is least, given the names of their sites."""
    return _override(sites, "Mse()", Mse())


def _override(sites: Sequence[str], code: str, estimator: MinMax | Mse) -> Plan:
    tensors = dict.fromkeys(site.partition("@")[0] for site in sites)
    names = tuple(map(glob.escape, tensors))
    text = f"edit.override(edit.name({', '.join(map(repr, names))}), activations=dict(estimator={code}))"
    return Plan(edits=((text, edit.override(edit.name(*names), activations={"estimator": estimator})),))
