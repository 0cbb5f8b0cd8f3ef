"""Layer norms written out by the model: one op where they are one, the model's own steps where they are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.graph.view import QuantizedModel
from qfunc.ops.node import kind_of
from qfunc.passes.fuse_norms import NORMS
from qfunc.passes.rewrite import rewrite
from qfunc.placement.partition import Partition

X = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(3)) * 4 + 1


class Norm(nn.Module):
    """A linear layer, the norm between, a linear layer."""

    def __init__(self, norm: Callable[..., Tensor], shape: tuple[int, ...] = (8,)) -> None:
        super().__init__()
        self.first, self.last, self.norm = nn.Linear(8, 8), nn.Linear(8, 7), norm
        self.weight, self.bias = nn.Parameter(torch.rand(shape) + 0.5), nn.Parameter(torch.rand(shape) - 0.5)

    def forward(self, x: Tensor) -> Any:
        y = self.norm(self.first(x), self.weight, self.bias)
        return (self.last(y[0]), y[1]) if isinstance(y, tuple) else self.last(y)


def hugging(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    kept = x.dtype
    x = x.to(torch.float32)
    return w * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)).to(kept)


def centred(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).pow(2).mean(-1, keepdim=True)
    return w * ((x - mean) / torch.sqrt(variance + 0.25)) + b


def shared(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    c = x - x.mean((-2, -1), keepdim=True)
    return torch.rsqrt((c * c).mean((-1, -2), keepdim=True) + 0.5) * c * w


ONE: list[tuple[Callable[..., Tensor], tuple[int, ...], str]] = [
    (hugging, (8,), "rms_norm"),
    (lambda x, w, b: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * (1.0 + w), (8,), "rms_norm"),  # as in Gemma
    (lambda x, w, b: torch.rsqrt((x * x).mean(-1, keepdim=True) + 0.25) * x * w, (8,), "rms_norm"),
    (lambda x, w, b: x / torch.sqrt(x.square().mean((-2, -1), keepdim=True) + 2.0) * w, (5, 8), "rms_norm"),
    (centred, (8,), "layer_norm"),
    (shared, (5, 8), "layer_norm"),
]


def watched(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    inverse = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
    return w * (x * inverse), inverse


STEPS: list[Callable[..., Any]] = [
    lambda x, w, b: w * (x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + 1e-6)),  # other axes than those of w
    lambda x, w, b: w * (x * torch.rsqrt(x.pow(4).mean(-1, keepdim=True) + 1e-6)),
    lambda x, w, b: w * (x * torch.rsqrt(b.pow(2).mean(-1, keepdim=True) + 1e-6)),
    lambda x, w, b: w * ((x - b) * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)),
    watched,
]


@pytest.mark.parametrize("example", [None, (X,)], ids=["fx", "export"])
@pytest.mark.parametrize(("norm", "shape", "kind"), ONE, ids=["hugging", "gemma", "rms", "rms 2d", "centred", "shared"])
def test_a_norm_is_one_op_with_the_values_of_its_steps(norm: Any, shape: tuple[int, ...], kind: str, example: Any) -> None:
    torch.manual_seed(1)
    model = Norm(norm, shape).eval()
    named = rewrite(qfunc.capture(example)(model), *NORMS)
    kinds = [kind_of(n) for n in named.graph.nodes]
    assert kinds.count(kind) == 1
    assert not {"rsqrt", "sqrt", "mean", "pow", "square", "sub"} & set(kinds)
    # Sums of 8 or 40 float32 squares in another order.
    torch.testing.assert_close(named(X), model(X), rtol=2**-18, atol=2**-19)


@pytest.mark.parametrize("norm", STEPS)
def test_what_is_no_norm_keeps_its_steps(norm: Any) -> None:
    model = Norm(norm).eval()
    captured = qfunc.capture()(model)
    before = [n.target for n in captured.graph.nodes]
    assert [n.target for n in rewrite(captured, *NORMS).graph.nodes] == before


@pytest.mark.parametrize("norm", [ONE[1][0], centred])
def test_no_step_of_a_norm_has_a_scale(norm: Any) -> None:
    """The linear layers have theirs at either side of it, and the runtime computes it in float."""
    model = Norm(norm).eval()
    done = qfunc.calibrate([X])(qfunc.quantize(targets.onnxruntime)(model))
    activations = [s.tensor for s in qfunc.explain(done).sites if s.slot in ("input", "output")]
    (path,) = (f.op for f in qfunc.explain(done).floats)
    assert activations == ["x", "first", path, "last"]
    assert [u.path for u in Partition(QuantizedModel(done), targets.onnxruntime).units if not u.integer] == [path]
    assert qfunc.verify(targets.onnxruntime)(done, [X]).disagreements == ()
