"""with_gradient: a user's own value and backward."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

from qfunc.errors import SpecError
from qfunc.functions import Lsq, with_gradient
from qfunc.functions.own_gradient import WithGradient
from qfunc.numerics import Affine, dequantize
from qfunc.specs import Int, PerBlock, PerChannel, Scale, Scheme, ZeroPoint, from_json, to_json

U4 = Scheme(Int(4, signed=False), zero_point=ZeroPoint())


def held(x: Tensor, scale: Tensor, zero_point: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """x_hat by clipping to the real bounds."""
    return (torch.round(torch.clamp(x, low, high) / scale + zero_point) - zero_point) * scale


def slopes(grad: Tensor, x: Tensor, scale: Tensor, zero_point: Tensor, low: Tensor, high: Tensor) -> tuple[Any, ...]:
    """Whole numbers that tell who got what: 3 g to x, 5 g to the scale, 7 g to z, g below low and above high."""
    return 3 * grad, 5 * grad, 7 * grad, grad * (x < low), grad * (x > high)


def own_shape(grad: Tensor, x: Tensor, scale: Tensor, *rest: Tensor) -> tuple[Any, ...]:
    """Gradients in the parameter's shape, and none."""
    return None, (grad * x).sum(), None, None, None


def lsq(grad: Tensor, x: Tensor, scale: Tensor, zero_point: Tensor, low: Tensor, high: Tensor) -> tuple[Any, ...]:
    """LSQ's, as a user writes it."""
    v = x / scale
    inside = (x > low) & (x < high)
    level = torch.where(inside, torch.round(v) - v, torch.where(x <= low, low / scale, high / scale))
    return grad * inside, grad * level, None, None, None


