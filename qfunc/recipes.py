"""Training recipes: edits that give a target the quantize functions of a paper and their initial values.

Each recipe is an edit like the edits of `specs.edit`, and later edits can change its choices:
`edit.pipe(targets.academic(4, 4), recipes.lsq(), edit.weights(estimator=Mse()))`.

The inputs of the network keep the estimator and the function of the target, because no weights before them train.  A
learned scale there would make the first convolution compute the gradient of its input, the largest of all gradients.
Apply `edit.override(specs.GraphInput(), activations=dict(...))` after a recipe to change them, or `edit.activations(...)` to
change all activations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import evolve

from qfunc.estimators import Ema, Entropy, LsqInit, LsqPlusInit, MinMax, Mse, StdClip
from qfunc.functions import DoReFa, Dsq, Lsq, LsqPlus, Pact, Tqt
from qfunc.specs import AllOf, Everything, GraphInput, Selector, Target, edit


def lsq() -> Callable[[Target], Target]:
    """Train scales, initialized to 2 mean|x| / sqrt(Q_p), with gradients scaled by 1 / sqrt(N Q_p).

    N counts the elements of a weight, and those of an activation in one example, so that gradients do not depend on how
    a batch is split.

    Source: Esser et al., arXiv:1902.08153, sections 2.1 and 2.2.

    >>> from qfunc import targets
    >>> lsq()(targets.academic(4, 4)).weight.estimator
    LsqInit()
    """
    activations = edit.activations(estimator=LsqInit(), function=Lsq(batch_axis=0))
    return _both(edit.weights(estimator=LsqInit(), function=Lsq()), activations)


def lsq_plus() -> Callable[[Target], Target]:
    """Train scales, and offsets of activations, initialized by mean and deviation (weights) or least error (activations).

    Source: Bhalgat et al., arXiv:2004.09576, sections 3.1 and 3.2.

    >>> from qfunc import targets
    >>> lsq_plus()(targets.academic(4, 4)).activation.function
    LsqPlus(gradient_scale=True, batch_axis=0)
    """
    weights = edit.weights(estimator=LsqPlusInit(), function=Lsq())
    return _both(weights, edit.activations(estimator=Mse(), function=LsqPlus(batch_axis=0)))


def pact(alpha: float = 10.0) -> Callable[[Target], Target]:
    """Train the clipping bounds of activations, initialized to alpha; quantize weights by DoReFa with their own magnitude.

    Args:
        alpha: The initial bound in real units.
    Source: Choi et al., arXiv:1805.06085, sections 3 and 5.

    >>> from qfunc import targets
    >>> pact()(targets.academic(4, 4)).activation.function
    Pact(alpha=10.0)
    """
    return _both(edit.weights(function=DoReFa(largest=None)), edit.activations(function=Pact(alpha=alpha)))


def dsq() -> Callable[[Target], Target]:
    """Train the bounds and the steepness of a soft staircase, initialized to the observed ranges.

    Source: Gong et al., arXiv:1908.05033, section 3.

    >>> from qfunc import targets
    >>> dsq()(targets.academic(4, 4)).weight.function
    Dsq(alpha=0.4, trains_alpha=True)
    """
    return _both(edit.weights(estimator=MinMax(), function=Dsq()), edit.activations(estimator=Ema(), function=Dsq()))


def dorefa() -> Callable[[Target], Target]:
    """Quantize tanh of the weights, and activations in their estimated range; only the weights train.

    The paper's bounds, weights in [-1, 1] and activations in [0, 1], are the bounds of `DoReFa()`.  They are for networks
    trained with them, with BatchNorms that are not folded.  Here weights and activations keep the magnitudes of the
    trained network.

    Source: Zhou et al., arXiv:1606.06160, section 2.

    >>> from qfunc import targets
    >>> dorefa()(targets.academic(4, 4)).activation.function
    DoReFa(largest=None)
    """
    function = DoReFa(largest=None)
    return _both(edit.weights(function=function), edit.activations(function=function))


def tqt() -> Callable[[Target], Target]:
    """Train thresholds of power-of-two scales, initialized by 3 deviations (weights) or least divergence (activations).

    For targets with power-of-two scales, such as `targets.vitis`.

    Source: Jain et al., arXiv:1903.08066, sections 3 and 5.1.

    >>> from qfunc import targets
    >>> tqt()(targets.vitis).weight.function
    Tqt()
    """
    return _both(edit.weights(estimator=StdClip(3.0), function=Tqt()), edit.activations(estimator=Entropy(), function=Tqt()))


def _both(weights: Callable[[Target], Target], activations: Callable[[Target], Target]) -> Callable[[Target], Target]:
    def recipe(target: Target) -> Target:
        others = tuple(o for o in target.overrides if o.role != "activation" or not _is_of_inputs(o.select))
        return edit.pipe(evolve(target, overrides=others), weights, activations, *_algorithms_of_inputs(target))

    return recipe


def _algorithms_of_inputs(target: Target) -> list[Callable[[Target], Target]]:
    # Return edits that give the inputs of the network the algorithms that they have in a target.
    of_all: dict[str, Any] = {"estimator": target.activation.estimator, "function": target.activation.function}
    found: list[tuple[Selector, dict[str, Any]]] = []
    for change in target.overrides:
        values = {n: getattr(change, n) for n in of_all if change.role == "activation" and getattr(change, n) is not None}
        if change.select in (Everything(), GraphInput(), _INPUTS):
            of_all, found = of_all | values, [(s, {n: v for n, v in old.items() if n not in values}) for s, old in found]
        else:
            select = change.select if _is_of_inputs(change.select) else Everything() & change.select & GraphInput()
            found.append((select, values))
    return [edit.override(s, activations=v) for s, v in ((_INPUTS, of_all), *found) if v]


_INPUTS = Everything() & GraphInput()


def _is_of_inputs(selector: Selector) -> bool:
    return selector == GraphInput() or (isinstance(selector, AllOf) and {Everything(), GraphInput()} <= set(selector.of))


__all__ = ["dorefa", "dsq", "lsq", "lsq_plus", "pact", "tqt"]


def __dir__() -> list[str]:
    return sorted(__all__)
