"""Sizes that a model computes from its input's: the artifact of a program with varying axes holds for sizes far apart."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.lowering import OnnxRuntime


class Windows(nn.Module):
    """Pads to a multiple of 7, as transformers with windows do, and keeps the upper half, rounded up."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[2], x.shape[3]
        y = self.conv(F.pad(x, (0, (7 - width % 7) % 7, 0, (7 - height % 7) % 7)))
        return y[:, :, : -(-y.shape[2] // 2)]


@pytest.fixture(scope="module")
def example() -> Tensor:
    return torch.randn(2, 3, 9, 12, generator=torch.Generator().manual_seed(0))


@pytest.mark.filterwarnings("ignore")
def test_neighbouring_sizes_that_give_one_result_are_not_taken_for_a_constant(example: Tensor) -> None:
    """9 and 10 rows are both padded to 14, of which 6 come out of the convolution and 3 are kept; of 36 rows it is 10."""
    auto = torch.export.Dim.AUTO
    program = torch.export.export(Windows().eval(), (example,), dynamic_shapes=({2: auto, 3: auto},))
    calibrated = qfunc.calibrate([example], progress=False)(qfunc.quantize(targets.onnxruntime)(program))
    artifact = qfunc.deploy(targets.onnxruntime)(calibrated)
    heights = []
    for height, width in ((9, 12), (13, 8), (36, 21), (7, 50)):
        x = torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(height))
        found = torch.as_tensor(OnnxRuntime(optimise=False).run(artifact, [x])[0])
        with torch.no_grad():
            simulated = calibrated(x)
        scale = max(float(m.qparams().scale) for m in calibrated.modules() if hasattr(m, "site") and not m.site.constant)
        assert found.shape == simulated.shape
        assert (found - simulated).abs().max() <= 1.001 * scale  # a tie may fall to the other side: one step
        heights.append(found.shape[2])
    assert heights == [3, 3, 10, 2]


def test_sizes_of_one_input_are_constants_on_the_other_road(example: Tensor) -> None:
    """Traced symbolically only the batch varies; the pads that the model computes are numbers."""
    calibrated = qfunc.calibrate([example], progress=False)(qfunc.quantize(targets.onnxruntime)(Windows().eval()))
    artifact = qfunc.deploy(targets.onnxruntime)(calibrated)
    (found,) = OnnxRuntime(optimise=False).run(artifact, [example[:1]])
    with torch.no_grad():
        assert tuple(found.shape) == tuple(calibrated(example[:1]).shape) == (1, 4, 3, 6)