def two(grad: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
    """Too few."""
    return grad, grad


def trained(function: WithGradient, scheme: Scheme, qparams: Affine, x: Tensor) -> tuple[Tensor, dict[str, Tensor | None]]:
    params = function.init(qparams, x, scheme)
    leaves = {n: getattr(params, n).clone().requires_grad_() for n in function.learned(scheme)}
    x = x.clone().requires_grad_()
    value = function.apply(params._replace(**leaves), x, scheme)
    found = torch.autograd.grad(value.sum(), (x, *leaves.values()), allow_unused=True)
    return value.detach(), {"x": found[0], **dict(zip(leaves, found[1:], strict=True))}


def test_every_parameter_gets_what_the_backward_says() -> None:
    """x, scale, zero point and both bounds; per element gradients are summed over what shares them."""
    x = torch.tensor([-9.0, -1.1, 0.3, 1.0, 9.0, 10.0])
    value, found = trained(with_gradient(held, slopes), U4, Affine(torch.tensor(0.5), torch.tensor(3.0)), x)

    assert value.tolist() == [-1.5, -1.0, 0.5, 1.0, 6.0, 6.0]
    assert found["x"] is not None
    assert found["x"].tolist() == [3.0] * 6
    assert {n: g.item() for n, g in found.items() if n != "x" and g is not None} == {
        "scale": 30.0, "zero_point": 42.0, "low": 1.0, "high": 2.0,
    }  # fmt: skip


@pytest.mark.parametrize("shared", [PerChannel(0), PerBlock(1, 2)])
def test_shared_parameters_get_their_own_sums(shared: Any) -> None:
    """Per channel and per block, with parameters that broadcast in the user's functions."""
    x = torch.arange(12.0).reshape(3, 4) - 5
    scheme = Scheme(Int(4), Scale(shared))
    shape = (3, 1) if shared == PerChannel(0) else (3, 2)
    value, found = trained(with_gradient(held, slopes), scheme, Affine(torch.full(shape, 0.5), torch.zeros(shape)), x)

    count = 12 // torch.Size(shape).numel()
    assert "zero_point" not in found  # the scheme has none to choose
    assert torch.equal(value, (x / 0.5).clamp(-8, 7) * 0.5)
    assert found["scale"] is not None
    assert torch.equal(found["scale"], torch.full(shape, 5.0 * count))


def test_gradients_may_come_in_the_parameters_shape_or_not_at_all() -> None:
    """A scalar is not summed again; None is no gradient."""
    x = torch.tensor([1.0, 2.0, 4.0])
    _, found = trained(with_gradient(held, own_shape), U4, Affine(torch.tensor(0.5), torch.tensor(3.0)), x)

    assert found["x"] is found["low"] is found["high"] is found["zero_point"] is None
    assert found["scale"] is not None
    assert found["scale"].item() == 7.0


def test_lsq_written_by_a_user_is_lsq() -> None:
    """Value, gradient to x, and (to the order of a float32 sum) to the scale."""
    scheme, x = Scheme(Int(4)), torch.randn(50, generator=torch.Generator().manual_seed(0))
    qparams, own = Affine(torch.tensor(0.13), torch.tensor(0.0)), with_gradient(held, lsq, trains=("scale",))
    value, found = trained(own, scheme, qparams, x)
    params = Lsq(False).init(qparams, x, scheme)
    scale, leaf = params.scale.clone().requires_grad_(), x.clone().requires_grad_()
    expected = Lsq(False).apply(params._replace(scale=scale), leaf, scheme)
    expected.sum().backward()

    assert torch.equal(value, expected)
    assert leaf.grad is not None
    assert torch.equal(found["x"], leaf.grad)  # type: ignore[arg-type]
    torch.testing.assert_close(found["scale"], scale.grad, rtol=1e-5, atol=1e-5)


def test_what_trained_parameters_hold_is_what_the_hardware_holds() -> None:
    """A negative scale, a zero point between two codes: export still gives the codes of apply, bit for bit."""
    function, x = with_gradient(held, slopes), torch.randn(3, 40, generator=torch.Generator().manual_seed(1))
    params = function.init(Affine(torch.tensor(0.3), torch.tensor(3.0)), x, U4)
    params = params._replace(scale=torch.tensor(-0.21), zero_point=torch.tensor(6.6))

    codes, exported = function.export(params, x, U4)

    assert (exported.scale.item(), exported.zero_point.item()) == (torch.tensor(0.21).item(), 7.0)
    assert torch.equal(dequantize(codes, exported, U4), function.apply(params, x, U4))


def test_it_is_a_value() -> None:
    """Compares, hashes, pickles, and serialises with its functions' names."""
    function = with_gradient(held, slopes)

    assert function == with_gradient(held, slopes) != with_gradient(held, lsq)
    assert hash(function) == hash(with_gradient(held, slopes))
    assert pickle.loads(pickle.dumps(function)) == function
    assert from_json(to_json(function), classes=(held, slopes)) == function


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: with_gradient(lambda x, *rest: x, slopes), "<lambda>, a function without a module-level name. Define"),
        (lambda: with_gradient(held, 3), "a frozen callable value. Write a function of x and the parameters."),  # type: ignore[arg-type]
        (lambda: with_gradient(held, Lsq), "Call it: Lsq()."),  # type: ignore[arg-type]
        (lambda: with_gradient(held, slopes, trains=("scales",)),
         "WithGradient.trains: found ('scales',), wanted different names among 'scale', 'zero_point', 'low', 'high'."),
        (lambda: trained(with_gradient(held, two), U4, Affine(torch.tensor(0.5), torch.tensor(3.0)), torch.ones(2)),
         "with_gradient, backward: found 2 values, wanted (dx, dscale, dzero_point, dlow, dhigh)."
         " Return None for each tensor without a gradient."),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_or_is_incomplete_is_refused(make: Any, message: str) -> None:
    """Lambdas, values that are no functions, unknown names, a backward that forgot a parameter."""
    with pytest.raises(SpecError) as caught:
        make()
    assert message in str(caught.value)


# torch._dynamo itself instantiates any autograd.Function that it traces, and warns about it.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_it_traces_and_maps() -> None:
    """torch.compile of the whole, vmap of grad over scales: the loop's numbers."""
    function, x = with_gradient(held, lsq), torch.linspace(-3, 3, 20)
    params = function.init(Affine(torch.tensor(0.5), torch.tensor(3.0)), x, U4)

    def loss(scale: Tensor) -> Tensor:
        return (function.apply(params._replace(scale=scale), x, U4) * x).sum()

    scales = torch.tensor([0.3, 0.5, 0.7])
    each = torch.stack([torch.func.grad(loss)(s) for s in scales])
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(loss))(scales), each, rtol=1e-5, atol=1e-5)  # order of sums
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    scale = torch.tensor(0.5, requires_grad=True)
    (found,) = torch.autograd.grad(compiled(scale), scale)
    assert found == each[1]
