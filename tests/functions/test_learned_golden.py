"""The learned functions beside MQBench's own quantizers; where they differ, the test says which defect it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from qfunc.functions import DoReFa, Dsq, Fixed, Lsq, LsqPlus, Pact, Tqt
from qfunc.numerics import Affine
from qfunc.specs import Int, PerChannel, Scale, Scheme, ZeroPoint

GOLDEN = Path(__file__).parent.parent / "golden"
ROWS = {row["key"]: row for row in json.loads((GOLDEN / "mqbench_functions.json").read_text())["rows"]}
ARRAYS = np.load(GOLDEN / "mqbench_functions.npz")
X = torch.from_numpy(ARRAYS["w"]) * 1.05
GRAD = torch.linspace(-1, 1, X.numel()).reshape(X.shape)


def scheme_of(row: dict[str, Any], divisor: str = "qmax", division: bool = False) -> Scheme:
    """MQBench's scheme; torch's kernels multiply by 1/s."""
    given = row["scheme"]
    scale = Scale(*([PerChannel(0)] if given["per_channel"] else []), divisor=divisor if given["symmetry"] else "qmax")
    zero = None if given["symmetry"] else ZeroPoint()
    return Scheme(Int(given["bit"], signed=given["symmetry"]), scale, zero, division=division)


def qparams_of(row: dict[str, Any]) -> Affine:
    shape = (6, 1, 1, 1) if row["scheme"]["per_channel"] else ()
    return Affine(torch.tensor(row["scale"]).reshape(shape), torch.tensor(row["zp"]).reshape(shape))


def run(function: Any, row: dict[str, Any], scheme: Scheme) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """(y, d/dx, d/d parameters) for MQBench's upstream gradient."""
    x, params = X.clone().requires_grad_(), function.init(qparams_of(row), X, scheme)
    names = function.learned(scheme) if hasattr(function, "learned") else ()
    leaves = {n: getattr(params, n).clone().requires_grad_() for n in names}
    y = function.apply(params._replace(**leaves), x, scheme)
    y.backward(GRAD)
    assert x.grad is not None
    return y.detach(), x.grad, {n: p.grad for n, p in leaves.items() if p.grad is not None}


def theirs(key: str) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(ARRAYS[f"{key}_y"]), torch.from_numpy(ARRAYS[f"{key}_gx"])


def same(found: Tensor, expected: Tensor) -> None:
    """The gradient passes at the same elements; torch.linspace(-1, 1) itself is an ulp off between versions."""
    assert torch.equal(found == 0, expected == 0)
    torch.testing.assert_close(found, expected, rtol=0, atol=2**-23)


@pytest.mark.parametrize("key", ["FixedFakeQuantize_t8a_w", "FixedFakeQuantize_c4a_w"])
def test_fixed(key: str) -> None:
    """Bit for bit."""
    y, dx, _ = run(Fixed(), ROWS[key], scheme_of(ROWS[key]))

    assert torch.equal(y, theirs(key)[0])
    same(dx, theirs(key)[1])


