"""Recipes of training: edits that give a target the quantize functions of a paper and their initial values.

Each is an edit as those of `specs.edit`, so that later edits change what it chose:
`edit.pipe(targets.academic(4, 4), recipes.lsq(), edit.weights(estimator=Mse()))`.

What enters the network keeps the algorithm of the target: nothing before it trains, and a learned scale there would cost
the first convolution the widest of all gradients.  `edit.override(specs.GraphInput(), activations=dict(...))` behind a recipe
gives it another.
"""

from __future__ import annotations

from collections.abc import Callable

from qfunc.estimators import Ema, Entropy, LsqInit, LsqPlusInit, MinMax, Mse, StdClip
from qfunc.functions import DoReFa, Dsq, Lsq, LsqPlus, Pact, Tqt
from qfunc.specs import Everything, GraphInput, Target, edit


def lsq() -> Callable[[Target], Target]:
    """Return scales train, from 2 mean|x| / sqrt(Q_p), with gradients scaled by 1 / sqrt(N Q_p).

    N counts a weight's elements, and an activation's in one example: gradients do not depend on how a batch is split.

    Source: Esser et al., arXiv:1902.08153, sections 2.1 and 2.2.

    >>> from qfunc import targets
    >>> lsq()(targets.academic(4, 4)).weight.estimator
    LsqInit()
    """
    activations = edit.activations(estimator=LsqInit(), function=Lsq(batch_axis=0))
    return _both(edit.weights(estimator=LsqInit(), function=Lsq()), activations)


def lsq_plus() -> Callable[[Target], Target]:
    """Return scales train, of activations also the offsets: weights from mean and deviation, activations from the least error.

    Source: Bhalgat et al., arXiv:2004.09576, sections 3.1 and 3.2.

    >>> from qfunc import targets
    >>> lsq_plus()(targets.academic(4, 4)).activation.function
    LsqPlus(gradient_scale=True, batch_axis=0)
    """
    weights = edit.weights(estimator=LsqPlusInit(), function=Lsq())
    return _both(weights, edit.activations(estimator=Mse(), function=LsqPlus(batch_axis=0)))


def pact(alpha: float = 10.0) -> Callable[[Target], Target]:
    """Clipping bounds of activations train, from alpha; weights are DoReFa's, of their own magnitude.

    Args:
        alpha: The first bound in real units.
    Source: Choi et al., arXiv:1805.06085, sections 3 and 5.

    >>> from qfunc import targets
    >>> pact()(targets.academic(4, 4)).activation.function
    Pact(alpha=10.0)
    """
    return _both(edit.weights(function=DoReFa(largest=None)), edit.activations(function=Pact(alpha=alpha)))


def dsq() -> Callable[[Target], Target]:
    """Bounds and the steepness of a soft staircase train, from the observed ranges.

    Source: Gong et al., arXiv:1908.05033, section 3.

    >>> from qfunc import targets
    >>> dsq()(targets.academic(4, 4)).weight.function
    Dsq(alpha=0.4, trains_alpha=True)
    """
    return _both(edit.weights(estimator=MinMax(), function=Dsq()), edit.activations(estimator=Ema(), function=Dsq()))


def dorefa() -> Callable[[Target], Target]:
    """Weights squashed by tanh, activations in their estimated range; nothing but the weights trains.

    The paper's own bounds, weights in [-1, 1] and activations in [0, 1], are `DoReFa()`: for networks trained with them,
    whose BatchNorms are not folded.  Here weights and activations keep the magnitude that a trained network gave them.

    Source: Zhou et al., arXiv:1606.06160, section 2.

    >>> from qfunc import targets
    >>> dorefa()(targets.academic(4, 4)).activation.function
    DoReFa(largest=None)
    """
    function = DoReFa(largest=None)
    return _both(edit.weights(function=function), edit.activations(function=function))


def tqt() -> Callable[[Target], Target]:
    """Thresholds of power-of-two scales train, from 3 deviations of weights and the least divergence of activations.

    For targets whose scales are powers of two, such as `targets.vitis`.

    Source: Jain et al., arXiv:1903.08066, sections 3 and 5.1.

    >>> from qfunc import targets
    >>> tqt()(targets.vitis).weight.function
    Tqt()
    """
    return _both(edit.weights(estimator=StdClip(3.0), function=Tqt()), edit.activations(estimator=Entropy(), function=Tqt()))


def _both(weights: Callable[[Target], Target], activations: Callable[[Target], Target]) -> Callable[[Target], Target]:
    def recipe(target: Target) -> Target:
        own = {"estimator": target.activation.estimator, "function": target.activation.function}
        inputs = edit.override(Everything() & GraphInput(), activations=own)
        return edit.pipe(target, weights, activations, inputs)

    return recipe


__all__ = ["dorefa", "dsq", "lsq", "lsq_plus", "pact", "tqt"]


def __dir__() -> list[str]:
    return sorted(__all__)
