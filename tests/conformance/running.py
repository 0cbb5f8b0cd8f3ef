"""From a module to the report of `verify` against the real runtime."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, fx, nn

import qfunc
from qfunc.specs import Target
from qfunc.targets.runtimes import OnnxRuntimeRunner
from tests.onnxruntime_target import ONNXRUNTIME

RUNNER = OnnxRuntimeRunner(threads=1)


def calibrated(model: nn.Module, *batches: Tensor, target: Target = ONNXRUNTIME) -> fx.GraphModule:
    """The model quantized for the target and calibrated on the batches."""
    return qfunc.calibrate(batches, progress=False)(qfunc.quantize(target)(model.eval()))


def batches_of(*shape: int, count: int = 2, seed: int = 3) -> list[Tensor]:
    """Normal batches of one shape."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) * 1.5 for _ in range(count)]


def verified(model: nn.Module, *shape: int, target: Target = ONNXRUNTIME) -> Any:
    """The report on the calibration batches and one of twice the range, where codes saturate."""
    batches = batches_of(*shape)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Using padding='same'")
        model = calibrated(model, *batches, target=target)
        return qfunc.verify(target, RUNNER)(model, [*batches, 2 * batches_of(*shape, count=1, seed=4)[0]])
