"""Cubic resizes between convolutions: the optimised session loads the file, whatever the factors are."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import qfunc
from qfunc import targets
from qfunc.errors import DeployError

FACTORS = st.sampled_from((0.3, 0.5, 0.75, 1.0, 1.5, 2.0))
OPTIONS = st.one_of(
    st.builds(lambda h, w: {"scale_factor": (h, w)}, FACTORS, FACTORS),
    st.builds(lambda h, w, c: {"size": (h, w), "align_corners": c}, st.integers(2, 14), st.integers(2, 14), st.booleans()),
)


class Resized(nn.Module):
    def __init__(self, options):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.options = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 1), options

    def forward(self, x):
        return self.last(F.interpolate(self.first(x), mode="bicubic", **self.options))


def calibrated(options, x):
    return qfunc.calibrate([x], progress=False)(qfunc.quantize(targets.onnxruntime)(Resized(options).eval()))


@settings(max_examples=6, deadline=None, derandomize=True)
@given(OPTIONS)
def test_the_runtime_loads_the_file_and_computes_the_emulations_codes(options):
    x = torch.randn(2, 3, 8, 9, generator=torch.Generator().manual_seed(1))
    report = qfunc.verify(targets.onnxruntime)(calibrated(options, x), [x])
    assert report.agreement.startswith("bit-exact: 0 of"), report


@pytest.mark.filterwarnings("ignore")
def test_a_resize_to_half_of_sizes_that_vary_is_refused():
    x, sizes = torch.randn(2, 3, 8, 16), ({0: torch.export.Dim("batch"), 2: 2 * torch.export.Dim("half", min=2)},)
    exported = torch.export.export(Resized({"scale_factor": 0.5}).eval(), (x,), dynamic_shapes={"x": sizes[0]})
    calibrated = qfunc.calibrate([x], progress=False)(qfunc.quantize(targets.onnxruntime)(exported))
    with pytest.raises(DeployError) as e:
        qfunc.deploy(targets.onnxruntime)(calibrated)
    assert str(e.value) == (
        "op 'upsample_bicubic2d': found a bicubic resize by a factor below 1 of an image whose sizes vary, wanted a fixed "
        "height and width. Fix the height and width where the model is exported, or use mode='bilinear'."
    )
