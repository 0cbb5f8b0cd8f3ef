"""The ratios of scales that XNNPACK multiplies and adds with, inside of LiteRT and of ExecuTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from qfunc.errors import DeployError
from qfunc.specs import InputRatios, ProductRatio

if TYPE_CHECKING:
    from qfunc.lowering.nhwc.tensor import NhwcTensor  # which loads onnx

SUMMED, MULTIPLIED = InputRatios(2**-10, 2**8), ProductRatio(2**-16, 2**8)
"""The ratios of scales with which XNNPACK adds and multiplies the codes of two tensors."""


def require_multiplier(x: NhwcTensor, weight: NhwcTensor, out: NhwcTensor, bits: int = 8) -> None:
    """Raise if s_x s_w / s_y of a layer on codes is 2^bits or more: XNNPACK's multipliers are below 2^8.

    Raises:
        DeployError: names the tensor.
    """
    if x.qparams is None or weight.qparams is None or out.qparams is None:
        return
    ratio = np.float32(x.qparams.scale[0]) * np.float32(max(weight.qparams.scale)) / np.float32(out.qparams.scale[0])
    if ratio >= 2.0**bits:
        do = "Calibrate on inputs of the deployed range."
        found = f"s_x * s_w / s_y = {ratio:g}"
        raise DeployError(where=f"tensor {out.name!r}", found=found, wanted=f"a ratio below 2^{bits}", do=do)
