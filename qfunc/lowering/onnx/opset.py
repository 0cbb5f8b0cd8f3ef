"""The default ONNX opset, and the field by which a lowering sets another."""

from __future__ import annotations

from typing import Any

from attrs import field

from qfunc.specs._check import integer


def opset_field() -> Any:
    """Return the attrs field of a lowering's opset: 13 to 21, by default the latest; old toolchains read old opsets only.

    >>> from qfunc.lowering import SnpeEncodings
    >>> SnpeEncodings(opset=13).opset
    13
    """
    return field(default=21, kw_only=True, validator=integer(13, 21))


OPSET = 21