@pytest.mark.parametrize("kind", [Lsq, LsqPlus])
@pytest.mark.parametrize("tag", ["t8s", "t8a", "c8s", "c4a"])
def test_lsq(tag: str, kind: Any) -> None:
    """Values agree; MQBench masks by the rounded code, the paper by x/s: they differ within half a code of the ends."""
    key = f"LearnableFakeQuantize_{tag}_w"
    row = ROWS[key]
    # torch's kernel per tensor multiplies by 1/s, MQBench's own per channel divides.
    scheme = scheme_of(row, division=row["scheme"]["per_channel"])
    qparams, fmt = qparams_of(row), scheme.format
    assert isinstance(fmt, Int)
    y, dx, found = run(kind(), row, scheme)

    t = X / qparams.scale + qparams.zero_point
    code = torch.round(X / qparams.scale) + qparams.zero_point
    between = ((t <= fmt.qmin) & (code >= fmt.qmin)) | ((t >= fmt.qmax) & (code <= fmt.qmax))
    # x/s + round(z) before rounding (per channel) against R(x/s) + z: the same for these, none is a tie.
    torch.testing.assert_close(y, theirs(key)[0], rtol=2**-22, atol=0)  # (q - z) s, in another order
    same(dx[~between], theirs(key)[1][~between])
    assert dx[between].abs().sum() == 0

    count = X.numel() // qparams.scale.numel()
    g = (count * fmt.qmax) ** -0.5
    shape = qparams.scale.shape
    axes = [1, 2, 3] if shape else [0, 1, 2, 3]
    # There the paper gives qmin - z or qmax - z, they give that less x/s; LSQ+ counts from its own offset.
    moved = torch.where(between, X / qparams.scale, 0.0) * GRAD
    if kind is LsqPlus and not scheme.symmetric:
        outside = (t <= fmt.qmin) | (t >= fmt.qmax)
        moved = moved + torch.where(outside, GRAD, 0.0) * qparams.zero_point
        gzp = torch.tensor(row["gzp"]).reshape(shape) / -qparams.scale
        extra = (torch.where(between, GRAD, 0.0)).sum(axes, keepdim=bool(shape)) * g
        # Sums of 27 or 162 float32 numbers up to 1.
        torch.testing.assert_close(found["beta"], gzp + extra, rtol=1e-4, atol=1e-5)
    expected = torch.tensor(row["gscale"]).reshape(shape) + moved.sum(axes, keepdim=bool(shape)) * g
    # Sums of terms up to 128 in float32: 2^-24 * 128 * 162 * g.
    torch.testing.assert_close(found["scale"], expected, rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("tag", ["t8s", "t8a"])
def test_pact(tag: str) -> None:
    """Their forward with alpha = 6.0; theirs gives alpha no gradient in training, ours does (tested elsewhere)."""
    key = f"PACTFakeQuantize_{tag}_w"
    scheme = scheme_of(ROWS[key], divisor="half_range")
    y, dx, found = run(Pact(6.0), ROWS[key], scheme)

    assert Pact(6.0).export(Pact(6.0).init(qparams_of(ROWS[key]), X, scheme), X, scheme)[1].scale.item() == pytest.approx(
        ROWS[key]["scale"][0], rel=2**-22
    )
    torch.testing.assert_close(y, theirs(key)[0], rtol=2**-22, atol=0)
    same(dx, theirs(key)[1])
    assert found["alpha"].item() == 0  # nothing reaches 6


@pytest.mark.parametrize("tag", ["t4s", "t4a"])
def test_dsq(tag: str) -> None:
    """The same staircase and slope for alpha = 0.4; theirs keeps its bounds and alpha fixed, the paper trains them."""
    key = f"DSQFakeQuantize_{tag}_w"
    y, dx, found = run(Dsq(), ROWS[key], scheme_of(ROWS[key], division=True))

    torch.testing.assert_close(y, theirs(key)[0], rtol=2**-22, atol=0)
    # tanh and its argument in float32, scaled by k = 1.4 and s = 1.7.
    torch.testing.assert_close(dx, theirs(key)[1], rtol=1e-4, atol=1e-5)
    assert set(found) == ({"width", "alpha"} if tag == "t4s" else {"low", "high", "alpha"})


@pytest.mark.parametrize("tag", ["t8sp", "t4s"])
def test_tqt(tag: str) -> None:
    """Value and gradient to x agree bit for bit; their threshold gets no gradient, the paper's does."""
    key = f"TqtFakeQuantize_{tag}_w"
    y, dx, found = run(Tqt(), ROWS[key], scheme_of(ROWS[key], division=True))

    assert torch.equal(y, theirs(key)[0])
    same(dx, theirs(key)[1])
    assert found["log2_t"].item() != 0
    assert ROWS[key]["gscale"] is None


def test_dorefa() -> None:
    """Theirs divides by the maximum plus 1e-5: values differ by 1e-5, so that a code may differ near a tie."""
    key = "DoReFaFakeQuantize_t8s_w"
    y, dx, _ = run(DoReFa(), ROWS[key], scheme_of(ROWS[key], divisor="half_range"))

    step, largest = 1 / 127.5, torch.tanh(X).abs().amax()
    other = (y - theirs(key)[0]).abs()
    assert other.max() < step * (1 + 1e-3)
    assert (other > 1e-4).float().mean() < 0.02  # 1e-5 * 127.5 codes: one in 400 is that near to a tie
    rest = torch.tanh(X).abs() < largest  # the largest gets its gradient through the maximum as well, theirs is clipped
    torch.testing.assert_close(dx[rest], theirs(key)[1][rest], rtol=1e-4, atol=1e-7)  # 1e-5 of the maximum
