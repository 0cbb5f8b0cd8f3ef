"""Edits: target -> target; later edits win."""

from attrs import evolve, frozen

from qfunc.estimators import Ema, MinMax
from qfunc.specs import (
    Cases,
    Derived,
    Everything,
    Fixed,
    Fusion,
    Int,
    Keep,
    NonNegative,
    Op,
    OpKind,
    Override,
    PerChannel,
    PerTensor,
    Rule,
    Scale,
    Scheme,
    Step,
    ZeroPoint,
    edit,
)  # fmt: skip
from qfunc.targets.onnxruntime import onnxruntime

ORT = onnxruntime


@frozen
class Lowering:
    """A user's lowering."""

    def lower(self, model, sites):
        return {}


def test_weights_bits_are_an_override_and_other_properties_are_other_hardware():
    narrow = edit.weights(bits=4)(ORT)
    assert narrow.rules == ORT.rules
    assert narrow.overrides == (Override(Everything(), "weight", bits=4),)
    other = edit.weights(granularity=PerTensor(), power_of_two=True, rounding="half_away")(ORT)
    assert other.rules[0].weight == Scheme(Int(8, low=-127), Scale(PerTensor(), power_of_two=True), rounding="half_away")
    assert other.rules[0].input == ORT.rules[0].input


def test_activations_change_inputs_and_outputs_of_every_rule_and_no_fixed_one():
    target = edit.activations(bits=4, signed=True, symmetric=True)(ORT)
    for rule in target.rules:
        assert rule.input == Scheme(Int(4))
    assert target.rules[0].output == Scheme(Int(4))
    assert target.rules[-1].output == ORT.rules[-1].output
    assert isinstance(target.rules[-1].output, Fixed)
    assert target.rules[0].weight == ORT.rules[0].weight
    assert edit.activations(symmetric=False)(target).rules[0].input == Scheme(Int(4), zero_point=ZeroPoint())


def test_cases_change_inside():
    cases = Cases(((NonNegative(), Scheme(Int(8, signed=False))),), default=Scheme(Int(8)))
    target = edit.activations(bits=4)(edit.inputs(Op("mul"), cases)(ORT))
    assert target.rules[0].input == Cases(((NonNegative(), Scheme(Int(4, signed=False))),), default=Scheme(Int(4)))


def test_a_symmetric_range_stays_symmetric_and_the_same_width_stays_as_it_is():
    odd = Int(8, low=-64, high=63)
    assert edit.narrowed(Int(8, low=-127), 4, True) == Int(4, low=-7)
    assert edit.narrowed(odd, 8, True) == odd
    assert edit.narrowed(odd, 4, True) == Int(4)


def test_algorithms_are_bound_by_role_and_the_rest_stays():
    target = edit.pipe(ORT, edit.activations(estimator=Ema()), edit.weights(estimator=Ema(decay=0.5)))
    assert target.activation == evolve(ORT.activation, estimator=Ema())
    assert target.weight == evolve(ORT.weight, estimator=Ema(decay=0.5))
    assert target.hardware() == ORT.hardware()


def test_later_edits_win():
    twice = edit.pipe(ORT, edit.weights(estimator=Ema()), edit.weights(estimator=MinMax()))
    assert twice.weight.estimator == MinMax()
    kept = edit.pipe(ORT, edit.inputs(Op("add"), Scheme()), edit.skip(edit.op("add")))
    assert kept.rules[:2] == (
        Rule(Op("add"), input=Keep(), weight=Keep(), bias=Keep(), output=Keep()),
        Rule(Op("add"), input=Scheme()),
    )
    widths = edit.pipe(ORT, edit.weights(bits=4), edit.override(edit.name("head"), weights={"bits": 8}))
    assert [o.bits for o in widths.overrides] == [4, 8]


def test_override_makes_one_override_for_each_role():
    made = edit.override(edit.name("a"), weights={"bits": 8}, activations={"estimator": Ema()})(ORT).overrides
    assert made == (Override(edit.name("a"), "weight", bits=8), Override(edit.name("a"), "activation", estimator=Ema()))


def test_add_inputs_outputs_fuse_deploy():
    scheme = Scheme(Int(4))
    rule = edit.add(edit.op("lstm"), weight=scheme, bias=Derived(), edges=None, input=scheme)(ORT).rules[0]
    assert rule == Rule(Op("lstm"), input=scheme, weight=scheme, bias=Derived())
    assert edit.outputs(edit.op("gelu"), scheme)(ORT).rules == (Rule(Op("gelu"), output=scheme), *ORT.rules)
    mine, fusion = OpKind("mine", "pkg.mine"), Fusion(Op("conv"), Step(Op("mine")))
    fused = edit.fuse(fusion, mine)(ORT)
    assert (fused.fusions, fused.ops) == ((fusion, *ORT.fusions), (mine,))
    assert edit.deploy(Lowering())(ORT) == evolve(ORT, lowering=Lowering())


def test_selectors():
    assert edit.op("conv", "linear") == Op(("conv", "linear"))
    assert edit.pipe(ORT, edit.skip(edit.name("a") | edit.module("B"))).rules[0].select == edit.name("a") | edit.module("B")


def test_edits_are_values():
    assert edit.weights(bits=4) == edit.weights(bits=4)
    assert hash(edit.skip(edit.name("a"))) == hash(edit.skip(edit.name("a")))
    assert edit.activations(granularity=PerChannel(1)) != edit.activations(granularity=PerChannel(2))
    assert edit.pipe(ORT, lambda t: edit.weights(bits=4)(t)) == edit.pipe(ORT, edit.weights(bits=4))
