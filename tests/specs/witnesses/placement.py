"""Witnesses of selectors, rules, fusions, ties, limits and kernels."""

from __future__ import annotations

from typing import Any

import torch
from attrs import evolve
from torch import Tensor, nn

from qfunc import targets
from qfunc.specs import (
    AllOf, AnyInput, AnyOf, AtMost, Attr, Bounds, Cases, ClampImplied, Constant, DerivedQParams, Everything, First,
    FixedQParams, FloatMultiplier, From, FusesOnly, Fusion, FusionStep, GraphInput, GraphOutput, InputRatios, Int, KeepFloat,
    Kernel, Last, Limit, ModuleType, Multiple, Name, NodeName, NonNegative, Not, NoZeroPoint, Op, OutputQParams, ProductRatio,
    ReadBy, Rule, SameQParams, Scheme, Selector, Tie, Where, ZeroPoint,
)  # fmt: skip
from tests.specs.witnesses.witness import CONV, WEIGHT, Witness, chip, codes, drawn, seeded, witness

FOUR, BYTES = Scheme(Int(4)), Scheme(Int(8))
AFFINE = Scheme(zero_point=ZeroPoint())
SUM = Rule(Op("add"), input=FOUR, output=FOUR)


class Two(nn.Module):
    """Two convolutions with a relu between them, and a sum of the second with its input."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.first(x))
        return self.second(y) + y


class Island(nn.Module):
    """A convolution, and beside it a sum between functions in float."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.abs()
        return self.conv(x), (y.exp() + y.sqrt()).sqrt()


class Product(nn.Module):
    """x times the transpose of y."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x @ y.mT


TWO, X = seeded(Two()), drawn(2, 3, 4, 4)
LAYER = seeded(nn.Conv2d(3, 4, 3))
CLAMPED = nn.Sequential(seeded(nn.Conv2d(3, 4, 1)), nn.ReLU6())
RECTIFIED = nn.Sequential(seeded(nn.Conv2d(3, 4, 1)), nn.ReLU())


def is_first(op: Any) -> bool:
    """Return True for the first convolution."""
    return bool(op.path == "first")


def is_second(op: Any) -> bool:
    """Return True for the second one."""
    return bool(op.path == "second")


def double(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Fold a relu as a factor of two, which it is not."""
    return weight * 2, bias * 2


def selected(select: Selector, other: Selector, slot: str = "input") -> Witness:
    """Slots of the selected ops have four bits, and those of the others eight."""
    one, two = (chip(rules=(Rule(s, **{slot: FOUR}), Rule(CONV, input=BYTES, weight=WEIGHT))) for s in (select, other))
    return Witness(one, two, TWO, (X,), codes)


def on_edge(edges: Selector, other: Selector) -> Witness:
    """The selected edges have four bits."""
    before = chip(rules=(Rule(Op("add"), input=FOUR, edges=edges), Rule(CONV, input=BYTES)))
    return witness(before, edges, other, TWO, X)


def of_rule(net: nn.Module = LAYER, **changes: Any) -> Witness:
    """A rule of convolutions, and the rule with changes."""
    before = Rule(CONV, input=BYTES, weight=WEIGHT)
    return witness(chip(rules=before), before, evolve(before, **changes), net, X)


def of_kernel(kernel: Kernel = Kernel(CONV, FloatMultiplier("floor")), rules: Any = (), **changes: Any) -> Witness:
    """A kernel of convolutions that cuts off, and the kernel with changes."""
    return witness(chip(kernel, rules=rules), kernel, evolve(kernel, **changes), LAYER, X)


WHOLE = Rule(CONV, input=BYTES, weight=WEIGHT, bias=DerivedQParams(), output=BYTES)
CUT = Kernel(CONV, FloatMultiplier("floor"))
RECTIFYING = Kernel(CONV, FloatMultiplier("floor"), integer_if=FusesOnly("relu"))
STEP = FusionStep(Op("relu"))
FUSED = Fusion(CONV, (STEP,))
OUTSIDE = Fusion(CONV, (STEP,), integer_if=ClampImplied())


def of_fusion(fusion: Fusion = FUSED, net: nn.Module = RECTIFIED, **changes: Any) -> Witness:
    """A fusion of a convolution and a relu, and the fusion with changes."""
    before = chip(CUT, rules=(WHOLE, Rule(Op(("relu", "clip")), input=FOUR)), fusions=fusion)
    return witness(before, fusion, evolve(fusion, **changes), net, X)


def of_step(**changes: Any) -> Witness:
    """A fusion's step with changes."""
    return of_fusion(then=(evolve(STEP, **changes),))


TIE = Tie(Op("relu"), ("input", "output"), "input")


def of_tie(**changes: Any) -> Witness:
    """A relu whose output has the qparams of its input, and the tie with changes."""
    before = chip(rules=Rule(Op("relu"), input=AFFINE, output=AFFINE), ties=TIE)
    return witness(before, TIE, evolve(TIE, **changes), nn.ReLU(), X)


