"""check_estimator passes our estimators, and each of its laws finds an estimator that breaks it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import attrs
import pytest
import torch
from attrs import frozen
from torch import Tensor

from qfunc import estimators
from qfunc.errors import SpecError
from qfunc.estimators import Ema, Entropy, MinMax, OrtEntropy
from qfunc.estimators.minmax import Range
from qfunc.numerics.qparams import Affine, blocks, from_range
from qfunc.specs import Int, PerChannel, Scale, Scheme, ZeroPoint
from qfunc.testing import check_estimator
from qfunc.testing.estimator_check import NAMES

SCHEMES = (Scheme(), Scheme(Int(8, signed=False), Scale(PerChannel(0)), ZeroPoint()))
INNER = MinMax()


def ours() -> list[Any]:
    """Every public estimator, and the average of each that has a range but the slow searches; all with their defaults
    but OrtEntropy, whose graph has a part for every few ranges that it tries."""
    made = [getattr(estimators, name)() for name in estimators.__all__ if name not in ("Ema", "OrtEntropy")]
    made.append(OrtEntropy(bins=256, groups=248))
    return [*made, *(Ema(e, 0.75) for e in made if hasattr(e, "range") and not isinstance(e, Entropy | OrtEntropy))]


SKIPPED = {"PotMode": {"equivariant": "its exponents end at 2^-12, the finest step of the DPU"}}
"""Class name -> the laws that it cannot keep, each with its reason."""


@pytest.mark.thorough
@pytest.mark.parametrize("estimator", ours(), ids=repr)
def test_our_estimators_keep_every_law(estimator: Any) -> None:
    inner = estimator.inner if isinstance(estimator, Ema) else estimator
    skipped = dict(SKIPPED.get(type(inner).__name__, {}))
    if inner is not estimator and inner != MinMax():
        skipped["compiles"] = "its trace is that of the average of MinMax and that of what it averages"
    check_estimator(estimator, examples=8, exempt=skipped)


def test_the_channels_of_a_target_s_schemes_are_axis_0() -> None:
    check_estimator(MinMax(), schemes=[Scheme(Int(8), Scale(PerChannel()))], examples=2)


@frozen
class Base:
    """MinMax, method by method, for others to break one of them."""

    def init(self, scheme: Scheme, like: Tensor) -> Range:
        return INNER.init(scheme, like)

    def update(self, state: Range, x: Tensor, scheme: Scheme) -> Range:
        return INNER.update(state, x, scheme)

    def finalize(self, state: Range, scheme: Scheme) -> Affine:
        return from_range(*state, scheme)


@frozen
class ReadsLike(Base):
    """Starts from the values that it should not read."""

    def init(self, scheme: Scheme, like: Tensor) -> Range:
        return INNER.update(INNER.init(scheme, like), like, scheme)


@frozen
class Infinite(Base):
    """Has no qparams before any data."""

    def finalize(self, state: Range, scheme: Scheme) -> Affine:
        return Affine(state.high - state.low, torch.zeros_like(state.high))


@frozen
class InPlace(Base):
    """Writes into the state that it was given."""

    def update(self, state: Range, x: Tensor, scheme: Scheme) -> Range:
        new = INNER.update(state, x, scheme)
        state.low.copy_(new.low)
        return new


@frozen
class KeepsX(Base):
    """Holds a view of the batch."""

    def init(self, scheme: Scheme, like: Tensor) -> Any:
        return (*INNER.init(scheme, like), torch.zeros(0))

    def update(self, state: Any, x: Tensor, scheme: Scheme) -> Any:
        return (*INNER.update(Range(*state[:2]), x, scheme), x.detach() if x.numel() else state[2])

    def finalize(self, state: Any, scheme: Scheme) -> Affine:
        return from_range(*state[:2], scheme)


@frozen
class WritesX(Base):
    """Centres the batch itself."""

    def update(self, state: Range, x: Tensor, scheme: Scheme) -> Range:
        return INNER.update(state, x.sub_(1), scheme)


@frozen
class CountsEmpty(Base):
    """Counts batches that hold nothing."""

    def init(self, scheme: Scheme, like: Tensor) -> Any:
        return (*INNER.init(scheme, like), torch.zeros(()))

    def update(self, state: Any, x: Tensor, scheme: Scheme) -> Any:
        return (*INNER.update(Range(*state[:2]), x, scheme), state[2] + 1)

    def finalize(self, state: Any, scheme: Scheme) -> Affine:
        return from_range(*state[:2], scheme)


@frozen
class Random(Base):
    """Adds noise of torch's own generator."""

    def finalize(self, state: Range, scheme: Scheme) -> Affine:
        return from_range(state.low, state.high.clamp(min=1) * (1 + torch.rand(())), scheme)


