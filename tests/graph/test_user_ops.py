"""Each field of the record of a user's op is read: by selectors, placement, the partition, or the laws of a target."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attrs import evolve
from torch import Tensor, fx, nn

import qfunc
from qfunc import targets
from qfunc.errors import SpecError
from qfunc.graph.dtypes import node_types
from qfunc.graph.selectors import Context, attributes, kinds_of, matches, non_negative
from qfunc.graph.view import QuantizedModel
from qfunc.placement.fusion import clamp_bounds
from qfunc.placement.partition import Partition
from qfunc.specs import (
    Attr, Last, Name, NonNegative, Op, OpKind, PerChannel, Rule, Scale, Scheme, Target, Trait, from_json, to_json,
)  # fmt: skip
from qfunc.testing.laws.target import commuting_ops_commute
from qfunc.transforms.verification.units import is_removable


@fx.wrap
def mine(x: Tensor, *given: Any, **named: Any) -> Tensor:
    """An op of a user's."""
    del given, named
    return x * x


@fx.wrap
def product(x: Tensor, weight: Tensor) -> Tensor:
    """A linear layer of a user's, with a weight of [inputs, outputs]."""
    return x @ weight


def reversed_rows(x: Tensor) -> Tensor:
    """It moves values."""
    return x.flip(0)


def plus_one(x: Tensor) -> Tensor:
    """It moves no values."""
    return x + 1


SPELLED = f"{__name__}.mine"
POSITIVE = Trait.NON_NEGATIVE | Trait.KEEPS_SIGN


def called(op: OpKind, *arguments: Any, **named: Any) -> tuple[fx.Node, Context]:
    """A graph of one call of the op, with its context."""
    graph = fx.Graph()
    node = graph.call_function(mine, (graph.placeholder("x"), *arguments), named)
    graph.output(node)
    return node, Context(fx.GraphModule(nn.Module(), graph), (op,))


@pytest.mark.parametrize(
    ("traits", "holds"),
    [
        (POSITIVE, lambda node, context: matches(NonNegative(), node, context)),
        (Trait.INTEGER_RESULT, lambda node, context: node in node_types(context.model, context).integers),
        (Trait.CREATES, lambda node, context: node in node_types(context.model, context).positions),
        (Trait.WEIGHTED, lambda node, context: not matches(Last(), next(iter(context.model.graph.nodes)), context)),
        (Trait.RECURRENT, lambda node, context: not matches(Last(), next(iter(context.model.graph.nodes)), context)),
    ],
    ids=["positive", "integer_result", "creates", "weighted", "recurrent"],
)
def test_a_trait_reaches_those_who_ask(traits: Trait, holds: Any) -> None:
    assert holds(*called(OpKind("mine", SPELLED, traits=traits)))
    assert not holds(*called(OpKind("mine", SPELLED)))


@pytest.mark.parametrize(
    ("record", "trait", "selected"),
    [
        (OpKind("mine", SPELLED, traits=Trait.MOVES_VALUES), Trait.MOVES_VALUES, True),
        (OpKind("mine", SPELLED, behaves_like="relu"), Trait.CLAMPS, True),
        (OpKind("mine", SPELLED, behaves_like="relu"), Trait.CLAMPS | Trait.NON_NEGATIVE, True),
        (OpKind("mine", SPELLED, behaves_like="clip"), Trait.CLAMPS | Trait.NON_NEGATIVE, False),
        (OpKind("mine", SPELLED), Trait.CLAMPS, False),
    ],
)
def test_a_selector_by_trait(record: OpKind, trait: Trait, selected: bool) -> None:
    node, context = called(record)
    for select in (Op(trait), Op(("conv", trait)), ~Op("conv") & Op(trait)):
        assert matches(select, node, context) == selected
    assert ("mine" in kinds_of(Op(trait), (record,))) == selected


def test_an_op_that_keeps_the_sign_needs_inputs_and_numbers_that_have_it() -> None:
    op = OpKind("mine", SPELLED, ("input", "gain"), traits=Trait.KEEPS_SIGN)
    graph = fx.Graph()
    positive = graph.call_function(torch.abs, (graph.placeholder("x"),))
    nodes = [graph.call_function(mine, (positive, gain)) for gain in (2.0, -2.0)]
    graph.output(tuple(nodes))
    context = Context(fx.GraphModule(nn.Module(), graph), (op,))
    assert [non_negative(n, context) for n in nodes] == [True, False]


def test_parameters_and_spatial_are_attributes() -> None:
    node, context = called(OpKind("mine", SPELLED, ("input", "kernel_size"), spatial=2), [3, 3])
    assert attributes(node, context) == {"kernel_size": (3, 3), "spatial": 2}
    assert matches(Op("mine") & Attr("spatial", 2) & Attr("kernel_size", (3, 3)), node, context)
    assert not matches(Attr("spatial", 2), *called(OpKind("mine", SPELLED)))


def test_slots_by_name_and_as_given() -> None:
    op = OpKind("mine", SPELLED, ("input", "weight", "bias"))
    node, context = called(op, 1.0)
    node.args = (node.args[0], node.args[0], node.args[0], node.args[0])
    assert [slot for slot, _ in context.slots(node)] == ["input", "weight", "bias", "input"]
    chosen = evolve(op, slots={"bias": "input", "input": "operand"})
    assert [slot for slot, _ in Context(context.model, (chosen,)).slots(node)] == ["input", "input", "input"]


