"""Convert small floats to and from bit patterns, and pack two 4-bit codes into a byte."""

from __future__ import annotations

import torch
from torch import Tensor

from qfunc.errors import SpecError
from qfunc.numerics.minifloat import has_infinity, has_nan, largest, power_of_two, smallest, smallest_exponent, without_zero
from qfunc.specs import Float


def to_bits(values: Tensor, fmt: Float) -> Tensor:
    """Return the bit patterns of values of a format of up to 16 bits.

    A sign, then |v| / 2^(e - mantissa) + (e - emin) * 2^mantissa with e = max(floor(log2|v|), emin): for normal
    values the exponent field and the mantissa, for subnormal ones the mantissa; for E8M0 e - emin.  NaN is
    IEEE's quiet pattern where the format reserves the highest exponent, the pattern of -0 in the FNUZ
    variants, else all ones except the sign.

    Args:
        values: In units of the scale, as `minifloat.nearest` returns them.
        fmt: Up to 16 bits.
    Returns:
        int32 of the same shape.  NaN loses its sign and its payload.
    Raises:
        SpecError: a value that the format cannot represent, or a format of more than 16 bits.
    Source: OCP 8-bit Floating Point Specification 1.0, tables 1 and 2; OCP Microscaling Formats 1.0, section 5.

    >>> to_bits(torch.tensor([448.0, -1.0, 2.0**-9]), Float(4, 3, max=448.0)).tolist()
    [126, 184, 1]
    """
    _width(fmt)
    real = values.detach().double()
    size = real.abs()
    lowest = smallest_exponent(fmt)
    ordinary = torch.isfinite(size) & (size > 0)
    exponent = (torch.frexp(torch.where(ordinary, size, smallest(fmt)))[1] - 1).clamp(min=lowest)
    code = _times_power_of_two(size, fmt.mantissa - exponent).nan_to_num(0, 0, 0).int() + (exponent - lowest) * (
        1 << fmt.mantissa
    )
    if without_zero(fmt):
        code = code - 1
    if has_infinity(fmt):
        code = torch.where(torch.isinf(size), _infinity(fmt), code)
    if fmt.signed:
        code = code + torch.signbit(real).int() * (1 << fmt.exponent + fmt.mantissa)
    if has_nan(fmt):
        code = torch.where(torch.isnan(real), _nan(fmt), code)
    code = code & (1 << _width(fmt)) - 1
    decoded = from_bits(code, fmt).double()
    representable = torch.where(
        torch.isnan(real), torch.isnan(decoded), (decoded == real) & (torch.signbit(decoded) == torch.signbit(real))
    )
    if not bool(representable.all()):
        first = values.detach()[~representable].flatten()[0].item()
        wanted, do = f"values of {fmt!r}", "Round with minifloat.nearest first."
        raise SpecError(where="to_bits", found=repr(first), wanted=wanted, do=do)
    return code


def from_bits(bits: Tensor, fmt: Float) -> Tensor:
    """Return the values of the bit patterns of a format of up to 16 bits.

    Args:
        bits: Integers of any dtype, 0 to 2^width - 1.
    Returns:
        float32 of the same shape, float64 for formats overflow float32; patterns above the largest value are infinity
        or NaN, depending on the format.
    Raises:
        SpecError: a pattern outside the width, or a format of more than 16 bits.

    >>> from_bits(torch.tensor([126, 184, 1]), Float(4, 3, max=448.0)).tolist()
    [448.0, -1.0, 0.001953125]
    """
    width = _width(fmt)
    code = bits.long()
    outside = (code < 0) | (code >= 1 << width)
    if bool(outside.any()):
        first, wanted = code[outside].flatten()[0].item(), f"a pattern of {width} bits"
        raise SpecError(where="from_bits", found=str(first), wanted=wanted, do="Mask off the other bits.")
    size = code & (1 << fmt.exponent + fmt.mantissa) - 1
    field, fraction = size >> fmt.mantissa, size & (1 << fmt.mantissa) - 1
    if without_zero(fmt):
        significand, exponent = torch.ones_like(size), field + smallest_exponent(fmt)
    else:
        significand = fraction + (field > 0) * (1 << fmt.mantissa)
        exponent = (field - 1).clamp(min=0) + smallest_exponent(fmt) - fmt.mantissa
    value = _times_power_of_two(significand.double(), exponent)
    overflow = torch.where((size == _infinity(fmt)) if has_infinity(fmt) else size < 0, torch.inf, torch.nan)
    value = torch.where(value > largest(fmt), overflow.double(), value)
    negative = (code >> fmt.exponent + fmt.mantissa) == 1 if fmt.signed else torch.zeros_like(size, dtype=torch.bool)
    value = torch.where(negative, -value, value)
    if not fmt.negative_zero:
        value = torch.where(negative & (size == 0), torch.nan, value)
    return value.float() if smallest(fmt) >= 2.0**-149 and largest(fmt) < 2.0**128 else value