@frozen
class CountsOn(Base):
    """Moves the zero point from the second batch on."""

    def init(self, scheme: Scheme, like: Tensor) -> Any:
        return (*INNER.init(scheme, like), torch.zeros(()))

    def update(self, state: Any, x: Tensor, scheme: Scheme) -> Any:
        return (*INNER.update(Range(*state[:2]), x, scheme), state[2] + bool(x.numel()))

    def finalize(self, state: Any, scheme: Scheme) -> Affine:
        found = from_range(*state[:2], scheme)
        return found._replace(zero_point=found.zero_point + 256 * (state[2] > 1))


@frozen
class HalfZero(Base):
    """Forgets to round the zero point."""

    def finalize(self, state: Range, scheme: Scheme) -> Affine:
        found = from_range(*state, scheme)
        return found._replace(zero_point=found.zero_point + 0.5)


@frozen
class OneRange(Base):
    """Shares one range among all channels."""

    def finalize(self, state: Range, scheme: Scheme) -> Affine:
        low, high = (end.expand_as(state.low) for end in (state.low.amin(), state.high.amax()))
        return from_range(low, high, scheme)


@frozen
class FirstChannel(Base):
    """Widens the range of the first channel, but only where there are several."""

    def finalize(self, state: Range, scheme: Scheme) -> Affine:
        factor = torch.ones_like(state.high)
        factor.view(-1)[0] = 2
        return from_range(factor * state.low, factor * state.high, scheme)


@frozen
class FirstTwice(Base):
    """Doubles the first element of every block."""

    def update(self, state: Range, x: Tensor, scheme: Scheme) -> Range:
        if not x.numel():
            return state
        first, axes = blocks(x, scheme)
        for axis in sorted(axes, reverse=True):
            first = 2 * first.select(axis, 0).float() / (1 if axis == max(axes) else 2)
        new = INNER.update(state, x, scheme)
        return Range(torch.minimum(new.low, first), torch.maximum(new.high, first))


@frozen
class Last(Base):
    """Forgets all batches but the last, and merges as if it did not."""

    def update(self, state: Range, x: Tensor, scheme: Scheme) -> Range:
        return INNER.update(INNER.init(scheme, x), x, scheme) if x.numel() else state

    def merge(self, a: Range, b: Range) -> Range:
        return INNER.merge(a, b)


@frozen
class NoIdentity(Base):
    """Takes the emptiness of nothing for the value 0."""

    def merge(self, a: Range, b: Range) -> Range:
        low, high = INNER.merge(a, b)
        return Range(low.clamp(max=0), high.clamp(min=0))


@frozen
class Double(Base):
    """Keeps its state in the dtype of x."""

    def update(self, state: Range, x: Tensor, scheme: Scheme) -> Range:
        return Range(*(end.to(x.dtype) for end in INNER.update(state, x, scheme))) if x.numel() else state


@frozen
class Absolute(Base):
    """Adds a constant to the scale."""

    def finalize(self, state: Range, scheme: Scheme) -> Affine:
        return from_range(state.low - 1, state.high + 1, scheme)


@frozen
class DropsNan(Base):
    """Removes what is not finite."""

    def update(self, state: Range, x: Tensor, scheme: Scheme) -> Range:
        return INNER.update(state, x.nan_to_num(0, 0, 0), scheme)


@frozen
class Overflows(Base):
    """Squares in float32."""

    def update(self, state: Range, x: Tensor, scheme: Scheme) -> Range:
        return INNER.update(state, x.sign() * x.square().sqrt(), scheme)


@frozen
class Breaks(Base):
    """Decides by a value, which no graph can hold."""

    def update(self, state: Range, x: Tensor, scheme: Scheme) -> Range:
        return INNER.update(state, x if bool((x > 0).any()) else x + 0, scheme)


@frozen
class Raises(Base):
    """Knows no channels."""

    def update(self, state: Range, x: Tensor, scheme: Scheme) -> Range:
        if x.ndim < 3:
            raise IndexError("no axis 2")
        return INNER.update(state, x, scheme)


BROKEN = [
    (ReadsLike(), "init_reads_shapes_only", "init reads the values of `like`"),
    (Infinite(), "init_reads_shapes_only", "before any data: scale -inf is not finite and above 0"),
    (InPlace(), "pure", "update changes the state that it was given"),
    (KeepsX(), "pure", "the state shares its memory with x"),
    (WritesX(), "pure", "update changes x"),
    (CountsEmpty(), "empty_changes_nothing", "an empty x changes the state"),
    (Random(), "deterministic", "finalize gives another result the second time"),
    (CountsOn(), "finalize_is_feasible", "after 2 batches: zero point 256.0 is not a code in [0, 0]"),
    (OneRange(), "channels_equal_a_loop", "of axis 0 differs from the channel alone: scale "),
    (FirstTwice(), "elements_permute", "the order of the elements matters: scale "),
    (Last(), "merge_equals_the_fold", "merged after batch 1 it is not the fold of all batches: scale "),
    (NoIdentity(), "merge_equals_the_fold", "init is not an identity of merge"),
    (Double(), "every_dtype", "the state of torch.bfloat16 has other dtypes"),
    (Absolute(), "equivariant", "values times 0.125 do not give scales times 0.125: scale "),
    (DropsNan(), "bad_values_reach_the_state", "nan in x does not show in the state"),
    (Overflows(), "extremes_are_feasible", "everywhere: scale inf is not finite and above 0"),
    (Breaks(), "compiles", "torch.compile(fullgraph=True) fails: "),
    (Raises(), "extremes_are_feasible", "IndexError: no axis 2"),
]