def test_bounds_are_those_of_the_kind_that_the_op_behaves_like() -> None:
    for op, given, wanted in (
        (OpKind("mine", SPELLED, behaves_like="relu"), (), (0, None)),
        (OpKind("mine", SPELLED, ("input", "max"), "clip"), (6.0,), (None, 6.0)),
        (OpKind("mine", SPELLED), (6.0,), None),
    ):
        node, context = called(op, *given)
        assert clamp_bounds(context, node) == wanted


class Products(nn.Module):
    """A user's linear layer, and an op that may be left out."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 3, generator=torch.Generator().manual_seed(0)))

    def forward(self, x: Tensor) -> Tensor:
        return mine(product(x, self.weight), 1.0)


def own_target(*ops: OpKind) -> Target:
    byte = Scheme()
    weight = Scheme(scale=Scale(PerChannel()))
    rules = (Rule(Op("product"), input=byte, weight=weight, output=byte), Rule(Op("mine"), input=byte, output=byte))
    return evolve(targets.qdq, name="own", rules=rules, ops=ops, fusions=(), ties=(), kernels=(), legality=(), commuting=())


def test_a_weight_is_placed_along_its_axis_and_a_neutral_op_may_vanish() -> None:
    ops = (
        OpKind("product", f"{__name__}.product", ("input", "weight"), weight_axis=1),
        OpKind("mine", SPELLED, ("input", "gain"), neutral=1.0),
    )
    target, x = own_target(*ops), torch.randn(4, 5)
    calibrated = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(Products()))
    (weight,) = [s for s in QuantizedModel(calibrated).quantizers if s.module.site.slot == "weight"]
    assert weight.module.qparams().scale.numel() == 3  # [5, 3]: three outputs
    units = {u.kind: u for u in Partition(QuantizedModel(calibrated), target).units}
    assert is_removable(Partition(QuantizedModel(calibrated), target), units["mine"])
    other = evolve(target, ops=(ops[0], evolve(ops[1], neutral=None)))
    assert not is_removable(Partition(QuantizedModel(calibrated), other), units["mine"])


@pytest.mark.parametrize(("example", "commutes"), [(reversed_rows, True), (plus_one, False)])
def test_the_example_shows_whether_the_op_commutes(example: Any, commutes: bool) -> None:
    target = evolve(own_target(OpKind("mine", SPELLED, example=example)), commuting=("mine",))
    if commutes:
        commuting_ops_commute(target)
        return
    with pytest.raises(AssertionError, match="'mine' is listed as commuting"):
        commuting_ops_commute(target)


@pytest.mark.parametrize(
    ("commuting", "wrong"),
    [
        (Op(Trait.VIEW) & ~Op("windows"), ""),
        (Op("pad") & Attr("mode", "constant"), ""),
        (Op(Trait.MOVES_VALUES) | Op("mine"), "mine"),
        (Op("mine") & Name("head.*"), "mine"),
        (Op((Trait.NORM, "mine")) & ~Op("mine"), "layer_norm"),
        (~Op(("mine", "conv", "conv_transpose", "linear")), "matmul"),
        (None, ""),
    ],
)
def test_a_selector_of_ops_that_commute(commuting: Any, wrong: str) -> None:
    target = evolve(own_target(OpKind("mine", SPELLED, example=plus_one)), commuting=commuting)
    if not wrong:
        commuting_ops_commute(target)
        return
    with pytest.raises(AssertionError, match=f"'{wrong}' is listed as commuting"):
        commuting_ops_commute(target)


def test_json_holds_every_field() -> None:
    op = OpKind(
        "mine", SPELLED, ("input", "w"), slots={"w": "weight"}, weight_axis=1, spatial=2, neutral=0.5, traits=POSITIVE,
        example=plus_one, onnx='<domain: "mine"> text',
    )  # fmt: skip
    assert from_json(to_json(op), classes=(plus_one,)) == op
    assert '"members": [' in to_json(op)
    with pytest.raises(SpecError) as caught:
        from_json(to_json(op).replace("KEEPS_SIGN", "LOSES_SIGN"), classes=(plus_one,))
    assert str(caught.value) == (
        "from_json, Trait: found ['NON_NEGATIVE', 'LOSES_SIGN'], wanted members among "
        f"{', '.join(Trait.__members__)}. Correct the names."
    )


MESSAGES = {
    "a trait that no stage asks for": (
        {"traits": Trait.CLAMPS},
        "OpKind.traits: found 'Trait.CLAMPS', wanted traits among Trait.NON_NEGATIVE | Trait.KEEPS_SIGN | Trait.MOVES_VALUES | "
        "Trait.INTEGER_RESULT | Trait.INTEGER_IF_INPUTS | Trait.VIEW | Trait.COMMUTATIVE | Trait.WEIGHTED | Trait.RECURRENT | "
        "Trait.ARITHMETIC | Trait.CREATES | Trait.POSITION_IF_INPUTS. Leave out Trait.CLAMPS.",
    ),
    "a slot of no parameter": (
        {"slots": {"gamma": "weight"}},
        "OpKind.slots: found ('gamma', 'weight'), wanted a parameter among ('input',) and a slot among "
        "('input', 'weight', 'bias', 'operand'). Name the parameter in `parameters` too.",
    ),
}


@pytest.mark.parametrize("case", MESSAGES)
def test_messages(case: str) -> None:
    fields, message = MESSAGES[case]
    with pytest.raises(SpecError) as caught:
        OpKind("mine", SPELLED, **fields)  # type: ignore[arg-type]
    assert str(caught.value) == message