SHIFT = Limit(Op("conv"), (("weight", 1), ("input", 1), ("output", -1)), 0, 3, "weight")


def of_limit(limit: Limit = SHIFT, **changes: Any) -> Witness:
    """A limit of shifts, and the limit with changes."""
    before = evolve(targets.vitis, limits=limit, lowering=None)
    return witness(before, limit, evolve(limit, **changes), LAYER, X)


def of_bias(before: Any, **changes: Any) -> Witness:
    """A convolution's bias, and the bias with changes."""
    rule = Rule(CONV, input=BYTES, weight=WEIGHT, bias=before)
    return witness(chip(rules=rule), before, evolve(before, **changes), LAYER, X)


GIVEN = FixedQParams(AFFINE, 0.1, 3)
CASES = Cases(((GraphInput(), FOUR),), default=BYTES)
SMALL = FixedQParams(Scheme(Int(8, signed=False), zero_point=ZeroPoint()), 1 / 256)
LONG = chip(rules=Rule(Op("softmax"), output=SMALL))
BOUNDED = Rule(CONV, input=AFFINE, weight=WEIGHT, bias=DerivedQParams(), output=FixedQParams(AFFINE, 0.11, -100))
CLIP = Fusion(CONV, (FusionStep(Op("clip")),))


def of_bounds(before: Bounds | None, after: Bounds | None) -> Witness:
    """A convolution with a fused clip, and other bounds of it."""
    one, two = (chip(evolve(CUT, bounds=b), rules=BOUNDED, fusions=CLIP) for b in (before, after))
    return Witness(one, two, CLAMPED, (20 * X,), codes)


def of_unit(**changes: Any) -> Witness:
    """A convolution whose output has the qparams that its kernel wants, and one that wants others."""
    given = OutputQParams(0.11, -100)
    one, two = (chip(evolve(CUT, integer_if=q), rules=BOUNDED) for q in (given, evolve(given, **changes)))
    return Witness(one, two, LAYER, (X,), codes)


PRODUCT = Kernel(Op("matmul"), FloatMultiplier("floor"), integer_if=NoZeroPoint(0))
MATMUL = chip(PRODUCT, rules=Rule(Op("matmul"), input=Cases(((Name("x"), BYTES),), default=AFFINE), output=AFFINE))

