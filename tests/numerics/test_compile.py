"""Fake quantization compiled, transformed, and both: the bits of eager mode and the gradient of the definition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from qfunc.numerics import Affine, fake_quantize
from qfunc.numerics._grads import masked_straight_through
from qfunc.specs import Int, Levels, Log, PerBlock, PerChannel, Scale, Scheme, ZeroPoint
from qfunc.specs.formats import E4M3FN
from qfunc.testing import oracle

# torch._dynamo itself instantiates any autograd.Function that it traces, and warns about it.
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")

AFFINE = Scheme(Int(4), zero_point=ZeroPoint())  # codes -8 to 7
QPARAMS = Affine(torch.tensor(0.5), torch.tensor(2.0))
X = torch.tensor([-9.0, -5.26, -5.25, -5.2, -0.3, 0.0, 0.25, 2.5, 2.74, 2.75, 2.76, 9.0])
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
SCHEMES = {
    "affine": AFFINE,
    "added before": Scheme(Int(4), zero_point=ZeroPoint(added="before")),
    "reciprocal": Scheme(Int(4), division=False),
    "channel": Scheme(Int(4), Scale(PerChannel(0)), ZeroPoint()),
    "block": Scheme(Int(4), Scale(PerBlock(1, 2))),
    "float": Scheme(E4M3FN),
    "levels": Scheme(Levels((-1.0, -0.25, 0.0, 0.5, 1.0))),
    "log": Scheme(Log()),
}


def qparams_for(scheme: Scheme, shape: tuple[int, ...] = (3, 4)) -> Affine:
    match scheme.scale.shared:
        case PerChannel():
            scale = torch.tensor([0.5, 0.25, 1.0]).reshape(3, 1)
        case PerBlock():
            scale = torch.tensor([[0.5, 0.25], [1.0, 0.75], [0.3, 2.0]])
        case _:
            scale = torch.tensor(0.5)
    return Affine(scale, torch.full_like(scale, 0.0 if scheme.symmetric else 2.0))


def by_definition(x: Tensor, scale: float = 0.5, zero: int = 2) -> list[float]:
    """1 where -8 <= R(x/s) + z <= 7, else 0."""
    return [float(-8 <= oracle.rounded(v / scale, "half_even") + zero <= 7) for v in x.tolist()]


def whole(f: Callable[..., Any], backend: str = "aot_eager") -> Any:
    torch.compiler.reset()  # one code object compiles for many schemes; its cache holds few
    return torch.compile(f, fullgraph=True, backend=backend)


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SCHEMES)
def test_compiled_equals_eager_in_every_format_and_dtype(name: str, dtype: torch.dtype) -> None:
    """One graph; values and gradients are those of eager mode, bit for bit, NaN and infinities included."""
    scheme = SCHEMES[name]
    qparams = qparams_for(scheme)
    values = torch.cat([X[:9], torch.tensor([torch.nan, torch.inf, -torch.inf])]).reshape(3, 4).to(dtype)
    x, y = (values.clone().requires_grad_() for _ in range(2))

    a, b = whole(lambda x: fake_quantize(x, qparams, scheme))(x), fake_quantize(y, qparams, scheme)
    a.sum().backward()
    b.sum().backward()

    assert a.dtype == b.dtype == dtype
    assert torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))
    assert x.grad is not None
    assert y.grad is not None
    assert torch.equal(x.grad, y.grad)
    assert 0 < int(y.grad.sum()) < 12


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # inductor's own use of it
def test_inductor_equals_eager() -> None:
    """A smoke test of the default backend: the same bits, the gradient of the definition."""
    x = X.clone().requires_grad_()
    value = whole(lambda x: fake_quantize(x, QPARAMS, AFFINE), "inductor")(x)
    value.sum().backward()

    assert torch.equal(value, fake_quantize(X, QPARAMS, AFFINE))
    assert x.grad is not None
    assert x.grad.tolist() == by_definition(X)


@pytest.mark.parametrize("name", ["grad", "grad(vmap)", "vmap(grad)", "vmap, then backward"])
def test_compiled_transforms_keep_the_gradient(name: str) -> None:
    """Inside transforms Dynamo differentiates an autograd.Function's forward: the gradient must be right there too."""
    f, held = torch.func, lambda x: fake_quantize(x, QPARAMS, AFFINE)

    def through_backward(x: Tensor) -> Tensor:
        leaf = x.clone().requires_grad_()
        value = whole(lambda v: f.vmap(held)(v))(leaf)
        return torch.autograd.grad(value.sum(), leaf)[0]

    found = {
        "grad": lambda x: whole(lambda v: f.grad(lambda u: held(u).sum())(v))(x),
        "grad(vmap)": lambda x: whole(lambda v: f.grad(lambda u: f.vmap(held)(u).sum())(v))(x),
        "vmap(grad)": lambda x: whole(lambda v: f.vmap(f.grad(held))(v))(x),
        "vmap, then backward": through_backward,
    }[name](X)

    assert found.tolist() == by_definition(X)


