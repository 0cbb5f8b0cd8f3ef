"""Activation functions that a model writes out with exp: one op where they are one, near misses with a reason."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

import qfunc
from qfunc import targets
from qfunc.ops.node import kind_of
from qfunc.passes.fuse_activations import ACTIVATIONS
from qfunc.passes.rewrite import rewrite
from qfunc.specs import Everything, Op, edit

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
HARD_SIGMOID: list[Function] = [
    lambda x: F.relu6(x + 3) / 6,
    lambda x: torch.clamp(x + 3.0, 0, 6) * (1 / 6),
    lambda x: (3 + x).clamp(min=0).clamp(max=6) / 6,
    lambda x: torch.clamp(x / 6 + 0.5, 0, 1),
    lambda x: (0.16666667 * x + 0.5).clamp(0.0, 1.0),
]
HARD_SWISH: list[Function] = [
    lambda x: x * F.relu6(x + 3) / 6,
    lambda x: x * (F.relu6(x + 3) / 6),
    lambda x: x * F.hardsigmoid(x),
    lambda x: torch.clamp(x + 3, 0.0, 6.0) * x * 0.1666666,
    lambda x: x * torch.clamp(x / 6 + 0.5, 0, 1),
]
MISH: list[Function] = [
    lambda x: x * torch.tanh(F.softplus(x)),
    lambda x: x * torch.tanh(torch.log(1 + torch.exp(x))),
    lambda x: torch.tanh(torch.log1p(x.exp())) * x,
]
LEAKY: list[Function] = [
    lambda x: F.relu(x) - 0.25 * F.relu(-x),
    lambda x: x.clamp(min=0) + 0.25 * x.clamp(max=0),
    lambda x: F.relu(x) + x.clamp(max=0.0) * 0.25,
]
WRITTEN = [
    *((f, "hardsigmoid") for f in HARD_SIGMOID), *((f, "hardswish") for f in HARD_SWISH), *((f, "mish") for f in MISH),
    *((f, "leaky_relu") for f in LEAKY),
]  # fmt: skip
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


@pytest.mark.parametrize("example", [None, (X,)], ids=["fx", "export"])
@pytest.mark.parametrize(("function", "kind"), WRITTEN)
def test_hard_curves_mish_and_leaky_relus_are_one_op(function: Function, kind: str, example: Any) -> None:
    network = captured(function, example)
    assert kinds(network) == ["linear", kind, "linear"]
    values = torch.linspace(-8, 8, 4001)
    (node,) = (n for n in network.graph.nodes if kind_of(n) == kind)
    # The constants 1/6 have 6 digits at least; next to 1, log(1 + exp(x)) has an absolute error of 2^-23.
    torch.testing.assert_close(node.target(values, *node.args[1:]), function(values), rtol=2**-20, atol=2**-20)


class Slopes(nn.Module):
    """A convolution before max(x, 0) - a max(-x, 0) with one slope, or one for each channel."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.conv, self.slope = nn.Conv2d(3, 4, 1), nn.Parameter(torch.rand(shape))

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return F.relu(x) - self.slope * F.relu(-x)


@pytest.mark.parametrize("example", [False, True], ids=["fx", "export"])
@pytest.mark.parametrize("shape", [(1,), (), (4, 1, 1), (1, 4, 1, 1)])
def test_a_parameter_as_slope_is_a_prelu(shape: tuple[int, ...], example: bool) -> None:
    torch.manual_seed(0)
    model, x = Slopes(shape).eval(), torch.randn(2, 3, 5, 5)
    given = (x,) if example else None
    chip = edit.skip(Op("prelu"))(targets.litert)
    done = qfunc.calibrate([x], progress=False)(qfunc.quantize(chip, example_inputs=given)(model))
    assert [row.kind for row in qfunc.explain(done).floats] == ["prelu"]
    plain = qfunc.quantize(edit.skip(Everything())(targets.litert), example_inputs=given)(model)
    torch.testing.assert_close(plain(x), model(x), rtol=2**-20, atol=2**-20)


@pytest.mark.parametrize("shape", [(5,), (4, 1, 5), (4, 5, 1)])
def test_a_slope_along_other_axes_is_no_prelu(shape: tuple[int, ...]) -> None:
    """A slope for each column, and slopes of another shape, are no channels."""
    network = rewrite(qfunc.capture()(Slopes(shape).eval()), *ACTIVATIONS)
    assert "prelu" not in kinds(network)


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
    (lambda x: (0.2 * x + 0.5).clamp(0, 1), "hardsigmoid", "0.2 stands where 0.1666667 is wanted"),
    (lambda x: F.relu6(x + 2) / 6, "hardsigmoid", "an operand of 'add' is 2, where 3 is wanted"),
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
