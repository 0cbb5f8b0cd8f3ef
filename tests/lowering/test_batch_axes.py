"""Reductions and pools of tensors whose first axis is not the batch: the runtimes compute what the emulation does."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.lowering import ExecuTorchRunner, LiteRtRunner

RUNTIMES = {"litert": (targets.litert, LiteRtRunner()), "executorch": (targets.executorch_xnnpack, ExecuTorchRunner())}


def reductions(t: Tensor) -> list[Tensor]:
    """Every reduction of a tensor [2, B, 4, 6] over axes that are not the batch."""
    over = [axes for count in (1, 2, 3) for axes in combinations((0, 2, 3), count)]
    kept = [f(t, axes, keep) for f in (torch.mean, torch.amax) for axes in over for keep in (False, True)]
    others = [
        f(t, axis, keepdim=keep) for f in (torch.sum, torch.logsumexp, torch.var) for axis in (0, 2) for keep in (False, True)
    ]
    return kept + others


def pools(t: Tensor) -> list[Tensor]:
    """Pools of images and signals whose channels are the examples."""
    signal = t[:, :, 0]
    return [F.max_pool2d(t, 2), F.avg_pool2d(t, 2), F.max_pool1d(signal, 2), F.avg_pool1d(signal, 2)]


class Stacked(nn.Module):
    """A linear layer, whose results are stacked before the batch; some values of each example are the outputs."""

    def __init__(self, values) -> None:
        super().__init__()
        self.linear, self.values = nn.Linear(6, 6), values

    def forward(self, x):
        y = self.linear(x)
        return tuple(self.values(torch.stack([y, y * 0.5], 0)))


@pytest.mark.parametrize("values", [reductions, pools])
@pytest.mark.parametrize("name", RUNTIMES)
def test_the_batch_may_be_another_axis(name, values):
    target, runner = RUNTIMES[name]
    if missing := runner.missing():
        pytest.skip(missing)
    torch.manual_seed(0)
    batches = [torch.randn(n, 4, 6) for n in (2, 2, 3, 1)]
    quantized = qfunc.quantize(target, batches[0])(Stacked(values).eval())
    report = qfunc.verify(target)(qfunc.calibrate(batches[:2], progress=False)(quantized), batches[1:])
    assert report.agreement.startswith("bit-exact")


class Repeated(nn.Module):
    """Rows of all examples as one axis, joined with constants and computed rows that are repeated for each example."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.register_buffer("rows", torch.linspace(-2, 2, 24).reshape(4, 6))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        count, y = x.shape[0], self.linear(x).reshape(-1, 6)
        twice = self.rows.repeat(2 * count, 1).reshape(count, -1, 6)
        return (
            y + self.rows.repeat(count, 1),
            y * self.linear(self.rows).relu().repeat(count, 1),
            twice * y.reshape(count, -1, 6)[:, :1],
        )


@pytest.mark.parametrize("name", RUNTIMES)
def test_rows_are_repeated_for_each_example(name):
    """As anchors are: `box_coder.decode_single(offsets.reshape(-1, 4), anchors.repeat(n, 1))` of torchvision's detectors."""
    target, runner = RUNTIMES[name]
    if missing := runner.missing():
        pytest.skip(missing)
    torch.manual_seed(0)
    batches = [torch.randn(n, 4, 6) for n in (2, 2, 3, 1)]
    model = Repeated().eval()
    calibrated = qfunc.calibrate(batches[:2], progress=False)(qfunc.quantize(target, batches[0])(model))
    report = qfunc.verify(target)(calibrated, batches[1:])
    assert report.agreement.startswith("bit-exact")
    found = runner.run(qfunc.deploy(target)(calibrated), batches[:1])  # in the range of calibration
    with torch.no_grad():
        for wanted, value in zip(model(batches[0]), found, strict=True):
            assert (torch.as_tensor(value) - wanted).abs().max() < 0.02 * wanted.abs().max()  # a few steps of 1 / 255