def pack_nibbles(codes: Tensor, axis: int = -1) -> Tensor:
    """Pack two 4-bit codes into a byte along an axis, low nibble first: b_i = q_2i mod 16 + 16 (q_2i+1 mod 16).

    Args:
        codes: Integers of any dtype (or integral floats), -8 to 15; negative ones as two's complement.  An odd
            length is padded with a code 0.
    Returns:
        uint8, half as long along `axis`, rounded up.
    Raises:
        SpecError: a code that 4 bits cannot hold.
    Source: NVIDIA TensorRT, 4-bit types; ONNX, "4 bit types: packing and unpacking".

    >>> pack_nibbles(torch.tensor([1, -1, 7])).tolist()
    [241, 7]
    """
    if bool(((codes < -8) | (codes > 15) | (codes != codes.long())).any()):
        found, wanted = f"[{codes.min().item()}, {codes.max().item()}]", "codes in [-8, 15]"
        raise SpecError(where="pack_nibbles", found=found, wanted=wanted, do="Quantize to 4 bits first.")
    last = codes.long().movedim(axis, -1) & 15
    last = torch.nn.functional.pad(last, (0, last.shape[-1] % 2))
    return (last[..., ::2] | last[..., 1::2] << 4).to(torch.uint8).movedim(-1, axis)


def unpack_nibbles(packed: Tensor, length: int | None = None, axis: int = -1, signed: bool = False) -> Tensor:
    """Unpack the codes of `pack_nibbles`: q_2i = b_i mod 16, q_2i+1 = b_i div 16.

    Args:
        packed: uint8.
        length: Number of codes along the axis; None for all, padding included.
        signed: Interpret codes of 8 and more as q - 16.
    Returns:
        int32, in [0, 15] or [-8, 7].

    >>> unpack_nibbles(torch.tensor([241, 7], dtype=torch.uint8), length=3, signed=True).tolist()
    [1, -1, 7]
    """
    last = packed.int().movedim(axis, -1)
    codes = torch.stack((last & 15, last >> 4), -1).flatten(-2)[..., :length]
    return ((codes ^ 8) - 8 if signed else codes).movedim(-1, axis)


def _times_power_of_two(x: Tensor, exponent: Tensor) -> Tensor:
    # x * 2^exponent in two exact steps, because 2^exponent alone may overflow float64.
    half = exponent.long() >> 1
    return x * power_of_two(half) * power_of_two(exponent.long() - half)


def _width(fmt: Float) -> int:
    width = fmt.signed + fmt.exponent + fmt.mantissa
    if width > 16:
        raise SpecError(where="bits", found=repr(fmt), wanted="at most 16 bits", do="Store wider floats as tensors.")
    return width


def _infinity(fmt: Float) -> int:
    return ((1 << fmt.exponent) - 1) << fmt.mantissa


def _nan(fmt: Float) -> int:
    if not fmt.negative_zero:
        return 1 << fmt.exponent + fmt.mantissa
    return _infinity(fmt) | 1 << fmt.mantissa - 1 if has_infinity(fmt) else _all_ones(fmt)


def _all_ones(fmt: Float) -> int:
    return (1 << fmt.exponent + fmt.mantissa) - 1
