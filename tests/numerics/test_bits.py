"""Bit patterns against ml_dtypes, and 4-bit packing against the integers of a byte."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qfunc.errors import SpecError
from qfunc.numerics.bits import from_bits, pack_nibbles, to_bits, unpack_nibbles
from qfunc.numerics.minifloat import nearest
from qfunc.specs import FLOAT16, FLOAT32, Float
from qfunc.specs.formats import E2M1, E4M3FN, E4M3FNUZ, E8M0
from qfunc.testing import strategies
from tests.numerics.test_minifloat import KINDS

WITHOUT_NAN = ("E3M2", "E2M3", "E2M1")


@pytest.mark.parametrize("kind", KINDS)
def test_every_pattern_means_what_ml_dtypes_says_and_comes_back(kind: str) -> None:
    """All 2^width patterns: the value, its sign of zero, infinity, NaN; and each pattern but NaN's from its value."""
    fmt, dtype = KINDS[kind]
    width = ml_dtypes.finfo(dtype).bits
    pattern = np.arange(1 << width, dtype=np.uint16 if width > 8 else np.uint8)
    with np.errstate(invalid="ignore"):  # signalling NaN
        wanted = pattern.view(dtype).astype(np.float32)

    found = from_bits(torch.arange(1 << width), fmt)

    number = ~np.isnan(wanted)
    assert found.dtype == torch.float32
    assert np.array_equal(np.isnan(found.numpy()), ~number)
    np.testing.assert_array_equal(found.numpy()[number].view(np.int32), wanted[number].view(np.int32))
    np.testing.assert_array_equal(to_bits(found[torch.tensor(number)], fmt).numpy(), pattern[number])


@pytest.mark.parametrize("kind", [k for k in KINDS if k not in WITHOUT_NAN])
def test_nan_has_the_pattern_of_ml_dtypes(kind: str) -> None:
    """E8M0 0xFF, E4M3FN 0x7F, FNUZ 0x80, IEEE's quiet NaN elsewhere; in any dtype and shape."""
    fmt, dtype = KINDS[kind]
    width = ml_dtypes.finfo(dtype).bits
    wanted = np.float32([np.nan]).astype(dtype).view(np.uint16 if width > 8 else np.uint8)

    for given_as in (torch.float32, torch.float64, torch.bfloat16):
        assert to_bits(torch.full((2, 1, 3), float("nan"), dtype=given_as), fmt).tolist() == [[[int(wanted[0])] * 3]] * 2


@given(st.data())
def test_whatever_was_rounded_has_a_pattern(data: st.DataObject) -> None:
    """from_bits(to_bits(nearest(x))) == nearest(x), the sign of zero included, for any format of up to 12 bits."""
    fmt = data.draw(strategies.float_formats(max_bits=12).filter(lambda f: f != FLOAT32 and f.mantissa < 23))
    x = data.draw(st.lists(strategies.floats_near_ties(fmt=fmt), min_size=1))
    held = nearest(torch.tensor(x, dtype=torch.float64), fmt)

    back = from_bits(to_bits(held, fmt), fmt).double()

    assert torch.equal(back.view(torch.int64)[~held.isnan()], held.view(torch.int64)[~held.isnan()])
    assert torch.equal(back.isnan(), held.isnan())


@pytest.mark.parametrize(
    ("value", "fmt", "shown"),
    [
        (449.0, E4M3FN, "449.0"),
        (float("inf"), E4M3FN, "inf"),
        (float("nan"), E2M1, "nan"),
        (-0.0, E4M3FNUZ, "-0.0"),
        (2.0**-10, E4M3FN, "0.0009765625"),
        (0.0, E8M0, "0.0"),
        (-1.0, E8M0, "-1.0"),
        (1e300, FLOAT16, "1e+300"),
    ],
)
def test_a_value_that_the_format_cannot_hold_is_named(value: float, fmt: Float, shown: str) -> None:
    """The first such value, the format and the cure."""
    with pytest.raises(SpecError) as error:
        to_bits(torch.tensor([1.0, value], dtype=torch.float64), fmt)
    assert str(error.value) == f"to_bits: found {shown}, wanted values of {fmt!r}. Round with minifloat.nearest first."


def test_patterns_and_formats_that_are_too_wide_are_refused() -> None:
    """256 in 8 bits, -1, and float32."""
    for pattern in (256, -1):
        with pytest.raises(SpecError) as error:
            from_bits(torch.tensor([0, pattern]), E4M3FN)
        assert str(error.value) == f"from_bits: found {pattern}, wanted a pattern of 8 bits. Mask off the other bits."
    for refused in (to_bits, from_bits):
        with pytest.raises(SpecError, match=r"wanted at most 16 bits\. Store wider floats as tensors\.$"):
            refused(torch.zeros(1), FLOAT32)


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("shape", [(4, 3, 6), (5, 1, 7), (2, 0, 3)])
def test_nibbles_are_the_digits_of_a_byte(shape: tuple[int, ...], signed: bool, axis: int) -> None:
    """Byte i of a row is q_2i + 16 q_2i+1 in two's complement, an odd end filled with 0; unpacking gives it back."""
    low = -8 if signed else 0
    codes = torch.randint(low, low + 16, shape, generator=torch.Generator().manual_seed(0))

    packed = pack_nibbles(codes, axis)

    rows = codes.movedim(axis, -1).reshape(-1, shape[axis]).tolist() if codes.numel() else []
    for row, found in zip(rows, packed.movedim(axis, -1).reshape(len(rows), -1).tolist() if rows else [], strict=True):
        row = row + [0] * (len(row) % 2)
        assert found == [a % 16 + 16 * (b % 16) for a, b in zip(row[::2], row[1::2], strict=True)]
    assert packed.dtype == torch.uint8
    assert torch.equal(unpack_nibbles(packed, shape[axis], axis, signed), codes.int())


def test_int4_of_onnx_is_packed_the_same_way() -> None:
    """onnx.helper stores 4-bit tensors two a byte, the first in the low nibble."""
    from onnx import TensorProto, helper

    codes = np.array([1, -2, 7, -8, 3], np.int8)
    stored = helper.make_tensor("w", TensorProto.INT4, [5], codes.tolist())

    assert pack_nibbles(torch.tensor(codes)).tolist() == [v & 255 for v in stored.int32_data]


@pytest.mark.parametrize("codes", [[16], [-9, 3], [0.5]])
def test_codes_beyond_four_bits_are_refused(codes: list[float]) -> None:
    """Nothing is masked away in silence."""
    with pytest.raises(SpecError, match=r"^pack_nibbles: found .*, wanted codes in \[-8, 15\]. Quantize to 4 bits first.$"):
        pack_nibbles(torch.tensor(codes))
