"""The straight-through gradient, under autograd, torch.func and torch.compile."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from qfunc.functions import Fixed, Lsq
from qfunc.functions.lsq import Learned
from qfunc.numerics import Affine, fake_quantize
from qfunc.specs import Int, PerBlock, PerChannel, Scale, Scheme, ZeroPoint
from qfunc.testing import oracle

SCHEME = Scheme(Int(4), zero_point=ZeroPoint())  # codes -8 to 7
QPARAMS = Affine(torch.tensor(0.5), torch.tensor(2.0))  # holds -5 to 2.5
X = torch.tensor([-9.0, -5.26, -5.25, -5.2, -0.3, 0.0, 0.25, 2.5, 2.74, 2.75, 2.76, 9.0])


def held(x: Tensor) -> Tensor:
    return fake_quantize(x, QPARAMS, SCHEME)


def by_definition() -> list[float]:
    # 1 where qmin <= R(x/s) + z <= qmax, else 0
    return [float(-8 <= oracle.rounded(v / 0.5, "half_even") + 2 <= 7) for v in X.tolist()]


def test_gradient_is_one_inside_and_zero_outside() -> None:
    """By definition, on both sides of both ends; the value does not depend on whether a gradient is wanted."""
    x = X.clone().requires_grad_()
    value = held(x)
    (gradient,) = torch.autograd.grad(value, x, torch.arange(1.0, 13.0))

    assert gradient.tolist() == [g * w for g, w in zip(by_definition(), range(1, 13), strict=True)]
    assert sum(by_definition()) == 7
    with torch.no_grad():
        assert torch.equal(held(X), value)


def test_surrogate_gradient_is_the_slope_of_the_clipped_identity() -> None:
    """Gradcheck's numeric slope of clamp(x, -5, 2.5), away from the half code by which saturation comes later."""
    inside = (X < -5.5) | ((X > -5) & (X < 2.5)) | (X > 3)
    x = X[inside].double().requires_grad_()
    (gradient,) = torch.autograd.grad(fake_quantize(x, QPARAMS, SCHEME).sum(), x)
    clipped = lambda v: v.clamp(-5.0, 2.5)  # noqa: E731
    slope = (clipped(x + 1e-3) - clipped(x - 1e-3)) / 2e-3

    # The slope of a piecewise linear function has only rounding error: 2^-53 * 9 / 1e-3 < 1e-11.
    assert (gradient - slope).abs().max() < 1e-11


@pytest.mark.parametrize("name", ["grad", "vmap(grad)", "grad(vmap)", "vmap", "jacrev"])
def test_torch_func_agrees_with_autograd(name: str) -> None:
    """grad of vmap sees requires_grad == False inside; the gradient must not vanish."""
    expected, f = torch.tensor(by_definition()), torch.func
    found = {
        "grad": lambda: f.grad(lambda x: held(x).sum())(X),
        "vmap(grad)": lambda: f.vmap(f.grad(held))(X),
        "grad(vmap)": lambda: f.grad(lambda x: f.vmap(held)(x).sum())(X),
        "vmap": lambda: f.vmap(held)(X) - held(X) + expected,
        "jacrev": lambda: f.jacrev(held)(X).diagonal(),
    }[name]()

    assert torch.equal(found, expected)


@pytest.mark.thorough
# torch._dynamo itself instantiates any autograd.Function that it traces, and warns about it.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("shared", [None, PerChannel(0), PerBlock(1, 4)])
@pytest.mark.parametrize("rounding", oracle.MODES)
def test_compiles_whole_with_equal_values_and_gradients(rounding: str, shared: object) -> None:
    """One graph, no breaks; the same bits."""
    scale = Scale() if shared is None else Scale(shared)  # type: ignore[arg-type]
    scheme = Scheme(Int(4), scale, zero_point=ZeroPoint(), rounding=rounding)
    shape = () if shared is None else (3, 1)
    qparams = Affine(torch.full(shape, 0.3), torch.full(shape, 1.0))
    function = Fixed()
    torch.compiler.reset()  # one code object compiles for many schemes; its cache holds few
    compiled = torch.compile(lambda x: function.apply(qparams, x, scheme), fullgraph=True, backend="aot_eager")
    x, y = (X.reshape(3, 4).clone().requires_grad_() for _ in range(2))

    a, b = compiled(x), fake_quantize(y, qparams, scheme)
    a.sum().backward()
    b.sum().backward()

    assert torch.equal(a, b)
    assert x.grad is not None
    assert y.grad is not None
    assert torch.equal(x.grad, y.grad)


def test_no_gradient_without_grad_mode_and_x_is_untouched() -> None:
    """Under no_grad nothing is recorded; x keeps its bits and its own storage."""
    x = X.clone().requires_grad_()
    with torch.no_grad():
        value = held(x)

    assert not value.requires_grad
    assert value.data_ptr() != x.data_ptr()
    assert torch.equal(x.detach(), X)


def test_functions_with_a_gradient_store_their_signature() -> None:
    """`autograd.Function.apply` would otherwise build it in each call: a fifth of the Python calls of a small step."""
    built = 0

    def count(frame: Any, event: str, _: Any) -> None:
        nonlocal built
        built += event == "call" and frame.f_code is inspect.Signature.__init__.__code__

    x, scale = torch.randn(3, requires_grad=True), torch.tensor(0.1, requires_grad=True)
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        fake_quantize(x, Affine(scale, torch.tensor(0.0)), Scheme())
        Lsq().apply(Learned(scale, torch.tensor(0.0)), x, Scheme())
    finally:
        sys.setprofile(before)
    assert built == 0
