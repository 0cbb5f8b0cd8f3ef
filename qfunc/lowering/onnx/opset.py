"""The ONNX opset: its default, and the field of a lowering that chooses another."""

from __future__ import annotations

from typing import Any

from attrs import field

from qfunc.specs._check import integer


def opset_field() -> Any:
    """Return the opset of a lowering's ONNX models, 13 to 21 and by default the latest; old toolchains read old ones only.

    >>> from qfunc.lowering import SnpeEncodings
    >>> SnpeEncodings(opset=13).opset
    13
    """
    return field(default=21, kw_only=True, validator=integer(13, 21))


OPSET = 21
