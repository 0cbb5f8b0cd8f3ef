"""Errors for tensors that QLinear operators do not support."""

from __future__ import annotations

from typing import Any

from qfunc.lowering.format_checks import require, require_one_scale
from qfunc.lowering.quantized_tensor import QuantizedTensor
from qfunc.specs import Int


def require_site(site: QuantizedTensor) -> None:
    """Raise unless a tensor is stored in bytes, and has one scale if it is an activation.

    Raises:
        DeployError: names the tensor.
    """
    do = "Use the schemes of targets.onnx_qnn, or deploy Q/DQ ONNX by edit.deploy(QdqLowering())."
    fits = site.format == Int(32) if site.role == "bias" else _is_byte(site.format, site.role != "activation")
    wanted = "Int(8) or Int(8, signed=False), for biases Int(32): QLinear operators have no others"
    require(site, fits, repr(site.format), wanted, do)
    if site.role == "activation":
        require_one_scale(site, "a QLinear operator")


def _is_byte(fmt: Any, constant: bool) -> bool:
    # An operator saturates at the limits of its type, so that only constants, which are stored, may be narrower.
    return isinstance(fmt, Int) and (fmt.bits <= 8 if constant else fmt in (Int(8), Int(8, signed=False)))
