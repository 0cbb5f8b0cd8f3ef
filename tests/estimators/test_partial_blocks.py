"""Statistics of a partial block are those of the block filled with zeros, as the engines store it."""

import inspect

import pytest
import torch
import torch.nn.functional as F

from qfunc import estimators
from qfunc.specs import Int, PerBlock, Scale, Scheme, ZeroPoint

NAMES = [
    name
    for name in estimators.__all__
    if inspect.isclass(kind := getattr(estimators, name))
    and hasattr(kind, "update")
    and all(p.default is not p.empty for p in inspect.signature(kind).parameters.values())
]


@pytest.mark.parametrize("zero_point", [None, ZeroPoint()], ids=["symmetric", "affine"])
@pytest.mark.parametrize("name", NAMES)
def test_a_partial_block_is_filled_with_zeros(name: str, zero_point: ZeroPoint | None) -> None:
    estimator, x = getattr(estimators, name)(), torch.randn(3, 70, generator=torch.Generator().manual_seed(0)) + 0.5
    fmt = Int(4, signed=zero_point is None)

    def found(data: torch.Tensor, partial: bool) -> list[torch.Tensor]:
        scheme = Scheme(fmt, Scale(PerBlock(-1, 32, partial=partial)), zero_point)
        state = estimator.update(estimator.init(scheme, data), data, scheme)
        return list(estimator.finalize(state, scheme)[:2])

    for one, other in zip(found(x, partial=True), found(F.pad(x, (0, 26)), partial=False), strict=True):
        assert torch.equal(one, other)


def test_there_are_estimators() -> None:
    assert len(NAMES) > 8
