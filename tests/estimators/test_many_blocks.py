"""Searches over many blocks: in parts of bounded size, so that memory does not grow with the number of blocks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from qfunc.estimators import Entropy, entropy
from qfunc.estimators.entropy import least_divergent
from qfunc.estimators.minmax import Range
from qfunc.estimators.sketch import MAX_VALUES
from qfunc.specs import Int, PerBlock, PerChannel, Scale, Scheme


def found(estimator: Entropy, x: Tensor, scheme: Scheme) -> Range:
    return estimator.range(estimator.update(estimator.init(scheme, x), x, scheme), scheme)


@pytest.mark.parametrize("at_once", [256, 1 << 11, 1 << 14])
@pytest.mark.parametrize("length", [40, MAX_VALUES + 1])
def test_entropy_of_blocks_is_that_of_each(at_once: int, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However few blocks are searched together: one, eight, all."""
    x = torch.randn(10, length, generator=torch.Generator().manual_seed(length))
    x[::2] = x[::2].relu()
    x[:, -3:] = torch.exp2(torch.arange(10.0)).unsqueeze(-1)
    estimator, scheme = Entropy(256), Scheme(Int(4), Scale(PerChannel(0)))
    alone = [found(estimator, row, Scheme(Int(4))) for row in x]
    monkeypatch.setattr(entropy, "BINS_AT_ONCE", at_once)
    low, high = found(estimator, x, scheme)
    assert high.flatten().tolist() == [float(r.high) for r in alone]
    assert low.flatten().tolist() == [float(r.low) for r in alone]
    assert len(set(high.flatten().tolist())) > 5  # not all alike


def test_entropy_of_thousands_of_blocks() -> None:
    """4096 blocks of 32 values each: every range lies within what was seen, and where it clips, at an edge of the bins."""
    x = torch.randn(128, 1024, generator=torch.Generator().manual_seed(5))
    low, high = found(Entropy(256), x, Scheme(Int(4), Scale(PerBlock(1, 32))))
    rows = x.view(128, 32, 32)
    least, most = rows.amin(-1), rows.amax(-1)
    width = torch.exp2(torch.floor(torch.log2(rows.abs().amax(-1))) + 1) / 256
    assert high.shape == (128, 32)
    assert bool(((low >= least) & (high <= most) & (low < high)).all())
    assert bool(((high == most) | (high / width == (high / width).round())).all())
    assert bool(((low == least) | (low / width == (low / width).round())).all())
    assert 0 < int((high < most).sum()) < high.numel()


def test_the_last_of_equal_divergences_is_kept() -> None:
    """One element of 2.56 * 10^11 beyond bin 256 costs less than rounding does: all 257 bins are kept, not 256."""
    counts = torch.tensor([10**9] * 256 + [1] + [0] * 43)
    assert int(least_divergent(counts, 256)) == 257
