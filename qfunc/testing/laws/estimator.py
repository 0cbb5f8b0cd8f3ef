"""Laws of estimators: each is a function of a case that raises AssertionError."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from qfunc.errors import first_line
from qfunc.numerics.qparams import Affine, qparams_shape
from qfunc.specs import PerChannel, PerTensor, Scheme
from qfunc.specs.protocols import MergeableEstimator
from qfunc.testing.laws.qparams import cancellation_error, close, far_from_replaced, feasible, leaves, plain, same


@frozen
class EstimatorCase:
    """An estimator, a scheme, and non-empty batches of one shape."""

    estimator: Any
    scheme: Scheme
    batches: tuple[Tensor, ...]

    @property
    def axis(self) -> int:
        """The channel axis, which depends on the number of batches so that all axes occur."""
        return (len(self.batches) - 1) % self.batches[0].ndim

    def fold(self, *batches: Tensor, scheme: Scheme | None = None) -> Any:
        """Return the state after these batches."""
        scheme = self.scheme if scheme is None else scheme
        state = self.estimator.init(scheme, batches[0])
        for x in batches:
            state = self.estimator.update(state, x, scheme)
        return state

    def qparams(self, *batches: Tensor, scheme: Scheme | None = None) -> Affine:
        """Return the qparams after these batches."""
        scheme = self.scheme if scheme is None else scheme
        found: Affine = self.estimator.finalize(self.fold(*batches, scheme=scheme), scheme)
        wanted, shape = qparams_shape(scheme, tuple(batches[0].shape)), tuple(found.scale.shape)
        assert shape == wanted, f"finalize gives a scale of shape {shape}, wanted {wanted} for {scheme.scale.shared}"
        return found


def init_reads_shapes_only(case: EstimatorCase) -> None:
    """Check that init does not depend on values, and that finalize accepts its state."""
    x = case.batches[0]
    empty, other = (case.estimator.init(case.scheme, like) for like in (x, torch.full_like(x, torch.nan)))
    assert all(isinstance(leaf, Tensor) for leaf in leaves(empty)), "a state has a leaf that is not a tensor"
    assert same(empty, other), "init reads the values of `like`"
    feasible(case.estimator.finalize(empty, case.scheme), case.scheme, tuple(x.shape), "before any data")


def pure(case: EstimatorCase) -> None:
    """Check that update, merge and finalize change neither state nor x, and that a state owns its memory."""
    state, x = case.fold(*case.batches[:1]), case.batches[-1].clone()
    kept, given = [leaf.clone() for leaf in leaves(state)], x.clone()
    after = case.estimator.update(state, x, case.scheme)
    assert same(kept, leaves(state)), "update changes the state that it was given"
    assert same(given, x), "update changes x"
    mine = {leaf.untyped_storage().data_ptr() for leaf in leaves(after) if leaf.numel()}
    assert x.untyped_storage().data_ptr() not in mine, "the state shares its memory with x"
    owned = [leaf.clone() for leaf in leaves(after)]
    if merges(case.estimator):
        case.estimator.merge(state, after)
        assert same((kept, owned), (state, after)), "merge changes a state that it was given"
    case.estimator.finalize(after, case.scheme)
    assert same(owned, leaves(after)), "finalize changes the state"


def empty_changes_nothing(case: EstimatorCase) -> None:
    """Check that an update by an empty tensor changes nothing, before and after data."""
    x = case.batches[0]
    for state in (case.estimator.init(case.scheme, x), case.fold(x)):
        after = case.estimator.update(state, x.new_empty((0, *x.shape[1:])), case.scheme)
        assert same(state, after), "an empty x changes the state"


def deterministic(case: EstimatorCase) -> None:
    """Check that the same batches give the same qparams, bit for bit, and that finalize can be called twice."""
    state = case.fold(*case.batches)
    first, second = (case.estimator.finalize(state, case.scheme) for _ in range(2))
    assert same(first, second), "finalize gives another result the second time"
    assert same(first, case.qparams(*case.batches)), "the same batches give other qparams the second time"


def finalize_is_feasible(case: EstimatorCase) -> None:
    """Check that the scheme allows the qparams after every batch."""
    for count in range(1, len(case.batches) + 1):
        found = case.qparams(*case.batches[:count])
        feasible(found, case.scheme, tuple(case.batches[0].shape), f"after {count} batches")


def channels_equal_a_loop(case: EstimatorCase) -> None:
    """Check that one update per channel equals the loop over the channels."""
    axis, alone = case.axis, plain(case.scheme, PerTensor())
    scheme = plain(case.scheme, PerChannel(axis))
    together = case.qparams(*case.batches, scheme=scheme)
    for i in range(case.batches[0].shape[axis]):
        single = case.qparams(*(x.select(axis, i) for x in case.batches), scheme=alone)
        mine = Affine(*(p.select(axis, i).reshape(()) for p in together[:2]))
        close(mine, single, scheme, f"channel {i} of axis {axis} differs from the channel alone")


def channels_permute(case: EstimatorCase) -> None:
    """Check that permuted channels give permuted qparams."""
    axis = case.axis
    scheme, order = plain(case.scheme, PerChannel(axis)), torch.arange(case.batches[0].shape[axis]).roll(1)
    straight = case.qparams(*case.batches, scheme=scheme)
    rolled = case.qparams(*(x.index_select(axis, order) for x in case.batches), scheme=scheme)
    expected = Affine(*(p.index_select(axis, order) for p in straight[:2]))
    close(rolled, expected, scheme, f"qparams do not follow the channels of axis {axis}")


def elements_permute(case: EstimatorCase) -> None:
    """Check that the order of elements in a batch does not matter."""
    scheme = plain(case.scheme, PerTensor())
    straight = case.qparams(*case.batches, scheme=scheme)
    moved = case.qparams(*(x.flatten().flip(0).roll(5).reshape(x.shape) for x in case.batches), scheme=scheme)
    close(moved, straight, scheme, "the order of the elements matters")


def merge_equals_the_fold(case: EstimatorCase) -> None:
    """Check that merge(fold(A), fold(B)) is fold(A + B), in this order, and that init is the identity."""
    if not merges(case.estimator):
        return
    estimator, scheme = case.estimator, plain(case.scheme, case.scheme.scale.shared)
    whole, nothing = case.fold(*case.batches, scheme=scheme), estimator.init(scheme, case.batches[0])
    for cut in range(1, len(case.batches)):
        parts = (case.fold(*part, scheme=scheme) for part in (case.batches[:cut], case.batches[cut:]))
        found = estimator.finalize(estimator.merge(*parts), scheme)
        what = f"merged after batch {cut} it is not the fold of all batches"
        close(found, estimator.finalize(whole, scheme), scheme, what, cancellation_error(case.batches, scheme))
    for merged in (estimator.merge(nothing, whole), estimator.merge(whole, nothing)):
        assert same(merged, whole), "init is not an identity of merge"


def every_dtype(case: EstimatorCase) -> None:
    """Check that bfloat16 and float64 give the same qparams and dtypes as the same values in float32."""
    scheme = plain(case.scheme, case.scheme.scale.shared)
    rounded = [x.bfloat16() for x in case.batches]
    state = case.fold(*(x.float() for x in rounded), scheme=scheme)
    for dtype in (torch.bfloat16, torch.float64):
        other = case.fold(*(x.to(dtype) for x in rounded), scheme=scheme)
        assert [t.dtype for t in leaves(other)] == [t.dtype for t in leaves(state)], f"the state of {dtype} has other dtypes"
        found, wanted = (case.estimator.finalize(s, scheme) for s in (other, state))
        close(found, wanted, scheme, f"{dtype} differs from float32")


def equivariant(case: EstimatorCase) -> None:
    """Check that a power of two in the values is a factor of the scales, if the scheme does not bound scales."""
    scheme = plain(case.scheme, case.scheme.scale.shared)
    small = case.qparams(*case.batches, scheme=scheme)
    nothing = case.qparams(torch.zeros_like(case.batches[0]), scheme=scheme).scale  # it also replaces scales near 0
    far = far_from_replaced(case.batches, scheme, nothing)
    for power in (2.0**-3, 2.0**4):
        found = case.qparams(*(power * x for x in case.batches), scheme=scheme)
        free = far & (found.scale != nothing) & (small.scale != nothing)
        wanted = Affine(
            torch.where(free, small.scale * power, found.scale), torch.where(free, small.zero_point, found.zero_point)
        )
        close(found, wanted, scheme, f"values times {power} do not give scales times {power}")


def bad_values_reach_the_state(case: EstimatorCase) -> None:
    """Check that NaN and infinities make a float of the state not finite, so that calibrate can raise."""
    for bad in (torch.nan, torch.inf, -torch.inf):
        x = case.batches[-1].clone()
        x.view(-1)[x.numel() // 2] = bad
        floats = [leaf for leaf in leaves(case.fold(case.batches[0], x)) if leaf.is_floating_point()]
        assert not all(bool(leaf.isfinite().all()) for leaf in floats), f"{bad} in x does not show in the state"


def extremes_are_feasible(case: EstimatorCase) -> None:
    """Check values of +-2^120 (above 2^126 the scale itself may overflow float32), one element, and a scalar."""
    x, top = case.batches[0], 2.0**120
    for value in (top, -top):
        found = case.qparams(torch.full_like(x, value), scheme=case.scheme)
        feasible(found, case.scheme, tuple(x.shape), f"after {value!r} everywhere")
    found = case.qparams(torch.where(x > 0, top, -top), scheme=case.scheme)
    feasible(found, case.scheme, tuple(x.shape), f"after {top!r} of either sign")
    scheme = plain(case.scheme, PerTensor())
    for one in (x.flatten()[:1], x.flatten()[0]):
        feasible(case.qparams(one, scheme=scheme), scheme, tuple(one.shape), "after one element")


def compiles(case: EstimatorCase) -> None:
    """Check that update and finalize each trace as one graph, with the same results."""
    scheme = plain(case.scheme, case.scheme.scale.shared)
    update = compiled(lambda state, x: case.estimator.update(state, x, scheme))
    finalize = compiled(lambda state: case.estimator.finalize(state, scheme))
    state = case.estimator.init(scheme, case.batches[0])
    try:
        for x in case.batches:
            state = update(state, x)
        found = finalize(state)
    except Exception as e:  # torch's own classes of these errors are private
        do = "If it need not be compiled, pass exempt={'compiles': 'the reason'}"
        raise AssertionError(f"torch.compile(fullgraph=True) fails: {first_line(e)} {do}") from e
    close(found, case.qparams(*case.batches, scheme=scheme), scheme, "the compiled estimator differs")


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` compiled as one graph, with the caches of torch.compile cleared."""
    torch.compiler.reset()
    traced: Callable[..., Any] = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=False)
    return traced


def merges(estimator: Any) -> bool:
    """Return True if the estimator has `merge`."""
    return isinstance(estimator, MergeableEstimator)


LAWS: tuple[Callable[[EstimatorCase], None], ...] = (
    init_reads_shapes_only, pure, empty_changes_nothing, deterministic, finalize_is_feasible, extremes_are_feasible,
    channels_equal_a_loop, channels_permute, elements_permute, merge_equals_the_fold, every_dtype, equivariant,
    bad_values_reach_the_state,
)  # fmt: skip
"""The laws checked on every case; `compiles` is slow, so it is checked on a few."""
