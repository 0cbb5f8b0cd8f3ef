"""A BatchNorm1d after a linear layer folds where it norms features; elsewhere calibration refuses it."""

import pytest
import torch
from torch import nn

import qfunc
from qfunc import targets
from qfunc.errors import CalibrationError

LAYERS = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).eval()


def test_values_of_rank_two_are_folded():
    x = torch.randn(5, 3)
    calibrated = qfunc.calibrate([x])(qfunc.quantize(targets.onnxruntime)(LAYERS))
    assert qfunc.verify(targets.onnxruntime)(calibrated, [x]).agreement.startswith("bit-exact")


def test_values_of_rank_three_are_refused_by_name():
    quantized = qfunc.quantize(targets.onnxruntime)(LAYERS)
    with pytest.raises(CalibrationError) as e:
        qfunc.calibrate([torch.randn(5, 4, 3)])(quantized)
    assert str(e.value) == (
        "op '0': found values of rank 3 before its BatchNorm1d, wanted rank 2, where a BatchNorm1d can be folded into "
        "the linear layer. Flatten the leading axes before this layer, or move the BatchNorm1d."
    )
