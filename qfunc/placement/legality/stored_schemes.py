"""Schemes that the files of a lowering do not hold."""

from __future__ import annotations

import re

from qfunc.specs import Float, Int, PerBlock, PerChannel, Scheme
from qfunc.specs.file_format import format_of
from qfunc.specs.protocols import Lowering

_STORED = (8, 16, 32)


def refusal(lowering: Lowering | None, scheme: Scheme, constant: bool) -> str:
    """Return the schemes that the files hold, or the lowering that a tensor of this scheme needs instead; "" if they hold it.

    >>> from qfunc.lowering import QdqLowering
    >>> from qfunc.targets.runtimes import PplDspLowering
    >>> refusal(QdqLowering(opset=13), Scheme(Int(4)), constant=False)
    'QdqLowering(opset=21): QuantizeLinear has 4-bit integers from opset 21 on (ONNX operators)'
    >>> refusal(QdqLowering(opset=13), Scheme(Int(4)), constant=True)  # stored in a byte
    ''
    >>> refusal(PplDspLowering(opset=11), Scheme(Int(16)), constant=False)  # the lowering receives a model of opset 21
    ''
    """
    files = format_of(lowering)
    if lowering is None:
        return ""
    if wanted := files.refuses(scheme, constant):
        return wanted
    if isinstance(scheme.format, Int) and scheme.format.bits > 16 and not constant:
        return "at most 16 bits: QuantizeLinear has no wider codes (ONNX operators)"
    opset = files.opset if files.quantizers and files.opset else files.received
    for needed, what in _needs(scheme, constant):
        if opset < needed:
            return f"{_of_opset(lowering, needed)}: QuantizeLinear has {what} from opset {needed} on (ONNX operators)"
    return ""


def holds_own_codes(lowering: Lowering | None, scheme: Scheme, constant: bool) -> bool:
    """Return True for codes in files with schemes of their own that are no integers with one scale per tensor or channel.

    >>> from qfunc.specs.formats import MXFP4
    >>> from qfunc.targets.runtimes import CompressedTensorsLowering
    >>> [holds_own_codes(CompressedTensorsLowering(), scheme, True) for scheme in (MXFP4, Scheme())]
    [True, False]
    """
    files = format_of(lowering)
    own = not isinstance(scheme.format, Int) or (constant and isinstance(scheme.scale.shared, PerBlock))
    return bool(files.schemes) and own and not files.refuses(scheme, constant)


def _of_opset(lowering: Lowering, opset: int) -> str:
    code, written = repr(lowering), f"opset={opset}"
    changed = re.sub(r"\bopset=\d+", written, code)
    return written if changed == code else changed


def _needs(scheme: Scheme, constant: bool) -> list[tuple[int, str]]:
    needs = []
    match scheme.format:
        case Int(bits):
            stored = bits if bits == 4 and not constant else next((b for b in _STORED if b >= bits), bits)
            needs += [(21, f"{stored}-bit integers")] if stored not in (8, 32) else []
        case Float(exponent, mantissa) if exponent + mantissa == 7:
            needs += [(19, "8-bit floats")]
    if isinstance(scheme.scale.shared, PerBlock):
        needs += [(21, "scales per block")]
    if isinstance(scheme.scale.shared, PerChannel):
        needs += [(13, "scales per channel")]
    return sorted(needs, reverse=True)