@pytest.mark.parametrize(("estimator", "law", "found"), BROKEN, ids=lambda v: type(v).__name__ if attrs.has(type(v)) else "")
def test_each_law_finds_what_breaks_it(estimator: Any, law: str, found: str) -> None:
    """The message names estimator, law, what does not hold, scheme and input."""
    with pytest.raises(AssertionError) as caught:
        check_estimator(estimator, schemes=SCHEMES, examples=30)
    message = str(caught.value)
    assert message.startswith(f"check_estimator({estimator!r}), law {law!r}: ")
    assert found in message
    second, third = message.split("\n")[1:3]
    assert second.startswith("The scheme: Scheme(")
    assert third.startswith("The input: ")
    assert "torch." in third


def test_the_whole_message() -> None:
    """Nothing but the text, the scheme that fails and the code of the batch."""
    with pytest.raises(AssertionError) as caught:
        check_estimator(HalfZero(), schemes=[Scheme()], examples=3)
    assert str(caught.value) == (
        "check_estimator(HalfZero()), law 'init_reads_shapes_only': before any data: zero point 0.5 is not a code in [0, 0]\n"
        "The scheme: Scheme()\n"
        "The input: torch.randn((2, 4, 6), generator=torch.Generator().manual_seed(0))"
    )


def test_channels_that_move_are_followed() -> None:
    """A mistake that depends on the position of a channel, seen without the loop law."""
    with pytest.raises(AssertionError, match="law 'channels_permute': qparams do not follow the channels of axis 0"):
        check_estimator(FirstChannel(), schemes=SCHEMES, exempt={"channels_equal_a_loop": "to see the next law"})


@attrs.define(unsafe_hash=True)
class Mutable:
    k: float = 2.0
    init = update = finalize = staticmethod(lambda *_: None)


class Open:
    init = update = finalize = staticmethod(lambda *_: None)


@frozen
class Unequal(Base):
    inner: Any = attrs.field(factory=object)


@pytest.mark.parametrize(
    ("estimator", "found"),
    [(Mutable(), "k can be set; decorate the class with attrs.frozen"),
     (Unequal(), "pickle gives another value"),
     (Open(), "anything can be set")],
)  # fmt: skip
def test_what_is_no_frozen_value_is_refused(estimator: Any, found: str) -> None:
    with pytest.raises(AssertionError) as caught:
        check_estimator(estimator, schemes=[Scheme()], examples=1)
    assert "law 'a frozen value': " in str(caught.value)
    assert found in str(caught.value)


def test_a_law_can_be_left_out_by_name_with_a_reason() -> None:
    check_estimator(Absolute(), schemes=[Scheme()], examples=5, exempt={"equivariant": "the margin is absolute"})
    with pytest.raises(SpecError) as caught:
        check_estimator(MinMax(), exempt={"equivariance": "a typing error"})
    assert str(caught.value) == (
        f"testing.check_estimator, exempt: found 'equivariance', wanted a law: {', '.join(NAMES)}. Write 'equivariant'."
    )
    with pytest.raises(AssertionError) as held:
        check_estimator(MinMax(), exempt={NAMES[0]: "none"})
    assert str(held.value) == "check_estimator(MinMax()), law 'a frozen value': it is exempt, and holds. Remove it from exempt."


def test_the_message_about_compilation_has_its_remedy() -> None:
    with pytest.raises(AssertionError) as caught:
        check_estimator(Breaks(), schemes=[Scheme()], examples=1)
    first = str(caught.value).split("\n")[0]
    assert first.startswith("check_estimator(Breaks()), law 'compiles': torch.compile(fullgraph=True) fails: UserError: ")
    assert first.endswith(" If it need not be compiled, pass exempt={'compiles': 'the reason'}")
    check_estimator(Breaks(), schemes=[Scheme()], examples=1, exempt={"compiles": "calibration runs it eagerly"})


@pytest.mark.thorough
def test_it_runs_without_a_test_framework() -> None:
    """In a process of its own, where pytest is not imported."""
    script = (
        "import sys\nfrom qfunc.estimators import StdClip\nfrom qfunc.specs import Scheme\n"
        "from qfunc.testing import check_estimator\ncheck_estimator(StdClip(), schemes=[Scheme()], examples=2)\n"
        "assert 'pytest' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