@pytest.mark.parametrize("shared", [None, PerChannel(0), PerBlock(0, 4)])
@pytest.mark.parametrize("symmetric", [True, False])
def test_vmap_over_scales_is_a_loop_and_its_gradient_too(symmetric: bool, shared: object) -> None:
    """Scales and zero points batched, x not: nothing may be overwritten that is not batched."""
    scheme = Scheme(Int(4), Scale() if shared is None else Scale(shared), None if symmetric else ZeroPoint())  # type: ignore[arg-type]
    shape = {None: (), PerChannel(0): (12,), PerBlock(0, 4): (3,)}[shared]  # type: ignore[index]
    scales = torch.stack([torch.full(shape, s) for s in (0.5, 0.25, 1.5)])
    zeros = torch.zeros_like(scales) if symmetric else torch.stack([torch.full(shape, z) for z in (2.0, -1.0, 0.0)])

    def held(x: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
        return fake_quantize(x, Affine(scale, zero), scheme)

    for over_zero in (0, None):
        zero = zeros if over_zero == 0 else zeros[0]
        found = torch.func.vmap(held, (None, 0, over_zero))(X, scales, zero)
        slope = torch.func.vmap(torch.func.grad(lambda *a: held(*a).sum()), (None, 0, over_zero))(X, scales, zero)
        for i in range(3):
            z = zero[i] if over_zero == 0 else zero
            assert torch.equal(found[i], held(X, scales[i], z))
            assert slope[i].tolist() == by_definition(X, float(scales[i].flatten()[0]), int(z.flatten()[0]))


def test_one_byte_an_element_is_kept_for_the_gradient() -> None:
    """The mask is all that backward needs: not x, not the codes."""
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):  # type: ignore[func-returns-value]
        fake_quantize(X.clone().requires_grad_(), QPARAMS, AFFINE)

    assert sum(t.numel() * t.element_size() for t in kept) == X.numel()


def test_no_mask_is_made_where_no_gradient_is_wanted() -> None:
    """In grad mode too, as long as x asks for none."""
    made: list[Tensor] = []
    held = lambda x, *_: (x * 2, x * 3)  # noqa: E731
    mask = lambda seen: made.append(seen) or seen > 0  # type: ignore[func-returns-value]  # noqa: E731
    scale, zero = torch.tensor(1.0), torch.tensor(0.0)

    assert torch.equal(masked_straight_through(X, held, mask, scale, zero, None), X * 2)
    assert not made
    x = X.clone().requires_grad_()
    masked_straight_through(x, held, mask, scale, zero, None).sum().backward()
    assert [m.tolist() for m in made] == [(X * 3).tolist()]
    assert torch.equal(x.grad, (X > 0).float())  # type: ignore[arg-type]


@pytest.mark.parametrize("scheme", [AFFINE, SCHEMES["block"]], ids=["tensor", "block"])
def test_x_and_qparams_keep_their_bits(scheme: Scheme) -> None:
    """What runs in place runs in tensors of its own; in a strided x as in a contiguous one."""
    qparams = qparams_for(scheme)
    x = X.reshape(4, 3).t()
    copies = [t.clone() for t in (x, *qparams[:2])]

    for wanted in (False, True):
        value = fake_quantize(x.detach().requires_grad_(wanted), qparams, scheme)
        assert torch.equal(value, fake_quantize(x.contiguous(), qparams, scheme))
        assert all(torch.equal(t, c) for t, c in zip((x, *qparams[:2]), copies, strict=True))
