"""check_target: what our own targets pass, and what vendors run on theirs."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FunctionType
from typing import Any

import attrs
import hypothesis
from hypothesis import HealthCheck, Phase, given
from hypothesis.strategies import SearchStrategy
from torch import Tensor, nn

from qfunc.specs import Cases, Fixed, Format, Int, Op, Scheme, Target, Unknown, from_json, to_json
from qfunc.specs._frozen import held
from qfunc.testing.strategies import small_models
from qfunc.testing.trial import Trial

Model = tuple[nn.Module, Tensor]
Run = Callable[[Any, Sequence[Tensor]], Sequence[Any]]


def check_target(
    target: Target,
    *,
    run: Run | None = None,
    models: Iterable[Model] | SearchStrategy[Model] | None = None,
    examples: int = 15,
    settings: hypothesis.settings | None = None,
) -> None:
    """Checks that a target keeps the library's promises; needs no test framework.

    The spec: JSON, pickle, hash, equality and repr round trips; every format that a rule puts on an op is
    one that its kernels take.  Then on each model, as calibrated and again with every scale rounded up to a
    power of two, where rounding ties abound:

    * quantize, calibrate, emulate and deploy leave their inputs as they were;
    * simulation within 1 LSB of emulation, unit by unit, each given the emulation's own codes: both round
      one real number to the nearest code, so they differ by one code at most as long as the float error of
      the sum, below (K + 4) 2^-24 sum|x w| / s_y for K products, stays below one code; reciprocals of average
      pools may add what they deviate;
    * the integers of weights and biases in the artifact are those of the simulation;
    * emulation equals the runtime, at the outputs, and at every integer tensor if the runner shows them.

    Where no arithmetic is public, emulate raises, and the artifact evaluated as Q/DQ equals the simulation.

    Args:
        target: The hardware.
        run: run(artifact, inputs) -> outputs, a chip or its simulator; None for the target's own runner.
        models: (module, input) pairs, or a strategy of them; None for `strategies.small_models()`.
        examples: How many models are drawn from a strategy.
        settings: Hypothesis settings in place of `examples` derandomized examples.
    Raises:
        AssertionError: what does not hold; for models the smallest one found, as code, the first unit that
            differs, its codes and qparams.
    """
    check_spec(target)
    check_formats(target)

    def check(model: Model) -> None:
        trial = Trial(target, run, *model)
        for powers in (False, True):
            trial.check(powers_of_two=powers)

    if models is not None and not isinstance(models, SearchStrategy):
        for model in models:
            check(model)
        return
    slow = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example)
    chosen = settings or hypothesis.settings(
        max_examples=examples, derandomize=True, deadline=None, database=None, report_multiple_bugs=False, print_blob=False,
        phases=[Phase.explicit, Phase.generate, Phase.shrink], suppress_health_check=slow,
    )  # fmt: skip
    strategy: SearchStrategy[Model] = small_models() if models is None else models
    chosen(given(strategy.map(_Shown))(lambda shown: check(shown.model)))()


class _Shown:
    """A drawn model that prints as code."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def __repr__(self) -> str:
        return f"({self.model[0]!r}, torch.randn({tuple(self.model[1].shape)}))"


def check_spec(target: Target) -> None:
    """The round trips of a target as a value.

    Raises:
        AssertionError: one of them gives another value.
    """
    where = f"check_target({target.name})"
    text = to_json(target)
    again = from_json(text, tuple(set(_classes(target))))
    assert again == target, f"{where}: from_json(to_json(target)) is another target"
    assert to_json(again) == text, f"{where}: to_json is not stable"
    assert hash(again) == hash(target), f"{where}: equal targets have different hashes"
    assert pickle.loads(pickle.dumps(target)) == target, f"{where}: pickle gives another target"
    assert copy.deepcopy(target) == target, f"{where}: deepcopy gives another target"
    assert " at 0x" not in repr(target), f"{where}: its repr shows an address, not the code that builds it"
    assert attrs.evolve(target, name=f"{target.name}'") != target, f"{where}: targets of different names are equal"


def _classes(value: Any) -> Iterator[Any]:
    # The classes and functions that a target is made of, as from_json wants them.
    fields = held(value)
    if isinstance(value, tuple):
        for one in value:
            yield from _classes(one)
    elif isinstance(value, FunctionType):
        yield value
    elif fields is not None:
        yield type(value)
        for one in fields.values():
            yield from _classes(one)


def check_formats(target: Target) -> None:
    """Every format that a rule puts on an op is one that a kernel of this op takes, if it has kernels.

    Only rules and kernels that select by kind of op alone are compared.

    Raises:
        AssertionError: names rule, slot and format.
    """
    for rule in target.rules:
        for kind in rule.select.kinds if isinstance(rule.select, Op) else ():
            kernels = [
                k
                for k in target.kernels
                if isinstance(k.unit, Op) and kind in k.unit.kinds and not isinstance(k.arithmetic, Unknown)
            ]
            for slot in ("input", "weight", "output"):
                for fmt in _formats(getattr(rule, slot)):
                    accepted = [dict(k.formats).get(slot) for k in kernels]
                    fits = any(a is None or _fits(fmt, a, slot) for a in accepted)
                    found = f"a rule puts {fmt} on the {slot} of {kind}, and no kernel of {kind} takes it"
                    assert not kernels or fits, f"check_target({target.name}): {found}"


def _formats(value: Any) -> list[Format]:
    match value:
        case Scheme(format=fmt):
            return [fmt]
        case Fixed(scheme=scheme):
            return [scheme.format]
        case Cases(cases=cases, default=default):
            return [f for v in (*(c[1] for c in cases), default) for f in _formats(v)]
    return []


def _fits(fmt: Format, accepted: tuple[Format, ...], slot: str) -> bool:
    if slot == "weight" and isinstance(fmt, Int):
        return any(
            isinstance(a, Int) and a.signed == fmt.signed and a.qmin <= fmt.qmin and fmt.qmax <= a.qmax for a in accepted
        )
    return fmt in accepted


__all__ = ["check_formats", "check_spec", "check_target"]
