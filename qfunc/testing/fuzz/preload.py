"""What a server of processes imports once, so that each of them starts with torch.export loaded and used."""

import warnings

import torch
from torch import nn

from qfunc.frontend.capture import capture
from qfunc.testing.fuzz import trial

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    capture((torch.ones(2, 1, 4, 4),))(nn.Sequential(nn.Conv2d(1, 1, 3), nn.BatchNorm2d(1), nn.GELU()).eval())

__all__ = ["trial"]
