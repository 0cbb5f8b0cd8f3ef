"""Compiled gradients of torch.func are those of eager mode, or an error that says so: Dynamo knows one kind of derivative."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import qfunc
from qfunc import recipes, targets
from qfunc.functions import Fixed, Lsq, Pact
from qfunc.numerics import Affine
from qfunc.specs import Int, Scheme, ZeroPoint

# torch._dynamo itself instantiates any autograd.Function that it traces, and warns about it.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning"),  # torch's own, in forward mode
]

SCHEME = Scheme(Int(8, signed=False), zero_point=ZeroPoint())
X = torch.linspace(-50, 60, 15).reshape(5, 3)
FIXED, LSQ, PACT = Fixed(), Lsq(), Pact()
PARAMS = {f: f.init(Affine(torch.tensor(0.125), torch.tensor(7.0)), X, SCHEME) for f in (FIXED, LSQ, PACT)}


def loss_of(function: Any, computed: bool) -> Callable[..., Tensor]:
    """A loss of x and what trains: of the function's own arguments, or of what was computed of them."""
    params = PARAMS[function]
    names = function.learned(SCHEME) if hasattr(function, "learned") else ()
    factor = 1.5 if computed else None

    def loss(x: Tensor, *learned: Tensor) -> Tensor:
        x, *now = (x, *learned) if factor is None else [factor * t for t in (x, *learned)]
        return function.apply(params._replace(**dict(zip(names, now, strict=True))), x, SCHEME).square().sum()  # type: ignore[no-any-return]

    return loss


def arguments(function: Any) -> tuple[Tensor, ...]:
    names = function.learned(SCHEME) if hasattr(function, "learned") else ()
    return (X, *(getattr(PARAMS[function], name) for name in names))


def compiled(f: Callable[..., Any]) -> Callable[..., Any]:
    torch.compiler.reset()
    return torch.compile(f, fullgraph=True, backend="aot_eager")


@pytest.mark.thorough
@pytest.mark.parametrize(("function", "computed"), [(FIXED, True), (LSQ, False), (LSQ, True), (PACT, False)])
def test_first_derivatives(function: Any, computed: bool) -> None:
    """grad, of what is given and of what was computed; 0 is what Dynamo made of them."""
    given = arguments(function)
    gradient = torch.func.grad(loss_of(function, computed), tuple(range(len(given))))
    wanted = gradient(*given)
    assert all(bool(want.any()) for want in wanted[:2])  # of x, and of a scale or bound
    for found, want in zip(compiled(gradient)(*given), wanted, strict=True):
        torch.testing.assert_close(found, want, rtol=1e-6, atol=1e-6)  # sums of 15 in another order


OTHERS: dict[str, Callable[[Callable[..., Tensor]], Callable[..., Any]]] = {
    "of a derivative": lambda loss: torch.func.grad(lambda *a: torch.func.grad(loss)(*a).sum()),
    "in a vmap": lambda loss: torch.func.vmap(torch.func.grad(loss), (0, None)),
    "forward mode": lambda loss: lambda *a: torch.func.jvp(loss, a, a),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", OTHERS)
def test_other_derivatives_are_refused(name: str) -> None:
    """With the cure; a vmap alone is none of them."""
    given = arguments(LSQ)
    with pytest.raises(Exception, match=r"found forward mode, a derivative of a derivative, or .* Remove torch.compile:"):
        compiled(OTHERS[name](loss_of(LSQ, True)))(*given)
    rows = torch.func.vmap(loss_of(LSQ, True), (0, None))
    torch.testing.assert_close(compiled(rows)(*given), rows(*given))


def test_a_model_called_with_its_parameters() -> None:
    """In training, where compiled quantized tensors are computed again but for torch.func."""
    torch.manual_seed(0)
    quantized = qfunc.quantize(recipes.lsq()(targets.tensorrt))(torch.nn.Linear(3, 4))
    model = qfunc.calibrate([X], progress=False)(quantized).train()
    given = dict(model.named_parameters())
    gradient = torch.func.grad(lambda p: torch.func.functional_call(model, p, (X,)).square().mean())  # type: ignore[no-untyped-call]
    found = compiled(gradient)(given)
    for name, value in gradient(given).items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-7, msg=name)  # sums of 15 in another order
