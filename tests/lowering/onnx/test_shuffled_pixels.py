"""Shuffles of pixels take a batch of images, although PyTorch also takes one image."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import qfunc
from qfunc import targets
from qfunc.errors import DeployError
from tests.conformance.modules import Apply


@pytest.mark.parametrize("shuffle", [F.pixel_shuffle, F.pixel_unshuffle], ids=lambda f: f.__name__)
def test_one_image_is_refused(shuffle):
    x = torch.randn(4, 8, 6)
    net = nn.Sequential(nn.Linear(6, 6), Apply(lambda x: shuffle(x, 2))).eval()
    calibrated = qfunc.calibrate([x], progress=False)(qfunc.quantize(targets.onnxruntime)(net))
    with pytest.raises(DeployError) as caught:
        qfunc.deploy(targets.onnxruntime)(calibrated)
    assert str(caught.value) == f"op '1.{shuffle.__name__}': found rank 3, wanted rank 4. Add a batch axis."
