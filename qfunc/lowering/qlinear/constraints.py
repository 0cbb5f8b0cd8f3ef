"""Tensors that QLinear operators do not take."""

from __future__ import annotations

from typing import Any

from qfunc.lowering.format_checks import require, require_one_scale
from qfunc.lowering.quantized_tensor import QuantizedTensor
from qfunc.specs import Int


def require_site(site: QuantizedTensor) -> None:
    """Raise unless a tensor is stored in bytes and has one scale if it is computed.

    Raises:
        DeployError: names the tensor.
    """
    do = "Use the schemes of targets.onnx_qnn, or edit.deploy(QdqLowering())."
    fits = site.format == Int(32) if site.role == "bias" else _in_bytes(site.format, site.role != "activation")
    wanted = "Int(8) or Int(8, signed=False), biases Int(32), as QLinear operators have them"
    require(site, fits, repr(site.format), wanted, do)
    if site.role == "activation":
        require_one_scale(site, "a QLinear operator")


def _in_bytes(fmt: Any, constant: bool) -> bool:
    # Constants are quantized offline, so narrower codes fit; an operator saturates at the ends of its type.
    return isinstance(fmt, Int) and (fmt.bits <= 8 if constant else fmt in (Int(8), Int(8, signed=False)))


__all__ = ["require_site"]
