"""diff of two targets reads like a datasheet comparison: op by op, however each target groups its ops."""

from __future__ import annotations

from attrs import evolve

from qfunc import targets
from qfunc.specs import Int, Op, Rule, Scheme, Trait, ZeroPoint, diff

SUMS = "Op(('mul', 'max_pool', 'avg_pool', 'adaptive_avg_pool', 'global_avg_pool', 'resize', 'batch_norm', 'prelu'))"
ENDS = "AllOf((Op(('conv', 'conv_transpose', 'linear')), AnyOf((First(), Last()))))"
SYMMETRIC = "Scheme(Int(8), scale=Scale(PerChannel(), divisor='half_range'))"


def test_the_whole_text_of_a_pair() -> None:
    qdq, academic = (evolve(t, source="any") for t in (targets.qdq, targets.academic(4, 6)))
    assert diff(qdq, academic).splitlines() == [
        "name: 'qdq' -> 'academic_w4a6'",
        "rules[conv, conv_transpose, linear].input.format.bits: 8 -> 6",
        "rules[conv, conv_transpose, linear].input.format.signed: True -> False",
        "rules[conv, conv_transpose, linear].input.zero_point: None -> ZeroPoint()",
        "rules[conv, conv_transpose, linear].weight.format.bits: 8 -> 4",
        "rules[conv, conv_transpose, linear].weight.format.low: -127 -> None",
        "rules[conv, conv_transpose, linear].weight.scale.divisor: 'qmax' -> 'half_range'",
        "rules: only in the first: Rule(Op('matmul'), input=Scheme(Int(8)), "
        "weight=Scheme(Int(8, low=-127), scale=Scale(PerChannel())))",
        "rules: only in the first: Rule(Op(Trait.RECURRENT), input=Scheme(Int(8)), "
        "weight=Scheme(Int(8, low=-127), scale=Scale(PerChannel())))",
        "rules: only in the first: Rule(Op('add'), input=Scheme(Int(8)), edges=Not(From(Op('mul'))))",
        f"rules: only in the first: Rule({SUMS}, input=Scheme(Int(8)))",
        f"rules: only in the second: Rule({ENDS}, input=Scheme(Int(8, signed=False), zero_point=ZeroPoint()), "
        f"weight={SYMMETRIC})",
        "runtime.name: 'onnx' -> 'none'",
        "runtime.version: 'opset >=13' -> ''",
        "runtime.runner: OnnxRuntimeRunner(optimise=False) -> None",
    ]


def test_sets_say_what_either_side_has() -> None:
    base = evolve(targets.qdq, commuting=("reshape", "slice", "pad"))
    assert diff(evolve(base, commuting=None), evolve(base, commuting=Op(Trait.VIEW) | Op("pad"))) == (
        "commuting: only in the second: Trait.VIEW, 'pad'"
    )
    assert diff(base, evolve(base, commuting=~Op("pad"))) == "commuting: Op(('reshape', 'slice', 'pad')) -> Not(Op('pad'))"
    assert diff(base, evolve(base, commuting=("pad", "flatten", "reshape"))).splitlines() == [
        "commuting: only in the first: 'slice'",
        "commuting: only in the second: 'flatten'",
    ]
    assert diff(base, evolve(base, commuting=("pad", "slice", "reshape"))) == "commuting: the same entries in another order"
    assert diff(base, evolve(base, commuting=(*base.commuting.kinds, "pad"))) == "commuting: the same entries in another order"


def test_other_groups_of_the_same_ops_are_said_to_be_the_same() -> None:
    byte = Scheme(Int(8, signed=False), zero_point=ZeroPoint())
    together = evolve(targets.qdq, rules=(Rule(Op(("conv", "add")), input=byte),))
    apart = evolve(targets.qdq, rules=(Rule(Op("add"), input=byte), Rule(Op("conv"), input=byte)))
    assert diff(together, apart) == diff(apart, together) == "rules: the same entries in another order"


def test_two_entries_about_one_op_are_not_mixed_up() -> None:
    one, two, three = (Rule(Op("add"), **{slot: Scheme()}) for slot in ("input", "output", "weight"))
    a, b = (evolve(targets.qdq, rules=rules) for rules in ((one, two), (two, three)))
    assert diff(a, b).splitlines() == [
        "rules[add].input: Scheme(Int(8)) -> None",
        "rules[add].weight: None -> Scheme(Int(8))",
        "rules: the same entries in another order",
    ]
    c = evolve(targets.qdq, rules=(three, three))
    assert diff(a, c).splitlines() == [
        "rules: only in the first: Rule(Op('add'), input=Scheme(Int(8)))",
        "rules: only in the first: Rule(Op('add'), output=Scheme(Int(8)))",
        "rules: only in the second: Rule(Op('add'), weight=Scheme(Int(8)))",
        "rules: only in the second: Rule(Op('add'), weight=Scheme(Int(8)))",
    ]
    assert diff(ZeroPoint(), ZeroPoint(value=3)) == "value: None -> 3"
