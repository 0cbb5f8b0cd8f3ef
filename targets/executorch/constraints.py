"""The ops, scales and functions that XNNPACK's nodes do not support: `quantize` refuses the ops by kind and attributes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from qfunc.errors import DeployError
from qfunc.lowering.format_checks import ALONE, BESIDE, MIXED, OF_THE_BATCH, ONE_EXAMPLE, SELECTED
from qfunc.specs import AnyInput, GraphInput, Op, Refuse
from qfunc.targets.litert.constraints import BY_ONE, COMPARISONS, MATRICES, MODES, OF_INPUTS, OUTSIDE, UNWRITTEN
from qfunc.targets.litert.ratios import MULTIPLIED, SUMMED

if TYPE_CHECKING:
    from qfunc.lowering.nhwc.tensor import NhwcTensor  # which loads onnx

NO_NODE = "ExecuTorch 1.5, backends/xnnpack/serialization/schema.fbs: no such node, or not in that form"
REAL = "ExecuTorch 1.5, backends/xnnpack: the delegate's inputs are real numbers, and it looks no rows up"
FROM_EMBEDDINGS = "Look the tokens up outside, and capture the model from the embeddings on: docs/executorch.md."
MOVED = Op(("cast", "reshape"))
LOOKUP = Op("embedding") & (AnyInput(GraphInput()) | AnyInput(MOVED & AnyInput(GraphInput())))
LEGALITY = (
    Refuse(ALONE, because=NO_NODE, do=BESIDE),
    Refuse(Op((*UNWRITTEN, "argmax", "argmin", "round", "round_decimals", "prod")), because=NO_NODE, do=OUTSIDE),
    Refuse(Op("resize") & MODES, because=NO_NODE, do="Use mode='nearest' or mode='bilinear'."),
    Refuse(COMPARISONS, because="qfunc writes masks that are inputs, cast to bool", do=OF_INPUTS),
    Refuse(MATRICES, because="the delegate takes one constant matrix", do=BY_ONE),
    Refuse(MIXED, because=ONE_EXAMPLE, do=OUTSIDE),
    Refuse(SELECTED, because=ONE_EXAMPLE, do=OF_THE_BATCH),
    Refuse(LOOKUP, because=REAL, do=FROM_EMBEDDINGS),
)


def require_blocks(weight: NhwcTensor, size: int) -> None:
    """Raise unless XNNPACK multiplies by a weight with scales of blocks: 4 bits, and blocks of a multiple of 32 entries.

    Raises:
        DeployError: names the tensor.
    """
    assert weight.value is not None
    codes = weight.value
    shifted = weight.qparams is not None and any(weight.qparams.zero_point)
    if size % 32 or codes.min(initial=0) < -8 or codes.max(initial=0) > 7 or weight.qparams is None or shifted:
        found = f"blocks of {size} codes in [{codes.min()}, {codes.max()}]{', with zero points' if shifted else ''}"
        do = "Use the schemes of targets.executorch_8da4w."
        wanted = "4-bit codes in blocks of a multiple of 32, without zero points"
        raise DeployError(where=f"tensor {weight.name!r}", found=found, wanted=wanted, do=do)


def takes_product(a: NhwcTensor, b: NhwcTensor, out: NhwcTensor) -> bool:
    """Return True if XNNPACK multiplies the codes of two tensors, by s_a s_b / s_y."""
    if a.qparams is None or b.qparams is None or out.qparams is None:
        return True
    ratio = np.float32(a.qparams.scale[0]) * np.float32(b.qparams.scale[0]) / np.float32(out.qparams.scale[0])
    return bool(MULTIPLIED.least <= ratio < MULTIPLIED.below)


def takes_sum(inputs: Sequence[NhwcTensor], out: NhwcTensor) -> bool:
    """Return True if XNNPACK adds the codes of two tensors, by each s_x / s_y."""
    scales = [np.float32(t.qparams.scale[0]) for t in inputs if t.qparams is not None]
    return out.qparams is None or all(SUMMED.least <= s / np.float32(out.qparams.scale[0]) < SUMMED.below for s in scales)


def require_slope(x: NhwcTensor, out: NhwcTensor, alpha: float) -> None:
    """Raise unless s_x / s_y and alpha s_x / s_y of a leaky relu on codes are in [2^-8 - 2^7, 2^7].

    XNNPACK multiplies by their negatives, in 16 bits, 8 of them fractional.

    Raises:
        DeployError: names the tensor.
    """
    if x.qparams is None or out.qparams is None:
        return
    ratio = np.float32(x.qparams.scale[0]) / np.float32(out.qparams.scale[0])
    if not all(2.0**-8 - 2.0**7 <= slope * ratio <= 2.0**7 for slope in (np.float32(1), np.float32(alpha))):
        do = "Calibrate on inputs of the deployed range."
        found = f"an input scale of {x.qparams.scale[0]:g} and an output scale of {out.qparams.scale[0]:g}"
        wanted = "s_x / s_y and alpha * s_x / s_y in [2^-8 - 2^7, 2^7]"
        raise DeployError(where=f"tensor {out.name!r}", found=found, wanted=wanted, do=do)


def require_number_exponent(out: NhwcTensor, exponent: NhwcTensor) -> None:
    """Raise if the exponent of a power is not one constant number, because XNNPACK has no powers.

    Raises:
        DeployError: names the tensor.
    """
    if exponent.value is None or exponent.value.size != 1:
        found, do = "a power whose exponent is a tensor", "Raise to a number, or compute it outside the deployed model."
        raise DeployError(where=f"tensor {out.name!r}", found=found, wanted="a number as its exponent", do=do)


__all__ = [
    "LEGALITY",
    "MULTIPLIED",
    "SUMMED",
    "require_blocks",
    "require_number_exponent",
    "require_slope",
    "takes_product",
    "takes_sum",
]
