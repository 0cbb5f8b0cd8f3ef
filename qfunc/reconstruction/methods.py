"""Reconstruction methods: unit, loss, number of iterations and learning rates."""

from __future__ import annotations

from typing import Any, TypedDict, Unpack

from attrs import evolve, field, frozen

from qfunc.reconstruction.losses import Fisher, SquaredError
from qfunc.reconstruction.partition import Blocks, Layers
from qfunc.specs._check import integer, number, refuse


def _share(instance: Any, attribute: Any, value: Any) -> None:
    if type(value) not in (int, float) or not 0 <= value < 1:
        raise refuse(
            instance, attribute.name, value, "a number in [0, 1)", "Give the share of iterations without the regulariser."
        )


@frozen
class Regulariser:
    """lambda sum (1 - |2 h - 1|^b) over all weights of a unit; h in [0, 1] is the soft rounding of a weight.

    In the first `warm_up` T of T iterations lambda is 0.  Then b falls linearly from `start` to `end`: a high exponent
    leaves h free unless it is near 0 or 1, a low exponent drives it to 0 or 1.

    Args:
        weight: lambda.
        start, end: The first and the last b.
        warm_up: The share of iterations without the regulariser, in [0, 1).
    Raises:
        SpecError: a field out of range.
    Source: Nagel et al., arXiv:2004.10568, equation 24 and section 4; the schedule of Li et al., arXiv:2102.05426, appendix.

    >>> schedule = Regulariser()
    >>> schedule.exponent(199, 1000), schedule.exponent(200, 1000), schedule.exponent(600, 1000)
    (None, 20.0, 11.0)
    """

    weight: float = field(default=0.01, validator=number(positive=True))
    start: float = field(default=20.0, validator=number(positive=True))
    end: float = field(default=2.0, validator=number(positive=True))
    warm_up: float = field(default=0.2, validator=_share)

    def exponent(self, iteration: int, iterations: int) -> float | None:
        """Return b at an iteration, counted from 0; None during the warm-up."""
        first = self.warm_up * iterations
        if iteration < first:
            return None
        return self.end + (self.start - self.end) * max(0.0, 1 - (iteration - first) / (iterations - first))


def _probability(instance: Any, attribute: Any, value: Any) -> None:
    if type(value) not in (int, float) or not 0 <= value < 1:
        raise refuse(instance, attribute.name, value, "a number in [0, 1)", "Give such a number.")


def _one_of(*kinds: type) -> Any:
    def check(instance: Any, attribute: Any, value: Any) -> None:
        if type(value) not in kinds:
            wanted = " or ".join(f"{kind.__name__}()" for kind in kinds)
            raise refuse(instance, attribute.name, value, wanted, "Give such a value.")

    return check


@frozen
class Method:
    """A method of rounding weights so that each unit's output matches the float unit's: `qfunc.reconstruct(method, batches)`.

    In each of `iterations` steps of Adam, the unit runs on `batch` random images, with its weights rounded softly by v
    and with the input from the network quantized so far.

    Args:
        unit: Layers() or Blocks().
        loss: SquaredError() or Fisher().
        iterations, batch: The number of iterations, and of images per iteration, for each unit.
        rounding_lr: The learning rate of v.
        regulariser: The regulariser that drives the soft rounding to 0 or 1.
        scale_lr: The learning rate, with cosine decay, of the scales of activations that no earlier unit reads, by LSQ's
            gradient.  None does not train them.  The scales of the network's inputs never train.
        drop: The probability that an element of the unit's inputs, and of quantized activations inside, stays float.
        seed: The seed of the order of images and of `drop`.
    Raises:
        SpecError: a field out of range.

    >>> Method(unit=Blocks(), iterations=2000, rounding_lr=0.01).drop
    0.0
    """

    unit: Layers | Blocks = field(default=Layers(), validator=_one_of(Layers, Blocks))
    loss: SquaredError | Fisher = field(default=SquaredError(), validator=_one_of(SquaredError, Fisher))
    iterations: int = field(default=10_000, validator=integer(1))
    batch: int = field(default=32, validator=integer(1))
    rounding_lr: float = field(default=1e-3, validator=number(positive=True))
    regulariser: Regulariser = field(default=Regulariser(), validator=_one_of(Regulariser))
    scale_lr: float | None = field(default=None, validator=number(positive=True, optional=True))
    drop: float = field(default=0.0, validator=_probability)
    seed: int = field(default=0, validator=integer(0))


class Changes(TypedDict, total=False):
    """The fields of a `Method`, by name."""

    unit: Layers | Blocks
    loss: SquaredError | Fisher
    iterations: int
    batch: int
    rounding_lr: float
    regulariser: Regulariser
    scale_lr: float | None
    drop: float
    seed: int


def adaround(**changes: Unpack[Changes]) -> Method:
    """Return AdaRound: layer by layer, the squared error after the activation; 10,000 iterations of 32 images.

    Source: Nagel, Amjad, van Baalen, Louizos, Blankevoort, arXiv:2004.10568, sections 3.3 and 4.

    >>> adaround(iterations=1000).iterations
    1000
    """
    return evolve(Method(), **changes)


def brecq(**changes: Unpack[Changes]) -> Method:
    """Return BRECQ: block by block, the squared error; scales of activations train; 20,000 iterations.

    The authors' ImageNet script and MQBench use the squared error; `brecq(loss=Fisher())` weights it by the Fisher
    information, as in the paper's equation 10.  Here scales train together with the rounding; in the paper, afterwards.

    Source: Li, Gong, Tan, Yang, Hu, Zhang, Yu, Wang, Gu, arXiv:2102.05426, algorithm 1; main_imagenet.py of its implementation.

    >>> brecq().unit, brecq().loss
    (Blocks(modules=(), most=12), SquaredError())
    """
    method = Method(unit=Blocks(), iterations=20_000, scale_lr=4e-5)
    return evolve(method, **changes)


def qdrop(**changes: Unpack[Changes]) -> Method:
    """Return QDrop: block by block, the squared error; in training half of the elements stay float; 20,000 iterations.

    Source: Wei, Gong, Li, Liu, Yu, arXiv:2203.05740, section 3.3 (a probability of 1/2).

    >>> qdrop().drop
    0.5
    """
    method = Method(unit=Blocks(), iterations=20_000, scale_lr=4e-5, drop=0.5)
    return evolve(method, **changes)


def mqbench(
    pattern: str = "block",
    *,
    max_count: int = 20_000,
    weight: float = 0.01,
    warm_up: float = 0.2,
    b_range: tuple[float, float] = (20, 2),
    prob: float = 1.0,
    **changes: Unpack[Changes],
) -> Method:
    """Return the method that MQBench's `ptq_reconstruction` runs for these keys, with its defaults.

    Its loss is the squared error for every method.  `prob` is the probability that an element is quantized;
    `scale_lr=None` corresponds to omitting the key.  Its iterations use a whole cached batch: pass its size as `batch=`.

    Raises:
        SpecError: another pattern.

    >>> mqbench("layer", max_count=10_000, scale_lr=None) == adaround()
    True
    """
    patterns: dict[str, Any] = {"layer": Layers(), "block": Blocks()}
    method = Method(
        unit=patterns.get(pattern, pattern),
        iterations=max_count,
        regulariser=Regulariser(weight, *b_range, warm_up),
        scale_lr=4e-5,
        drop=1 - prob,
    )
    return evolve(method, **changes)