WITNESSES = {
    "Op.kinds": selected(CONV, Op("relu"), "output"),
    "Name.glob": selected(Name("first"), Name("second")),
    "NodeName.glob": selected(NodeName("first"), NodeName("second")),
    "ModuleType.name": selected(ModuleType("Two"), ModuleType("Other")),
    "Attr.name": selected(Attr("groups", 1), Attr("spatial", 1)),
    "Attr.equals": selected(Attr("groups", 1), Attr("groups", 2)),
    "Multiple.name": selected(Multiple("groups", 2), Multiple("spatial", 2)),
    "Multiple.of": selected(Multiple("spatial", 2), Multiple("spatial", 3)),
    "AtMost.name": selected(AtMost("groups", 1), AtMost("in_channels", 1)),
    "AtMost.bound": selected(AtMost("groups", 1), AtMost("groups", 0)),
    "Where.predicate": selected(Where(is_first), Where(is_second)),
    "First": selected(First(), Last()),
    "Last": selected(Last(), First()),
    "AllOf.of": selected(AllOf((CONV, First())), AllOf((CONV, Last()))),
    "AnyOf.of": selected(AnyOf((First(), GraphInput())), AnyOf((Last(), GraphInput()))),
    "Not.of": selected(Not(First()), Not(Last())),
    "Everything": selected(Everything(), First()),
    "AnyInput.producer": selected(AnyInput(Op("relu")), AnyInput(Op("max_pool"))),
    "ReadBy.reader": selected(CONV & ReadBy(CONV), CONV & ReadBy(Op("add"))),
    "From.producer": on_edge(From(Op("relu")), From(CONV)),
    "NonNegative": on_edge(NonNegative(), Everything()),
    "GraphInput": witness(chip(rules=Rule(CONV, input=CASES)), GraphInput(), Constant(), TWO, X),
    "Constant": witness(
        chip(rules=Rule(CONV, input=BYTES, weight=Cases(((Constant(), FOUR),), default=BYTES))),
        Constant(),
        GraphInput(),
        TWO,
        X,
    ),
    "GraphOutput": witness(chip(rules=Rule(GraphOutput(), output=FOUR)), GraphOutput(), Op("relu"), TWO, X),
    "Rule.select": of_rule(select=Op("linear")),
    "Rule.input": of_rule(input=None),
    "Rule.weight": of_rule(weight=None),
    "Rule.bias": of_rule(bias=FOUR),
    "Rule.output": of_rule(output=FOUR),
    "Rule.edges": of_rule(TWO, edges=~GraphInput()),
    "Rule.beside_integers": witness(
        chip(rules=(SUM, Rule(CONV, input=BYTES, weight=WEIGHT))), SUM, evolve(SUM, beside_integers=True), seeded(Island()), X
    ),
    "Cases.cases": witness(chip(rules=Rule(CONV, input=CASES)), CASES, evolve(CASES, cases=((GraphInput(), AFFINE),)), TWO, X),
    "Cases.default": witness(chip(rules=Rule(CONV, input=CASES)), CASES, evolve(CASES, default=AFFINE), TWO, X),
    "DerivedQParams.format": of_bias(DerivedQParams(), format=Int(8)),
    "DerivedQParams.of": of_bias(DerivedQParams(), of="weight"),
    "DerivedQParams.rounding": of_bias(DerivedQParams(), rounding="floor"),
    "FixedQParams.scheme": witness(
        chip(rules=Rule(CONV, input=GIVEN)), GIVEN, evolve(GIVEN, scheme=evolve(AFFINE, rounding="floor")), LAYER, X
    ),
    "FixedQParams.scale": witness(chip(rules=Rule(CONV, input=GIVEN)), GIVEN, evolve(GIVEN, scale=0.2), LAYER, X),
    "FixedQParams.zero_point": witness(chip(rules=Rule(CONV, input=GIVEN)), GIVEN, evolve(GIVEN, zero_point=120), LAYER, X),
    "FixedQParams.smaller": witness(LONG, SMALL, evolve(SMALL, smaller=True), nn.Softmax(-1), drawn(1, 2000)),
    "KeepFloat": witness(chip(rules=(Rule(CONV, input=KeepFloat()), Rule(CONV, input=FOUR))), KeepFloat(), FOUR, LAYER, X),
    "Fusion.root": of_fusion(root=Op("linear") | Op("add")),
    "Fusion.then": of_fusion(FUSED, nn.Sequential(*RECTIFIED, nn.ReLU6()), then=(STEP, FusionStep(Op("clip")))),
    "Fusion.when": of_fusion(when=Attr("groups", 2)),
    "Fusion.integer_if": of_fusion(OUTSIDE, integer_if=()),
    "FusionStep.op": of_step(op=Op("clip")),
    "FusionStep.optional": of_fusion(
        Fusion(CONV, (FusionStep(Op("clip")), STEP)), then=(FusionStep(Op("clip"), optional=False), STEP)
    ),
    "FusionStep.fold": of_step(fold=double),
    "ClampImplied": of_fusion(OUTSIDE, integer_if=()),
    "FusesOnly.kinds": witness(
        chip(RECTIFYING, rules=WHOLE, fusions=FUSED), RECTIFYING, evolve(RECTIFYING, integer_if=FusesOnly("clip")), RECTIFIED, X
    ),
    "SameQParams.slots": of_kernel(evolve(CUT, integer_if=SameQParams()), integer_if=SameQParams("input")),
    "NoZeroPoint.operand": witness(MATMUL, PRODUCT, evolve(PRODUCT, integer_if=NoZeroPoint(1)), Product(), X, X.flip(0)),
    "InputRatios.least": of_kernel(evolve(CUT, integer_if=InputRatios(0, 1e9)), integer_if=InputRatios(1e8, 1e9)),
    "InputRatios.below": of_kernel(evolve(CUT, integer_if=InputRatios(0, 1e9)), integer_if=InputRatios(0, 1e-9)),
    "ProductRatio.least": of_kernel(evolve(CUT, integer_if=ProductRatio(0, 1e9)), integer_if=ProductRatio(1e8, 1e9)),
    "ProductRatio.below": of_kernel(evolve(CUT, integer_if=ProductRatio(0, 1e9)), integer_if=ProductRatio(0, 1e-9)),
    "OutputQParams.scale": of_unit(scale=0.12),
    "OutputQParams.zero_point": of_unit(zero_point=-99),
    "Tie.select": of_tie(select=Op("add")),
    "Tie.slots": of_tie(slots="input"),
    "Tie.leader": of_tie(leader="output"),
    "Limit.select": of_limit(select=Op("linear")),
    "Limit.terms": of_limit(terms=(("weight", 1), ("input", 1))),
    "Limit.low": of_limit(evolve(SHIFT, high=30), low=25),
    "Limit.high": of_limit(high=2),
    "Limit.adjust": of_limit(adjust="output"),
    "Bounds.rounding": of_bounds(Bounds("floor"), Bounds("half_even")),
    "Bounds.zero_point": of_bounds(Bounds("trunc"), Bounds("trunc", zero_point="before")),
    "Kernel.unit": of_kernel(unit=Op("linear")),
    "Kernel.arithmetic": of_kernel(arithmetic=FloatMultiplier("half_up")),
    "Kernel.formats": of_kernel(formats=(("input", (Int(4),)),)),
    "Kernel.integer_if": of_kernel(integer_if=SameQParams()),
    "Kernel.bounds": of_bounds(None, Bounds("half_even")),
}
