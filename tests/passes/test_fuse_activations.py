"""Activation functions that a model writes out with exp: one op where they are one, near misses with a reason."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import onnx
import pytest
import torch
from torch import Tensor, fx, nn

import qfunc
from qfunc import targets
from qfunc.ops.node import kind_of
from qfunc.passes.fuse_activations import ACTIVATIONS
from qfunc.passes.rewrite import rewrite

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.export warns of its own use of deprecated names
X = torch.randn(6, 8, generator=torch.Generator().manual_seed(5)) * 4
Function = Callable[[Tensor], Any]


class Between(nn.Module):
    """A function between two linear layers."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.first, self.last, self.function = nn.Linear(8, 8), nn.Linear(8, 3), function

    def forward(self, x: Tensor) -> Any:
        y = self.function(self.first(x))
        return tuple(self.last(v) for v in y) if isinstance(y, tuple) else self.last(y)


SILU: list[Function] = [
    lambda x: x / (1 + torch.exp(-x)),
    lambda x: x.div((-x).exp() + 1.0),
    lambda x: x * (1 / (1 + torch.exp(-x))),
    lambda x: (1 + torch.exp(-x)).reciprocal() * x,
]
SIGMOID: list[Function] = [
    lambda x: 1 / (1 + torch.exp(-x)),
    lambda x: 1.0 / ((-x).exp() + 1.0),
    lambda x: (1 + torch.exp(-x)).reciprocal(),
]
BOTH = [*((f, "silu") for f in SILU), *((f, "sigmoid") for f in SIGMOID)]
ROOT = math.sqrt(2 / math.pi)
GELU: list[tuple[Function, str]] = [
    (lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))), "none"),
    (lambda x: 0.5 * x * (1 + torch.erf(x * 0.70710678)), "none"),
    (lambda x: x * (torch.erf(x / 1.41421356) + 1) * 0.5, "none"),
    (lambda x: 0.5 * (x * (1 + (x / math.sqrt(2)).erf())), "none"),
    (lambda x: 0.5 * x * (1.0 + torch.tanh(ROOT * (x + 0.044715 * torch.pow(x, 3.0)))), "tanh"),
    (lambda x: 0.5 * x * (1.0 + torch.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x))), "tanh"),
    (lambda x: 0.5 * x * (1 + torch.tanh(ROOT * (x + 0.044715 * x * x * x))), "tanh"),
]


def kinds(network: fx.GraphModule) -> list[str]:
    """The kinds of the ops."""
    return [kind for n in network.graph.nodes if (kind := kind_of(n)) not in ("input", "constant", "output")]


def captured(function: Function, example: Any) -> fx.GraphModule:
    return rewrite(qfunc.capture(example)(Between(function).eval()), *ACTIVATIONS)


@pytest.mark.parametrize("example", [None, (X,)], ids=["fx", "export"])
@pytest.mark.parametrize(("function", "kind"), BOTH)
def test_it_is_one_op_with_the_same_values(function: Function, kind: str, example: Any) -> None:
    network = captured(function, example)
    assert kinds(network) == ["linear", kind, "linear"]
    values = torch.linspace(-20, 20, 4001)
    (node,) = (n for n in network.graph.nodes if kind_of(n) == kind)
    # At most 1 ulp of exp and 1/2 of the sum, of the quotient and of a product, on both sides: below 8 of 2^-23.
    torch.testing.assert_close(node.target(values), function(values), rtol=2**-20, atol=0)


@pytest.mark.parametrize("example", [None, (X,)], ids=["fx", "export"])
@pytest.mark.parametrize(("function", "approximate"), GELU)
def test_gelu_in_any_order_is_one_op(function: Function, approximate: str, example: Any) -> None:
    network = captured(function, example)
    assert kinds(network) == ["linear", "gelu", "linear"]
    values = torch.linspace(-6, 6, 4001)
    (node,) = (n for n in network.graph.nodes if kind_of(n) == "gelu")
    assert node.args[1:] == (approximate,)
    # Near -6 the sum of 1 and the curve cancels: the absolute error of the curve, 2^-24 and its constants, times x / 2.
    torch.testing.assert_close(node.target(values, approximate), function(values), rtol=2**-20, atol=2**-20)


@pytest.mark.parametrize("function", SILU[:1])
def test_a_decomposed_program_has_it_too(function: Function) -> None:
    program = torch.export.export(Between(function).eval(), (X,)).run_decompositions()
    assert kinds(rewrite(qfunc.capture()(program), *ACTIVATIONS)) == ["linear", "silu", "linear"]


def used_twice(x: Tensor) -> Tensor:
    grown = torch.exp(-x)
    return x / (1 + grown) + grown


NEAR: list[tuple[Function, str, str]] = [
    (lambda x: x / (2 + torch.exp(-x)), "silu", "an operand of 'add' is 2, where 1 is wanted"),
    (lambda x: x / (1 + torch.exp(x)), "silu", "operand 'input' of 'exp' is 'first' (linear), where neg is wanted"),
    (lambda x: x / (1 + torch.exp(-x.relu())), "silu", "operand 'input' of 'neg' is 'relu' (relu), where 'first' is wanted"),
    (used_twice, "silu", "'exp' is read by 'add_1' too, and a rewritten op may have no other reader"),
    (lambda x: 1 / (3 + torch.exp(-x)), "sigmoid", "an operand of 'add' is 3, where 1 is wanted"),
    (lambda x: 0.5 * x * (1 + torch.erf(x / 1.5)), "gelu", "1.5 stands where 1.414214 is wanted"),
]


@pytest.mark.parametrize("example", [None, (X,)], ids=["fx", "export"])
@pytest.mark.parametrize(("function", "name", "reason"), NEAR)
def test_what_only_looks_alike_stays_and_explain_has_the_reason(
    function: Function, name: str, reason: str, example: Any
) -> None:
    model = Between(function).eval()
    quantized = qfunc.quantize(targets.onnxruntime, example_inputs=example)(model)
    assert not {"silu", "sigmoid", "gelu"} & set(kinds(captured(function, example)))
    assert [(rewrite, why) for _, rewrite, why in qfunc.explain(quantized).unmatched] == [(name, reason)]


@pytest.mark.parametrize(
    "function", [lambda x: x / (1 + x.abs()), lambda x: torch.exp(-x) + 1, lambda x: x / (x + 1), torch.tanh]
)
def test_common_ops_are_no_near_misses(function: Function) -> None:
    assert qfunc.explain(qfunc.quantize(targets.onnxruntime)(Between(function).eval())).unmatched == ()


@pytest.mark.parametrize(("function", "kind"), [BOTH[0], BOTH[4]])
def test_onnx_runtime_computes_what_is_simulated(function: Function, kind: str) -> None:
    torch.manual_seed(2)
    done = qfunc.calibrate([X], progress=False)(qfunc.quantize(targets.onnxruntime)(Between(function).eval()))
    assert qfunc.verify(targets.onnxruntime)(done, [X]).disagreements == ()
    model = onnx.load_from_string(qfunc.deploy(targets.onnxruntime)(done).files["model.onnx"])
    ops = {n.op_type for n in model.graph.node}
    assert "Sigmoid" in ops
    assert not {"Exp", "Neg", "Div"} & ops
