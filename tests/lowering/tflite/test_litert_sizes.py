"""Batches of several sizes through one loaded file: LiteRT 2.3 computes some products wrongly after a second resize."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.specs import edit
from qfunc.targets.runtimes import LiteRtRunner

MISSING = LiteRtRunner().missing()


class Attention(nn.Module):
    """Attention whose keys are codes, and whose queries and values are real."""

    def __init__(self) -> None:
        super().__init__()
        self.keys = nn.Linear(8, 8)

    def forward(self, values: Tensor, queries: Tensor, x: Tensor) -> Tensor:
        keys = self.keys(x).view(x.size(0), -1, 4, 2).transpose(1, 2)
        return F.scaled_dot_product_attention(queries, keys, values)


def batch(examples: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(examples)
    return tuple(torch.randn(examples, *size, generator=generator) for size in ((4, 9, 2), (4, 9, 2), (9, 8)))


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_batches_of_several_sizes() -> None:
    """By the file as deployed and by the file that shows its codes, each loaded once."""
    target = edit.activations(symmetric=True)(targets.litert)
    calibrated = qfunc.calibrate([batch(2)], progress=False)(qfunc.quantize(target)(Attention().eval()))
    report = qfunc.verify(target, latency=False)(calibrated, [batch(n) for n in (2, 3, 1, 3)])
    assert "mismatch" not in str(report.verdict)
    run, emulation = LiteRtRunner().loaded(qfunc.deploy(target)(calibrated)), qfunc.emulate(target)(calibrated)
    for examples in (1, 3, 2):
        found = torch.as_tensor(run([x.numpy() for x in batch(examples)])[0])
        # Sums of 9 products in float32 in another order: a few units of the last place of numbers below 8.
        assert float((found - emulation(*batch(examples))).abs().max()) < 1e-5
