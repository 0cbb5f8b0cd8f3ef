"""NNIE's logarithmic quantizer against the vendor's formula, number by number."""

from __future__ import annotations

import math
import re

import pytest
import torch

from qfunc.errors import SpecError
from qfunc.functions import Fixed, NnieLog
from qfunc.numerics import Affine, from_range
from qfunc.specs import Int, Log, PerChannel, Scale, Scheme

SCHEME = Scheme(Log())


def by_hand(x: float, z: int) -> float:
    # User guide, hardware/nnie: 128 magnitudes a sign in 1/16 octaves, in float64.
    if x >= 2 ** (z / 16 - 1):
        return 2 ** ((min(max(round(16 * math.log2(x)) - z, 0), 127) + z) / 16)
    if x <= -(2 ** ((z + 1) / 16 - 1)):
        return -(2 ** ((min(max(round(16 * math.log2(-x)) - z, 1), 127) + z) / 16))
    return 0.0


@pytest.mark.parametrize("top", [0.3, 1.0, 7.5, 2.0**20])
def test_values_are_the_vendors(top: float) -> None:
    """On both signs, across the range, around the smallest magnitudes and beyond the largest."""
    params = from_range(torch.tensor(-top), torch.tensor(top), SCHEME)
    z = round(16 * math.log2(top)) - 127
    steps = torch.arange(-40, 160).double()
    x = torch.exp2((z + steps + 0.23) / 16).float()
    x = torch.cat([x, -x, torch.zeros(1)])
    found = NnieLog().apply(params, x, SCHEME)

    wanted = torch.tensor([by_hand(v, z) for v in x.tolist()])  # rounded to float32 once
    # exp2 of two libraries may differ by an ulp of float64, which shows in float32 at a tie only: an ulp.
    assert ((found - wanted).abs() <= 2.0**-23 * wanted.abs()).all()
    assert torch.equal(found == 0, wanted == 0)


def test_gradient_is_one_everywhere() -> None:
    """Also at 0 and where x saturates; Fixed() cuts it there."""
    params = Affine(torch.tensor(2.0**-6), torch.tensor(0.0))
    x = torch.tensor([-300.0, -1.0, -1e-9, 0.0, 0.5, 300.0], requires_grad=True)
    upstream = torch.arange(1.0, 7.0)

    assert torch.equal(torch.autograd.grad(NnieLog().apply(params, x, SCHEME), x, upstream)[0], upstream)
    cut = torch.autograd.grad(Fixed().apply(params, x, SCHEME), x, upstream)[0]
    assert cut.tolist() == [0.0, 2.0, 3.0, 4.0, 5.0, 0.0]


def test_infinities_saturate_and_nan_stays() -> None:
    """The largest magnitude of either sign."""
    params = Affine(torch.tensor(2.0**-6), torch.tensor(0.0))
    found = NnieLog().apply(params, torch.tensor([torch.inf, -torch.inf, torch.nan]), SCHEME)

    assert found[0] == -found[1]
    assert float(found[0]) == pytest.approx(2 ** (31 / 16), rel=2.0**-23)
    assert found[2].isnan()


@pytest.mark.parametrize("scale", [Scale(), Scale(PerChannel(0))])
def test_other_formats_are_refused(scale: Scale) -> None:
    """With the cure."""
    wanted = "NnieLog: found Int(8), wanted a Log format. Use Fixed() for this format."
    with pytest.raises(SpecError, match=f"^{re.escape(wanted)}$"):
        NnieLog().init(Affine(torch.tensor(1.0), torch.tensor(0.0)), torch.ones(3), Scheme(Int(8), scale))
