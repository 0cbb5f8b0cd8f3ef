"""Signed scales, codes that are never negative, the largest powers of two, ragged blocks: schemes at their ends."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from qfunc.errors import SpecError
from qfunc.functions import Dsq, Lsq, Pact, Tqt, with_gradient
from qfunc.numerics import Affine, fake_quantize, from_range, quantize
from qfunc.specs import Int, PerBlock, PerChannel, Scale, Scheme
from qfunc.testing import check_function
from tests.functions.test_with_gradient import held, lsq

SIGNED = Scheme(Int(4), Scale(signed=True, divisor="-qmin"))


@pytest.mark.parametrize("function", [Tqt(), Pact()])
def test_a_magnitude_has_no_sign_to_learn(function: Any) -> None:
    """Where the scale keeps the extreme's sign, the functions that learn a threshold say so."""
    qparams = from_range(torch.tensor(-1.0), torch.tensor(2.0), SIGNED)
    with pytest.raises(SpecError) as caught:
        function.init(qparams, torch.zeros(3), SIGNED)
    assert str(caught.value) == (
        f"{type(function).__name__}, scheme.scale: found signed=True, wanted a scale without a sign. Use Fixed() or Lsq()."
    )


@pytest.mark.parametrize("function", [Lsq(), Dsq()])
def test_a_negative_scale_holds_its_extreme(function: Any) -> None:
    """GGUF's rule: the extreme 2 is code -8 of the scale -1/4."""
    qparams = from_range(torch.tensor(-1.0), torch.tensor(2.0), SIGNED)
    assert qparams.scale.item() == -0.25
    x = torch.tensor([2.0, -1.0, 0.3])
    assert function.apply(function.init(qparams, x, SIGNED), x, SIGNED).tolist() == [2.0, -1.0, 0.25]


@pytest.mark.parametrize("shared", [None, PerChannel(0)])
def test_codes_that_are_never_negative_hold_nothing_below_zero(shared: Any) -> None:
    """The scale is that of the upper end, as with a zero point fixed at qmin."""
    scheme = Scheme(Int(8, signed=False), Scale(shared) if shared else Scale())
    low, high = torch.tensor(-10.0), torch.tensor(2.55)
    assert from_range(low, high, scheme).scale.item() == torch.tensor(0.01).item()


def test_a_scheme_without_positive_codes_needs_another_divisor() -> None:
    """qmax = 0 would divide by nothing."""
    fmt = Int(4, low=-7, high=0)
    with pytest.raises(SpecError) as caught:
        Scheme(fmt)
    assert str(caught.value) == (
        f"Scheme.scale.divisor: found 'qmax', wanted a divisor above 0, unlike the qmax of {fmt!r}. "
        'Give divisor="-qmin" or a zero point.'
    )
    assert Scheme(fmt, Scale(divisor="-qmin")).format == fmt


@pytest.mark.parametrize("rounding", ["ceil", "floor", "half_even"])
def test_the_largest_power_of_two_is_finite(rounding: str) -> None:
    """2^127 is the last of float32."""
    scheme = Scheme(Int(2), Scale(power_of_two=True, rounding=rounding))
    assert from_range(torch.tensor(-3e38), torch.tensor(3e38), scheme).scale.item() == 2.0**127


def test_only_a_scale_that_requires_gradients_gets_none() -> None:
    """Fixed qparams stay out of the graph, so backward says so in torch's own words."""
    scale = torch.tensor(0.5, requires_grad=True)
    value = fake_quantize(torch.randn(3), Affine(scale, torch.tensor(0.0)), Scheme())
    assert not value.requires_grad
    x = torch.randn(3, requires_grad=True)
    fake_quantize(x, Affine(scale, torch.tensor(0.0)), Scheme()).sum().backward()
    assert scale.grad is None
    assert x.grad is not None


def test_blocks_that_do_not_divide_the_axis_are_refused() -> None:
    """By name, before any tensor is viewed."""
    scheme = Scheme(scale=Scale(PerBlock(-1, 32)))
    with pytest.raises(SpecError) as caught:
        quantize(torch.zeros(2, 33), Affine(torch.ones(2, 1), torch.zeros(2, 1)), scheme)
    assert str(caught.value) == (
        "Scale.shared: found PerBlock(-1, size=32) on shape (2, 33), "
        "wanted an axis of the tensor that the block size divides. Use an axis of the tensor and a size that divides it."
    )


def test_a_function_of_ones_own_prints_names_and_keeps_the_laws() -> None:
    """Its repr has no address; the gradient is LSQ's as a user writes it."""
    function = with_gradient(held, lsq, trains=("scale",))
    here = "tests.functions.test_with_gradient"
    assert repr(function) == f"WithGradient(forward={here}.held, backward={here}.lsq, trains=('scale',))"
    check_function(function, schemes=[Scheme(Int(4))], examples=1, exempt=JSON)


JSON = {"value": "its JSON names functions of a test, which from_json is to be given"}
