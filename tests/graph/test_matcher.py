"""The matcher of patterns: what it finds against graphs written by hand, and the reason where it finds nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn

from qfunc.frontend.capture import capture
from qfunc.graph.matcher import Call, NearMiss, Rewrite, apply_rewrites, match_rewrite
from qfunc.graph.patterns import Match, Through, Var, either, number, op, tensor
from qfunc.ops.node import kind_of

X, Y = tensor("x"), tensor("y")
Function = Callable[[Any, Any], Any]


def graph_of(function: Function) -> fx.Graph:
    class Net(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
            return function(x, y)

    return capture()(Net()).graph


def found(function: Function, pattern: Any, **options: Any) -> Match | NearMiss:
    """What the pattern finds at the op that the function returns."""
    last = list(graph_of(function).nodes)[-1].args[0]
    assert isinstance(last, fx.Node)
    return match_rewrite(Rewrite("it", pattern, lambda m: None, **options), last)


def names(match: Match | NearMiss) -> dict[str, Any]:
    """The names of a match, nodes by their own."""
    assert isinstance(match, Match)
    return {k: v.name if isinstance(v, fx.Node) else v for k, v in match.values.items()}


SUM = op("add", X, number("n"), commutative=True)
FITS: list[tuple[Function, Any, dict[str, Any]]] = [
    (lambda x, y: x - y, op("sub", X, Y), {"x": "x", "y": "y"}),
    (lambda x, y: x - y, op("sub", other=X), {"x": "y"}),
    (lambda x, y: 3 + x, SUM, {"x": "x", "n": 3}),
    (lambda x, y: y + 0.5, SUM, {"x": "y", "n": 0.5}),
    (lambda x, y: x * x, op("mul", X, X), {"x": "x"}),
    # The first order of the operands binds x to the wrong one; the second is right.
    (lambda x, y: x.exp() * x, op("mul", X, op("exp", X), commutative=True), {"x": "x"}),
    (lambda x, y: x.square() + y.exp(), op("add", op("exp", Y), op("square", X), commutative=True), {"x": "x", "y": "y"}),
    (lambda x, y: x.sqrt(), either(op("exp", X), op("sqrt", X)).patterns[1], {"x": "x"}),
    (lambda x, y: (-x).sqrt(), op("sqrt", either(op("exp", X), op("neg", X, name="inner"))), {"inner": "neg", "x": "x"}),
    (lambda x, y: x.exp().detach().reshape(-1).neg(), op("neg", Through(("detach", "reshape"), op("exp", X))), {"x": "x"}),
    (lambda x, y: x.exp().neg(), op("neg", Through(("detach",), op("exp", X))), {"x": "x"}),
    (lambda x, y: x.detach().neg(), op("neg", Through(("detach",), X)), {"x": "x"}),
    (lambda x, y: x.clamp(min=0.5), op("clip", input=X, min=number("n"), max=None), {"x": "x", "n": 0.5}),
]


@pytest.mark.parametrize(("function", "pattern", "values"), FITS)
def test_a_match_binds_its_names(function: Function, pattern: Any, values: dict[str, Any]) -> None:
    assert names(found(function, pattern)) == values


MISSES: list[tuple[Function, Any, dict[str, Any], str]] = [
    (lambda x, y: x - y.exp(), op("sub", X, op("sqrt", Y)), {},
     "operand 'other' of 'sub' is 'exp' (exp), where sqrt is wanted"),
    (lambda x, y: x * y, op("mul", X, X), {}, "operand 'other' of 'mul' is 'y' (input), where 'x' is wanted"),
    (lambda x, y: x.pow(3), op("pow", X, 2), {}, "operand 'exponent' of 'pow_1' is 3, where 2 is wanted"),
    (lambda x, y: x.sum(-1, keepdim=True), op("sum", X, -1, 1), {}, "operand 'keepdim' of 'sum_1' is True, where 1 is wanted"),
    (lambda x, y: x.neg(), op("neg", X, Y), {}, "'neg' has no operand 1"),
    (lambda x, y: x + y, SUM, {}, "an operand of 'add' is 'y' (input), where a number is wanted"),
    (lambda x, y: x + 9, op("add", X, number("n", lambda n: n < 1, "a number below 1")), {},
     "operand 'other' of 'add' is 9, where a number below 1 is wanted"),
    (lambda x, y: x.neg(), op("neg", either(op("exp"), op("sqrt"))), {},
     "operand 'input' of 'neg' is 'x' (input), where exp or sqrt is wanted"),
    (lambda x, y: x.relu(), op("relu", X, where=lambda n: False, wanted="of rank 9"), {},
     "the op is 'relu' (relu), where relu of rank 9 is wanted"),
    (lambda x, y: x.exp() * x.exp().sqrt(), op("mul", op("exp", X), op("sqrt", op("exp", Var("", lambda v: False)))), {},
     "operand 'input' of 'exp_1' is 'x' (input), where a value is wanted"),
    (lambda x, y: x.neg(), op("neg", X), {"check": lambda m: "not today"}, "not today"),
]  # fmt: skip


@pytest.mark.parametrize(("function", "pattern", "options", "reason"), MISSES)
def test_a_near_miss_has_the_reason_of_the_attempt_that_came_furthest(
    function: Function, pattern: Any, options: Any, reason: str
) -> None:
    miss = found(function, pattern, **options)
    assert isinstance(miss, NearMiss)
    assert miss.reason == reason


def test_what_is_read_elsewhere_is_not_rewritten_unless_the_rewrite_allows_it() -> None:
    def function(x: Any, y: Any) -> Any:
        inner = x.exp()
        return (inner.sqrt(), inner.neg())

    graph = graph_of(function)
    (root,) = (n for n in graph.nodes if kind_of(n) == "sqrt")
    rewrite = Rewrite("it", op("sqrt", op("exp", X)), lambda m: Call(F.relu, (m["x"],)))
    miss = match_rewrite(rewrite, root)
    assert isinstance(miss, NearMiss)
    assert miss.reason == "'exp' is read by 'neg' too, and a rewritten op may have no other reader"
    assert isinstance(match_rewrite(Rewrite("it", rewrite.pattern, rewrite.replace, private=False), root), Match)


def test_stages_run_in_order_and_the_first_rewrite_of_a_stage_wins() -> None:
    def call(target: Any) -> Callable[[Match], Call]:
        return lambda m: Call(target, (m["x"],))

    first = Rewrite("first", op("exp", X), call(torch.sqrt))
    second = Rewrite("second", op("exp", X), call(torch.neg))
    third = Rewrite("third", op("sqrt", X), call(torch.abs))
    graph = graph_of(lambda x, y: x.exp().sqrt())
    assert apply_rewrites(graph, (first, second)) == (1, ())
    assert [kind_of(n) for n in graph.nodes if n.op == "call_function"] == ["sqrt", "sqrt"]
    graph = graph_of(lambda x, y: x.exp().sqrt())
    assert apply_rewrites(graph, (third,), (first,), (third,))[0] == 3
    assert [kind_of(n) for n in graph.nodes if n.op == "call_function"] == ["abs", "abs"]


def test_only_misses_that_reached_the_characteristic_op_are_listed_once_each() -> None:
    pattern = op("mul", op("exp", op("neg", X), key=True), 2, commutative=True)
    twice = Rewrite("twice", pattern, lambda m: Call(F.relu, (m["x"],)))
    longer = Rewrite("longer", op("add", pattern, Y), lambda m: Call(F.relu, (m["x"],)))
    graph = graph_of(lambda x, y: 3 * (-x).exp() + y)
    _, (miss,) = apply_rewrites(graph, (twice, longer))
    assert (miss.rewrite, miss.node.name) == ("longer", "add")
    assert miss.reason == "an operand of 'mul' is 3, where 2 is wanted"
    assert apply_rewrites(graph_of(lambda x, y: x * 3), (twice, longer)) == (0, ())
    # Where one rewrite matches, another that did not is no near miss.
    thrice = Rewrite("thrice", op("mul", op("exp", op("neg", X), key=True), 3), lambda m: Call(F.relu, (m["x"],)))
    assert apply_rewrites(graph_of(lambda x, y: (-x).exp() * 2), (thrice, twice)) == (1, ())
    assert len(apply_rewrites(graph_of(lambda x, y: (-x).exp() * 2), (thrice,))[1]) == 1


def test_the_work_grows_with_the_graph_and_no_faster() -> None:
    calls = 0

    def seen(node: fx.Node) -> bool:
        nonlocal calls
        calls += 1
        return False

    counts = []
    for length in (10, 40):
        calls = 0

        def deep(x: Any, y: Any, length: int = length) -> Any:
            for _ in range(length):
                x = x * y.exp()
            return x

        pattern = op("mul", op("exp", tensor("", seen)), X, commutative=True)
        apply_rewrites(graph_of(deep), (Rewrite("it", pattern, lambda m: None),))
        counts.append(calls)
    assert counts[1] == 4 * counts[0] > 0
