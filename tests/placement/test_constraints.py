"""What the hardware refuses is said by quantize: which op and tensor, by which rule, and the cure."""

import pytest
import torch
from attrs import evolve
from torch import nn

import qfunc
from qfunc import targets
from qfunc.specs import (
    Everything, FixedQParams, From, FusionStep, Int, KeepFloat, Op, PerBlock, PerChannel, PerTensor, Refuse, Require, Rule,
    Scale, Scheme, ZeroPoint, edit,
)  # fmt: skip
from qfunc.specs.placement import Fusion
from tests.placement.refusals import FLOAT, HERE, U8, Net, chip, found, refusal


def test_narrower_codes_may_be_refused_of_constants_too():
    eight = Require(Op("linear"), "weight", formats=Int(8), narrower=False, **HERE)
    target = chip(eight, rules=Rule(Op("linear"), weight=Scheme(Int(8))))
    assert found(target) == []
    assert found(edit.pipe(target, edit.weights(bits=7))) == [("fc", "weight", "fc.weight")]
    assert found(evolve(target, legality=evolve(eight, narrower=True), overrides=edit.weights(bits=7)(target).overrides)) == []


def test_an_op_that_the_chip_cannot_run():
    target = chip(Refuse(Op("gelu"), because="no such layer (guide, 3.1)", do="Use relu, or edit.skip for the CPU."))
    assert refusal(target, Net(nn.GELU)) == (
        "target 'chip', op 'act': found the kind 'gelu', wanted an op that it runs: no such layer (guide, 3.1). "
        "Use relu, or edit.skip for the CPU."
    )
    qfunc.quantize(target)(Net())
    qfunc.quantize(edit.pipe(target, edit.skip(edit.op("gelu"))))(Net(nn.GELU))
    qfunc.quantize(edit.pipe(target, edit.skip(edit.name("act"))))(Net(nn.GELU))


def test_keeping_only_the_input_in_float_does_not_move_the_op():
    target = chip(Refuse(Op("gelu"), because="guide, 3", do="Use relu."))
    target = edit.pipe(target, edit.inputs(edit.op("gelu"), KeepFloat()))
    assert refusal(target, Net(nn.GELU)).startswith("target 'chip', op 'act': found the kind 'gelu'")


def test_several_reasons_stand_in_one_message():
    target = edit.pipe(
        chip(
            Require(Everything(), ("input", "output"), formats=Int(8, signed=False), **HERE),
            Require(Everything(), "weight", shared=PerTensor(), zero_point=False, power_of_two=True, because="guide, 4"),
        ),
        edit.activations(bits=4),
        edit.weights(granularity=PerChannel(), symmetric=False),
    )
    weights = "op 'conv', weight 'conv.weight'; op 'fc', weight 'fc.weight'"
    assert refusal(target) == (
        "target 'chip': found 10 violations, for 4 reasons, wanted none. Resolve each:\n"
        "  op 'conv', input 'x'; op 'conv', output 'conv'; op 'fc', input 'mean'; op 'fc', output 'fc': found "
        f"Int(4, signed=False), wanted Int(8, signed=False): guide, 2. Use edit.activations(bits=8), {FLOAT}\n"
        f"  {weights}: found a zero point, wanted none: guide, 4. Use edit.weights(symmetric=True), {FLOAT}\n"
        f"  {weights}: found scales of any size, wanted powers of two: guide, 4. Use edit.weights(power_of_two=True), {FLOAT}\n"
        f"  {weights}: found scales PerChannel(0), wanted PerTensor(): guide, 4. "
        f"Use edit.weights(granularity=PerTensor()), {FLOAT}"
    )


def test_a_handful_of_places_then_a_count():
    net = nn.Sequential(*(nn.Linear(3, 3) for _ in range(9)))
    target = edit.pipe(chip(Require(Everything(), "weight", zero_point=False, **HERE)), edit.weights(symmetric=False))
    assert refusal(target, net) == (
        "target 'chip', op '0', weight '0.weight'; op '1', weight '1.weight'; op '2', weight '2.weight'; "
        "op '3', weight '3.weight'; op '4', weight '4.weight'; and 4 more: found a zero point, wanted none: guide, 2. "
        f"Use edit.weights(symmetric=True), {FLOAT}"
    )


def test_a_handful_of_reasons_then_a_count():
    rules = [
        Refuse(Op(kind), because="guide, 3", do=f"Drop {kind}.")
        for kind in ("relu", "tanh", "gelu", "silu", "mish", "elu", "exp")
    ]
    net = nn.Sequential(nn.ReLU(), nn.Tanh(), nn.GELU(), nn.SiLU(), nn.Mish(), nn.ELU(), nn.Linear(3, 3))
    lines = refusal(chip(*rules), net).splitlines()
    assert lines[0] == "target 'chip': found 6 violations, for 6 reasons, wanted none. Resolve each:"
    assert lines[1] == "  op '0': found the kind 'relu', wanted an op that it runs: guide, 3. Drop relu."
    assert lines[-1] == "  and 1 more"
    assert len(lines) == 7


def test_a_tensor_is_told_once_and_a_reader_behind_moves_counts():
    class Moved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 5)

        def forward(self, x):
            return self.b(self.a(x).reshape(-1, 4))

    wide = Require(Op("linear"), "input", formats=Int(16), **HERE)
    assert found(chip(wide), Moved()) == [("a", "input", "x"), ("b", "input", "a")]
    both = Require(Everything(), ("input", "output"), formats=Int(16), **HERE)
    assert [t for *_, t in found(chip(both), Moved())] == ["x", "a", "b"]


