"""Laws of the Fixed quantize function."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qfunc.functions import Fixed
from qfunc.numerics import Affine, dequantize
from qfunc.numerics.qparams import qparams_shape
from qfunc.specs import Int, Scale, Scheme, ZeroPoint
from qfunc.testing import strategies

SHAPE = (2, 3, 10)


@given(st.data(), strategies.granularities(shape=SHAPE))
def test_exported_codes_dequantize_to_what_apply_returns(data: st.DataObject, shared: object) -> None:
    """dequantize(*export(params, x, scheme)) == apply(params, x, scheme), every bit, with and without gradients."""
    drawn = data.draw(strategies.schemes(max_bits=8))
    scheme = Scheme(drawn.format, Scale(shared), drawn.zero_point, rounding=drawn.rounding, division=drawn.division)  # type: ignore[arg-type]
    one = data.draw(strategies.qparams(scheme=drawn, tiny=False, huge=False))
    steps = torch.arange(1.0, 1.0 + torch.Size(qparams_shape(scheme, SHAPE)).numel()).reshape(qparams_shape(scheme, SHAPE))
    qparams = Affine(one.scale * steps, one.zero_point.expand(steps.shape))
    x = torch.randn(SHAPE, generator=torch.Generator().manual_seed(data.draw(st.integers(0, 99)))) * one.scale * 50
    function = Fixed()
    params = function.init(qparams, x, scheme)

    codes, exported = function.export(params, x, scheme)
    with torch.no_grad():
        value = function.apply(params, x, scheme)

    held = dequantize(codes, exported, scheme)
    assert torch.equal(held, value)
    assert torch.equal(held, function.apply(params, x.requires_grad_(), scheme))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_the_law_holds_in_the_dtype_of_x(dtype: torch.dtype) -> None:
    """Codes are computed wide; the value comes back in the dtype of x."""
    scheme, qparams = Scheme(Int(8, signed=False), zero_point=ZeroPoint()), Affine(torch.tensor(0.037), torch.tensor(9.0))
    x = torch.linspace(-2, 12, 301).to(dtype)

    codes, exported = Fixed().export(qparams, x, scheme)

    assert torch.equal(dequantize(codes, exported, scheme).to(dtype), Fixed().apply(qparams, x, scheme))


def test_gradient_reaches_x_alone_and_only_inside() -> None:
    """1 where the code is in range, 0 where it saturates; qparams stay constants."""
    x = torch.tensor([-9.0, -4.26, -4.2, 0.3, 3.7, 3.8, 9.0], requires_grad=True)
    scale = torch.tensor(0.5, requires_grad=True)

    Fixed().apply(Affine(scale, torch.tensor(0.0)), x, Scheme(Int(4))).sum().backward()

    assert x.grad is not None
    assert x.grad.tolist() == [0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0]
    assert scale.grad is None


def test_training_does_not_change_the_qparams() -> None:
    """init hands the estimated qparams through; export gives them back."""
    qparams, scheme = Affine(torch.tensor(0.5), torch.tensor(0.0)), Scheme()
    function = Fixed()
    params = function.init(qparams, torch.zeros(1), scheme)

    assert params is qparams
    assert function.export(params, torch.zeros(1), scheme)[1] is qparams
    assert function == Fixed()
