"""The ONNX opset and IR version of a model, and the fields by which a lowering sets others."""

from __future__ import annotations

from typing import Any

from attrs import field

from qfunc.specs._check import integer


def opset_field(default: int = 21, lowest: int = 13) -> Any:
    """Return the attrs field of a lowering's opset, from `lowest` to 21; old toolchains read old opsets only.

    >>> from qfunc.targets.runtimes import SnpeEncodings
    >>> SnpeEncodings(opset=13).opset
    13
    """
    return field(default=default, kw_only=True, validator=integer(lowest, 21))


def ir_version_field() -> Any:
    """Return the attrs field of a lowering's IR version, 4 to 13; None is that of the opset.

    >>> from qfunc.targets.runtimes import SnpeEncodings
    >>> SnpeEncodings(ir_version=6).ir_version
    6
    """
    return field(default=None, kw_only=True, validator=integer(4, 13, optional=True))


OPSET = 21

WRITTEN = 13
"""The earliest opset that the writers write; models of earlier ones are converted from the default one."""