def test_the_output_of_a_fused_group_is_each_of_its_ops():
    target = chip(Require(Op("relu"), "output", formats=Int(16), **HERE), fusions=Fusion(Op("conv"), FusionStep(Op("relu"))))
    assert found(target) == [("conv", "output", "act")]
    assert found(evolve(target, legality=Require(Op("relu"), "input", formats=Int(16), **HERE))) == []


def test_an_op_left_in_float_is_not_asked_though_its_input_has_codes():
    target = chip(Require(Op("linear"), ("input", "weight"), formats=Int(4), **HERE))
    rule = Rule(Op("conv"), input=U8, weight=U8, output=U8)
    target = evolve(target, rules=(Rule(Op("global_avg_pool"), output=U8), rule, *target.rules))
    assert [s for _, s, _ in found(target)] == ["input", "weight"]
    assert found(edit.pipe(target, edit.skip(edit.op("linear")))) == []


def test_a_rule_for_some_edges_keeps_no_op_in_float():
    target = chip(Require(Op("linear"), "input", formats=Int(16), **HERE))
    some = Rule(Op("linear"), input=KeepFloat(), edges=From(Op("softmax")))
    assert found(evolve(target, rules=(some, *target.rules))) == [("fc", "input", "mean")]


def test_constants_may_use_fewer_codes_and_activations_may_not():
    target = chip(Require(Op("linear"), ("input", "weight"), formats=(Int(8), Int(8, signed=False)), **HERE))
    assert found(target) == []
    narrow = Rule(Op("linear"), input=Scheme(Int(8, low=-127)), weight=Scheme(Int(5)))
    assert found(evolve(target, rules=narrow)) == [("fc", "input", "mean")]
    signed = evolve(target, legality=Require(Op("linear"), "weight", formats=Int(8), **HERE))
    assert found(evolve(signed, rules=Rule(Op("linear"), weight=Scheme(Int(7, signed=False))))) == [
        ("fc", "weight", "fc.weight")
    ]
    for weight in (Int(9), Int(16, low=-129, high=100), Int(16, low=-100, high=128), Int(9, signed=False)):
        wide = Rule(Op("linear"), weight=Scheme(weight))
        assert found(evolve(target, rules=wide)) == [("fc", "weight", "fc.weight")]


@pytest.mark.parametrize("zero_point", [None, ZeroPoint(value=0)])
def test_a_zero_point_that_is_always_0_is_none(zero_point):
    target = chip(Require(Op("linear"), ("input", "weight"), zero_point=False, **HERE))
    fixed = FixedQParams(Scheme(Int(8), zero_point=ZeroPoint()), 0.5, 0)
    assert found(evolve(target, rules=Rule(Op("linear"), input=fixed, weight=Scheme(Int(8), zero_point=zero_point)))) == []
    moved = FixedQParams(Scheme(Int(8), zero_point=ZeroPoint()), 0.5, 1)
    assert found(evolve(target, rules=Rule(Op("linear"), input=moved))) == [("fc", "input", "mean")]


def test_a_fixed_value_is_cured_in_its_rule():
    moved = FixedQParams(Scheme(Int(8), zero_point=ZeroPoint()), 0.5, 1)
    target = chip(Require(Op("linear"), "input", zero_point=False, **HERE), rules=Rule(Op("linear"), input=moved))
    assert refusal(target).endswith("Edit the rule that quantizes it, or leave the op in float by edit.skip.")


def test_a_zero_point_may_be_required():
    target = chip(Require(Op("linear"), ("input", "weight"), zero_point=True, **HERE))
    assert found(target) == [("fc", "weight", "fc.weight")]
    assert refusal(target).endswith(f"found no zero point, wanted one: guide, 2. Use edit.weights(symmetric=False), {FLOAT}")


def test_scales_per_channel_are_those_of_the_output_channels():
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 4), nn.ConvTranspose1d(4, 5, 1)

        def forward(self, x):
            return self.b(self.a(x).transpose(1, 2))

    def of(shared):
        rules = Rule(Op(("linear", "conv_transpose")), weight=Scheme(Int(8), Scale(shared)))
        return chip(Require(Everything(), "weight", shared=PerChannel(), **HERE), rules=rules)

    a, b = ("a", "weight", "a.weight"), ("b", "weight", "b.weight")
    assert found(of(PerChannel()), Two()) == []
    assert found(of(PerChannel(0)), Two()) == [b]
    assert found(of(PerChannel(1)), Two()) == [a]
    assert found(of(PerChannel(-2)), Two()) == []  # axis 0 of [O, I] and axis 1 of [I, O, K]
    assert found(of(PerTensor()), Two()) == [a, b]


def test_blocks_have_an_axis_and_a_size():
    def of(shared):
        rules = Rule(Op("linear"), weight=Scheme(Int(4), Scale(shared)))
        return evolve(chip(Require(Everything(), "weight", shared=PerBlock(1, 3), **HERE), rules=rules), lowering=None)

    assert found(of(PerBlock(1, 3))) == found(of(PerBlock(-1, 3))) == []
    assert len(found(of(PerBlock(-1, 1)))) == len(found(of(PerBlock(0, 2)))) == 1


def test_names_that_match_nothing_are_refused_as_in_rules():
    target = chip(Refuse(edit.name("cnv"), because="guide, 3", do="Drop it."))
    assert refusal(target) == (
        "target 'chip', legality: found Name('cnv'), which matches nothing in the model, "
        "wanted a selector that matches an op or a tensor. Use one of: conv, fc."
    )


def test_quantize_refuses_before_it_looks_at_the_weights():
    net = Net()
    net.conv.weight.data.fill_(torch.nan)
    assert "found a zero point" in refusal(edit.pipe(targets.tensorrt, edit.activations(symmetric=False)), net)
