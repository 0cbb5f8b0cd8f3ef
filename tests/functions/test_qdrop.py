"""QDrop against its equation: a choice for each element, and the mean over all noise."""

from __future__ import annotations

import re

import pytest
import torch

from qfunc.errors import SpecError
from qfunc.functions import AdaRound, Fixed, QDrop, Stochastic
from qfunc.numerics import Affine
from qfunc.numerics.noise import uniform
from qfunc.specs import Int, Scheme, ZeroPoint

U4 = Scheme(Int(4, signed=False), zero_point=ZeroPoint())
PARAMS = Affine(torch.tensor(0.5), torch.tensor(6.0))  # holds -3 to 4.5
X = torch.linspace(-5, 7, 481).reshape(13, 37)
NOISE = uniform((13, 37), torch.tensor(1), torch.tensor(0))


def by_hand(x: float, u: float, p: float) -> float:
    # Quantized where u < p; Python rounds halves to even, as the scheme does.
    return (min(max(round(x / 0.5) + 6, 0), 15) - 6) * 0.5 if u < p else x


@pytest.mark.parametrize("p", [1e-9, 0.1, 0.5, 1.0, 1])
def test_each_element_is_quantized_or_float(p: float) -> None:
    """Element by element; x itself, every bit, where it is not quantized."""
    found = QDrop(p=p).relax(PARAMS, X, U4, NOISE)
    threshold = float(torch.tensor(p))  # p as the float32 that the noise is compared with
    wanted = [by_hand(x, u, threshold) for x, u in zip(X.flatten().tolist(), NOISE.flatten().tolist(), strict=True)]

    assert found.flatten().tolist() == wanted


def test_gradient_follows_the_choice() -> None:
    """1 where x stays float, also outside the range; Fixed's mask where it is quantized."""
    x = X.clone().requires_grad_()
    upstream = torch.arange(481.0).reshape(13, 37)
    (found,) = torch.autograd.grad(QDrop().relax(PARAMS, x, U4, NOISE), x, upstream)
    code = torch.round(X / 0.5) + 6

    assert torch.equal(found, upstream * ((NOISE >= 0.5) | ((code >= 0) & (code <= 15))))
    assert ((NOISE >= 0.5) & (code > 15)).any()


def test_probability_one_is_the_inner_function() -> None:
    """So is what is deployed, for every p."""
    assert torch.equal(QDrop(p=1).relax(PARAMS, X, U4, NOISE), Fixed().apply(PARAMS, X, U4))
    assert torch.equal(QDrop(p=0.25).apply(PARAMS, X, U4), Fixed().apply(PARAMS, X, U4))
    assert torch.equal(QDrop(p=0.25).export(PARAMS, X, U4)[0], Fixed().export(PARAMS, X, U4)[0])
    assert QDrop().init(PARAMS, X, U4) is PARAMS


@pytest.mark.parametrize("p", [0.25, 0.5, 1.0])
def test_a_surrogate_inside_gets_noise_that_is_still_uniform(p: float) -> None:
    """QDrop(Stochastic()): over 1024 noise values the mean is p * x + (1 - p) * x = x, exactly inside the range."""
    x = torch.arange(-3, 4.5, 2.0**-6)
    function = QDrop(Stochastic(), p=p)
    values = [function.relax(PARAMS, x, U4, torch.full_like(x, k / 1024)).double() for k in range(1024)]

    assert torch.equal(torch.stack(values).mean(0), x.double())


@pytest.mark.parametrize("p", [0.1, 0.3, 1 / 3, 0.7])
def test_noise_for_the_inner_function_stays_below_one(p: float) -> None:
    """u/p at the largest u < p: Stochastic would move 3 to 4 by the noise 1."""
    threshold = torch.tensor(p)
    u = torch.nextafter(threshold, torch.tensor(0.0)).expand(3)
    x = torch.tensor([-1.0, 0.0, 3.0])

    assert torch.equal(QDrop(Stochastic(), p=p).relax(PARAMS, x, U4, u), x)


def test_adaround_inside_keeps_its_parameters() -> None:
    """What trains is named by the inner function."""
    function = QDrop(AdaRound())
    params = function.init(PARAMS, X, U4)
    soft = AdaRound().relax(params, X, U4)

    assert function.learned(U4) == ("v",)
    assert torch.equal(function.relax(params, X, U4, NOISE), torch.where(NOISE < 0.5, soft, X))


@pytest.mark.parametrize(("p", "shown"), [(0, "0"), (0.0, "0.0"), (1.5, "1.5"), (True, "True"), (float("nan"), "nan")])
def test_a_probability_is_in_its_interval(p: float, shown: str) -> None:
    """0 would never quantize anything."""
    wanted = f"QDrop.p: found {shown}, wanted a number in (0, 1]. Give such a number."
    with pytest.raises(SpecError, match=f"^{re.escape(wanted)}$"):
        QDrop(p=p)
