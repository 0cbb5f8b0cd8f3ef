"""check_estimator: the laws of estimators, for qfunc's own and for users'."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs
import hypothesis
import torch
from attrs import evolve, frozen
from hypothesis import HealthCheck, Phase, given
from hypothesis import strategies as st
from torch import Tensor

from qfunc.specs import Estimator, Int, PerChannel, Scale, Scheme, ZeroPoint, from_json, to_json
from qfunc.testing.laws.estimator import LAWS, EstimatorCase, compiles
from qfunc.testing.strategies_schemes import all_schemes
from qfunc.testing.validate import exemptions, require_broken, require_examples, require_protocol

SHAPE = (2, 4, 6)
TRACED = (
    Scheme(Int(8, signed=False), zero_point=ZeroPoint()),
    Scheme(Int(4), Scale(PerChannel(1))),
)
NAMES = ("a frozen value", *(law.__name__ for law in (*LAWS, compiles)))


def check_estimator(
    estimator: Any,
    *,
    schemes: Iterable[Scheme] | st.SearchStrategy[Scheme] | None = None,
    examples: int = 30,
    exempt: Mapping[str, str] | None = None,
) -> None:
    """Check that an estimator satisfies the library's laws; needs no test framework.

    A frozen value: immutable, hashable, printed as code, and equal after pickle, JSON and deepcopy round trips.
    For every scheme, on batches that are ordinary, far from zero, constant, huge, denormal or with an outlier:

    * init reads shapes and devices only; update and finalize do not change their arguments; an empty x changes
      nothing; the same batches give the same bits;
    * finalize returns qparams that the scheme allows: finite, float32, of the right shape, the zero point a code;
    * one update per channel equals the loop over the channels; channels, and the elements of a batch, may be
      permuted; bfloat16 and float64 give the same as float32; a power of two in x is a factor of the scale;
    * merge, if there is one: merge(fold(A), fold(B)) is fold(A + B), and init is its identity;
    * NaN and infinities in x make the state not finite;
    * update and finalize trace under torch.compile(fullgraph=True); its caches are cleared first.  No step of qfunc
      compiles an estimator, so that one which cannot be traced may exempt this law, "compiles".

    Scales are compared up to 2^-18 of themselves, the rounding of float32 sums of some tens of numbers.

    Args:
        estimator: A frozen value with init, update, finalize, and optionally merge.
        schemes: Schemes for tensors of shape [2, 4, 6], whose channels are axis 0; None for all kinds of schemes.
        examples: The number of pairs of a scheme and batches; they are always the same.
        exempt: Laws that the estimator breaks by design, each with the reason: {law: reason}.
    Raises:
        AssertionError: the law that fails, the difference, and the scheme and the batches as code; or an exempt law of
            the value that holds.
        SpecError: not an estimator, not a number of examples, or a name in `exempt` that is not a law.

    >>> from qfunc.estimators import MinMax
    >>> check_estimator(MinMax(), schemes=[Scheme()], examples=2)
    """
    require_protocol(estimator, Estimator, "check_estimator")
    require_examples(examples, "check_estimator")
    exempt = exemptions(exempt, NAMES, "check_estimator")
    if NAMES[0] in exempt:
        require_broken(lambda: check_value(estimator), NAMES[0], f"check_estimator({estimator!r})")
    else:
        check_value(estimator)
    drawn = all_schemes(shape=SHAPE) if schemes is None else schemes
    drawn = drawn if isinstance(drawn, st.SearchStrategy) else st.sampled_from(list(drawn))

    def check(law: Callable[[EstimatorCase], None], scheme: Scheme, batches: tuple[Batch, ...]) -> None:
        if law.__name__ in exempt:
            return
        try:
            law(EstimatorCase(estimator, _on_axis_0(scheme), tuple(b.tensor() for b in batches)))
        except Exception as e:
            found = str(e) if isinstance(e, AssertionError) else f"{type(e).__name__}: {e}"
            inputs = "\n           ".join(map(repr, batches))
            where = f"check_estimator({estimator!r}), law {law.__name__!r}: {found}"
            raise AssertionError(f"{where}\nThe scheme: {scheme!r}\nThe input: {inputs}") from e

    def check_all(scheme: Scheme, batches: list[Batch]) -> None:
        for law in LAWS:
            check(law, scheme, tuple(batches))

    _settings(examples)(given(drawn, st.lists(BATCHES, min_size=1, max_size=3))(check_all))()
    for scheme in TRACED:
        check(compiles, scheme, (Batch("ordinary", 1), Batch("outlier", 2)))


EXPRESSIONS = {
    "ordinary": "{0}",
    "positive": "{0}.abs()",
    "coarse": "(4 * {0}).round() / 4",
    "far from zero": "{0} + 1000",
    "negative": "-(1 + {0}.abs())",
    "outlier": "{0} ** 9",
    "constant": "torch.full({1}, {2}.5)",
    "zero": "torch.zeros({1})",
    "huge": "2.0**100 * {0}",
    "denormal": "2.0**-149 * {0}.mul(64).round()",
}
"""The code of each kind of batch; {0} is a normal random tensor, {1} its shape, {2} the seed."""


@frozen
class Batch:
    """A batch of shape [2, 4, 6]; its repr is the code that builds it.

    >>> Batch("zero", 0)
    torch.zeros((2, 4, 6))
    """

    kind: str
    seed: int

    def __repr__(self) -> str:
        normal = f"torch.randn({SHAPE}, generator=torch.Generator().manual_seed({self.seed}))"
        return EXPRESSIONS[self.kind].format(normal, SHAPE, self.seed)

    def tensor(self) -> Tensor:
        """Return the batch itself."""
        batch: Tensor = eval(repr(self), {"torch": torch})  # evaluates the printed text, so that messages are correct
        return batch


BATCHES = st.builds(Batch, st.sampled_from(list(EXPRESSIONS)), st.integers(0, 63))


def check_value(estimator: Any) -> None:
    """Check the laws of an estimator as a value.

    Raises:
        AssertionError: it is mutable, or differs after a pickle, JSON or deepcopy round trip.
    """
    where = f"check_estimator({estimator!r}), law {NAMES[0]!r}"
    name = next((a.name for a in attrs.fields(type(estimator))), "anything") if attrs.has(type(estimator)) else "anything"
    try:
        setattr(estimator, name, getattr(estimator, name, None))
    except (AttributeError, TypeError):
        pass
    else:
        raise AssertionError(f"{where}: {name} can be set; decorate the class with attrs.frozen")
    copies: dict[str, Callable[[], Any]] = {
        "pickle": lambda: pickle.loads(pickle.dumps(estimator)),
        "deepcopy": lambda: copy.deepcopy(estimator),
        "from_json(to_json(...))": lambda: from_json(to_json(estimator), tuple(_classes(estimator))),
    }
    for way, made in copies.items():
        try:
            again = made()
            good = again == estimator and hash(again) == hash(estimator)
        except Exception as e:
            raise AssertionError(f"{where}: {way} fails: {type(e).__name__}: {e}") from e
        assert good, f"{where}: {way} gives another value"
    assert " at 0x" not in repr(estimator), f"{where}: its repr shows an address, not the code that builds it"


def _on_axis_0(scheme: Scheme) -> Scheme:
    # PerChannel() means the axis of the output channels, which an op defines: that of a linear layer's weight.
    by_op = scheme.scale.shared == PerChannel()
    return evolve(scheme, scale=evolve(scheme.scale, shared=PerChannel(0))) if by_op else scheme


def _classes(value: Any) -> set[type]:
    if not attrs.has(type(value)):
        return set()
    parts = (getattr(value, a.name) for a in attrs.fields(type(value)))
    return {type(value)}.union(*(_classes(part) for part in parts))


def _settings(examples: int) -> hypothesis.settings:
    slow = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example)
    return hypothesis.settings(
        max_examples=examples, derandomize=True, deadline=None, database=None, report_multiple_bugs=False, print_blob=False,
        phases=[Phase.generate, Phase.shrink], suppress_health_check=slow,
    )  # fmt: skip
