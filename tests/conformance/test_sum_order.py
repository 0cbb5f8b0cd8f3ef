"""The order of a broadcast sum follows the layout in which the runtime executes it."""

import copy

import pytest
import torch
from torch import nn

import qfunc
from qfunc import targets
from qfunc.graph.sites import quantizer_nodes


class Masked(nn.Module):
    """conv(x) with a mask of one channel added, between convolutions."""

    def __init__(self, mask_first: bool) -> None:
        super().__init__()
        self.body, self.mask, self.head = nn.Conv2d(3, 9, 1), nn.Conv2d(3, 1, 1), nn.Conv2d(9, 2, 1)
        self.mask_first = mask_first

    def forward(self, x):
        """Scores."""
        a, b = self.mask(x), self.body(x)
        return self.head(a + b if self.mask_first else b + a)


class Gate(nn.Module):
    """A vector for each channel added to an image, without any convolution."""

    def forward(self, x, y):
        """The sum."""
        return y + x


def near_tie(generator, seed):
    """A scale whose ratios to others make ties, or all but ties, frequent in sums; a zero point amid the codes."""
    scale = torch.randint(20, 60, (), generator=generator) / 640
    zero = torch.randint(100, 156, (), generator=generator).float()
    return torch.nextafter(scale, torch.tensor(torch.inf)) if seed % 2 else scale, zero


def near_ties(model, seed):
    """The model with scales whose ratios make ties and near ties frequent in sums."""
    generator = torch.Generator().manual_seed(seed)
    result = copy.deepcopy(model)
    for seat in quantizer_nodes(result):
        module = seat.module
        if module.site.constant:
            continue
        scale, zero = near_tie(generator, seed)
        module.set_qparams(module.qparams()._replace(scale=scale, zero_point=zero))
    return result


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("mask_first", [True, False])
def test_between_convolutions(mask_first, seed):
    torch.manual_seed(seed)
    batches = [torch.randn(4, 3, 13, 11)]
    calibrated = qfunc.calibrate(batches)(qfunc.quantize(targets.onnxruntime)(Masked(mask_first)))
    for k, name in enumerate(("body", "mask", "add")):
        site = calibrated.get_submodule(f"quantizers.{name}.output")
        scale, zero = near_tie(torch.Generator().manual_seed(3 * seed + k), seed)
        site.set_qparams(site.qparams()._replace(scale=scale, zero_point=zero))
    bias, weight = (calibrated.get_submodule(f"quantizers.head.{n}") for n in ("bias", "weight"))
    bias.set_qparams(bias.qparams()._replace(scale=site.scale * weight.scale.flatten()))
    assert qfunc.verify(targets.onnxruntime)(calibrated, batches).agreement.startswith("bit-exact")


@pytest.mark.parametrize("seed", range(10))
def test_without_convolutions(seed):
    torch.manual_seed(seed)
    batches = [(torch.randn(4, 5, 7, 11), torch.randn(4, 5, 1, 1))]
    calibrated = near_ties(qfunc.calibrate(batches)(qfunc.quantize(targets.onnxruntime)(Gate())), seed)
    report = qfunc.verify(targets.onnxruntime)(calibrated, batches)
    assert report.agreement.startswith("bit-exact"), str(report)
