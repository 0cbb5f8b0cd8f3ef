"""Attention that drops in training only, as models write it: one graph for both modes, the model's own values in each."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.errors import CaptureError
from qfunc.ops.node import kind_of

X = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(2))


class Attention(nn.Module):
    """Two heads of four, or four queries for two keys; dropped by `self.training`, or in evaluation, too."""

    def __init__(self, p: float = 0.25, causal: bool = False, grouped: bool = False, always: float = 0.0) -> None:
        super().__init__()
        self.p, self.causal, self.grouped, self.always = p, causal, grouped, always
        self.query, self.key = nn.Linear(8, 16 if grouped else 8), nn.Linear(8, 8)
        self.out = nn.Linear(16 if grouped else 8, 7)

    def forward(self, x: Tensor) -> Tensor:
        q, k = (t.unflatten(-1, (-1, 4)).transpose(1, 2) for t in (self.query(x), self.key(x)))
        p = self.p if self.training else self.always
        mixed = F.scaled_dot_product_attention(q, k, k, dropout_p=p, is_causal=self.causal, enable_gqa=self.grouped)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = Attention(0.5, causal=True), Attention(grouped=True)
        self.middle = nn.Linear(7, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(x + self.middle(self.a(x)))


@pytest.mark.parametrize("training", [False, True])
def test_both_modes_are_the_model_s(training: bool) -> None:
    """Captured from either mode; the same weights are dropped, the same gradients flow."""
    torch.manual_seed(0)
    model = Net().train(training)
    captured = qfunc.capture()(model)
    assert captured.training == training
    for mode in (False, True):
        outputs = []
        for made in (model, captured):
            made.train(mode).zero_grad()
            torch.manual_seed(4)
            outputs.append(made(X))
            outputs[-1].square().sum().backward()
        # Some tens of float32 products, summed in torch's fused order or in that of the ops.
        torch.testing.assert_close(*outputs, rtol=2**-18, atol=2**-18)
        found = dict(captured.named_parameters())
        for name, p in model.named_parameters():
            torch.testing.assert_close(p.grad, found.pop(name).grad, rtol=2**-16, atol=2**-14, msg=name)
        assert not found
    drops = [n.target for n in captured.graph.nodes if kind_of(n) == "dropout"]
    assert drops == ["a.dropout", "b.dropout"]
    assert [captured.get_submodule(str(d)).p for d in drops] == [0.5, 0.25]


def test_it_is_quantized_as_without_dropout() -> None:
    """The same sites, names and qparams; the products of attention among them."""
    torch.manual_seed(0)
    dropping, plain = Net().eval(), Net().eval()
    plain.load_state_dict(dropping.state_dict())
    plain.a.p = plain.b.p = 0.0
    first, second = (
        qfunc.explain(qfunc.calibrate([X])(qfunc.quantize(targets.onnxruntime)(m))).sites for m in (dropping, plain)
    )
    assert [(s.tensor, s.slot, s.scale) for s in first] == [(s.tensor, s.slot, s.scale) for s in second]
    assert {"a.scaled_dot_product_attention.matmul", "a.scaled_dot_product_attention"} <= {s.tensor for s in first}


def test_dropping_in_evaluation_too_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"dropout_p=0.25 in evaluation mode, wanted dropout_p=0.0, or dropout in training"):
        qfunc.quantize(targets.onnxruntime)(Attention(always=0.25))
    with pytest.raises(CaptureError, match="wanted a graph that differs by dropout alone"):
        qfunc.capture()(Attention(always=0.5))
