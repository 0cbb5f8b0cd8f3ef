"""Tensors that are large enough to be gone through in parts, in every order that their memory can have."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from qfunc.functions import Lsq, LsqPlus, Pact, QDrop, Tqt
from qfunc.functions import _steps as steps
from qfunc.numerics.qparams import Affine
from qfunc.specs import Int, Scale, Scheme, ZeroPoint

FREE = Scheme(Int(8, signed=False), zero_point=ZeroPoint())
PLAIN = Scheme(Int(4))
FUNCTIONS: dict[str, tuple[Any, Scheme]] = {
    "lsq": (Lsq(batch_axis=0), FREE),
    "lsq, symmetric": (Lsq(), PLAIN),
    "lsq_plus": (LsqPlus(batch_axis=0), FREE),
    "pact": (Pact(alpha=1.5), Scheme(Int(4, signed=False))),
    "tqt": (Tqt(), Scheme(Int(8), Scale(power_of_two=True))),
    "qdrop": (QDrop(Lsq()), FREE),
}
SHAPE = (5, 16, 44, 47)  # more than twice a part


def lying(x: Tensor, order: tuple[int, ...]) -> Tensor:
    """x, with its axes in this order of memory."""
    back = sorted(range(x.ndim), key=order.__getitem__)
    return x.permute(order).contiguous().permute(back)


def found(function: Any, scheme: Scheme, x: Tensor, grad: Tensor) -> list[Tensor]:
    """x_hat, the gradient of x, those of the parameters."""
    params = function.init(Affine(torch.tensor(0.03), torch.tensor(9.0 if scheme is FREE else 0.0)), x, scheme)
    learned = [p.requires_grad_() for p in (params if isinstance(params, tuple) else (params,)) if p.is_floating_point()]
    x = x.detach().requires_grad_()
    value = function.apply(params, x, scheme)
    return [value, *torch.autograd.grad(value, [x, *learned], grad, allow_unused=True)]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_order_of_memory_changes_nothing(name: str) -> None:
    """Values and the gradient of x have the same bits; sums run in another order."""
    function, scheme = FUNCTIONS[name]
    g = torch.Generator().manual_seed(3)
    x, grad = torch.randn(SHAPE, generator=g), torch.randn(SHAPE, generator=g)
    want = found(function, scheme, x, grad)
    for order in itertools.permutations(range(4)):
        have = found(function, scheme, lying(x, order), lying(grad, order))
        assert torch.equal(have[0], want[0])
        assert torch.equal(have[1], want[1])
        for a, b in zip(have[2:], want[2:], strict=True):
            assert (a is None) == (b is None)
            # n = 165,440 terms of at most 16 |g|, summed in another order: well below n 2^-24 of the sum of magnitudes.
            assert a is None or bool((a - b).abs() <= 2.0**-20 * 16 * grad.abs().sum()), name
    mixed = found(function, scheme, lying(x, (0, 2, 3, 1)), grad)
    assert torch.equal(mixed[1], want[1])


def test_a_tensor_stays_in_the_order_of_its_memory() -> None:
    """And it is gone through in parts: no number of axes, views with holes and small tensors are left as they are."""
    x, q = torch.zeros(SHAPE), Affine(torch.tensor(0.03), torch.tensor(0.0))
    last = x.to(memory_format=torch.channels_last)
    assert steps.value_of(last, q, PLAIN).is_contiguous(memory_format=torch.channels_last)
    assert steps.gradients(last, last, q, PLAIN).x.is_contiguous(memory_format=torch.channels_last)
    assert steps._memory_order(last, q) == ([0, 2, 3, 1], [0, 3, 1, 2])
    assert [steps._memory_order(t, q) for t in (x, last[:1, :2], last[:, :, ::2], x.expand(2, *SHAPE).transpose(1, 2))] == [
        None
    ] * 4
