"""Errors for tensors that FakeQuantize does not support."""

from __future__ import annotations

from qfunc.lowering.format_checks import require
from qfunc.lowering.quantized_tensor import QuantizedTensor
from qfunc.specs import Int


def require_site(site: QuantizedTensor) -> None:
    """Raise unless a tensor has an integer format of at most 16 bits, or is a bias.

    Raises:
        DeployError: names the tensor.
    """
    fits = isinstance(site.format, Int) and (site.format.bits <= 16 or site.role == "bias")
    do = "Edit the scheme: format=Int(8), or deploy Q/DQ ONNX by edit.deploy(QdqLowering())."
    require(site, fits, repr(site.format), "an integer format of at most 16 bits: FakeQuantize has no others", do)
