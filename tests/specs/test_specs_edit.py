"""Edits: target -> target; later edits win."""

import math
from fractions import Fraction

import pytest
import torch
from attrs import evolve, fields, frozen

from qfunc import specs, targets
from qfunc.errors import SpecError
from qfunc.estimators import Ema, MinMax
from qfunc.numerics.qparams import from_range
from qfunc.specs import (
    AnyOf, Build, Cases, DerivedQParams, Everything, FixedQParams, FloatMultiplier, Fusion, FusionStep, Int, KeepFloat, Kernel,
    Name, NodeName, NonNegative, Op, OpKind, Override, PerChannel, PerTensor, Rule, Runtime, Scale, Scheme, SumFma, ZeroPoint,
    cpus, edit,
)  # fmt: skip
from qfunc.specs.edit._keywords import ActivationProperties, Slots
from qfunc.specs.formats import E4M3FN
from qfunc.targets.onnxruntime.dynamic_lstm import RUN_TIME
from qfunc.targets.onnxruntime.target import onnxruntime

ORT = onnxruntime


@frozen
class Lowering:
    """A user's lowering."""

    def lower(self, program):
        return {}


def test_the_typed_keywords_are_those_that_edits_accept():
    assert set(ActivationProperties.__annotations__) == {f.name for f in fields(edit.SchemeChange)}
    assert set(Slots.__annotations__) == {f.name for f in fields(Rule)} - {"select"}


def test_a_name_of_several_patterns_is_any_of_them():
    assert edit.name("a") == Name("a")
    assert edit.name("a", "b.*") == Name("a") | Name("b.*")
    assert edit.name("a", "b", "c") == AnyOf((Name("a"), Name("b"), Name("c")))


def test_weights_bits_are_an_override_and_other_properties_are_other_hardware():
    narrow = edit.weights(bits=4)(ORT)
    assert narrow.rules == ORT.rules
    assert narrow.overrides == (Override(Everything(), "weight", bits=4),)
    other = edit.weights(granularity=PerTensor(), power_of_two=True, rounding="half_away")(ORT)
    assert other.rules[0].weight == Scheme(Int(8, low=-127), Scale(PerTensor(), power_of_two=True), rounding="half_away")
    assert other.rules[0].input == ORT.rules[0].input


def test_a_power_of_two_can_name_its_rounding():
    for word, rounding in (("ceil", "ceil"), ("floor", "floor"), ("nearest", "half_even")):
        changed = edit.weights(power_of_two=word)(ORT)
        assert changed.rules[0].weight.scale == Scale(PerChannel(), power_of_two=True, rounding=rounding)
        assert edit.weights(power_of_two=True)(changed) == changed
        assert edit.weights(power_of_two=False)(changed) == ORT
        assert edit.activations(power_of_two=word)(ORT).rules[0].input.scale.rounding == rounding
    for value in ("round", 1, 0.5):
        with pytest.raises(SpecError) as caught:
            edit.weights(power_of_two=value)
        assert str(caught.value) == (
            f"SchemeChange.power_of_two: found {value!r}, wanted a bool, None, 'ceil', 'floor' or 'nearest'. "
            "Write power_of_two='nearest'."
        )


def test_the_nearest_power_of_two_is_mqbench_s():
    """MQBench: s <- 2^round(log2 s); here in exact arithmetic, s^2 in [2^(2k-1), 2^(2k+1)) for the power 2^k."""
    scheme = edit.weights(power_of_two="nearest", granularity=PerTensor())(ORT).rules[0].weight
    generator = torch.Generator().manual_seed(0)
    ups = 0
    for top in (torch.rand(300, generator=generator) * 10 + 0.01).tolist():
        found = from_range(torch.tensor(-top), torch.tensor(top), scheme).scale.item()
        free = from_range(torch.tensor(-top), torch.tensor(top), Scheme(Int(8, low=-127))).scale.item()
        assert found == 2.0 ** round(math.log2(free))
        assert Fraction(found) ** 2 / 2 <= Fraction(free) ** 2 < Fraction(found) ** 2 * 2
        ups += found >= free
    assert 0 < ups < 300


def test_nodes_are_selected_by_name():
    assert edit.node("add_1") == NodeName("add_1")
    assert edit.node("add_1", "relu_*") == AnyOf((NodeName("add_1"), NodeName("relu_*")))
    with pytest.raises(SpecError) as caught:
        edit.node()
    assert str(caught.value) == 'edit.node: found no pattern, wanted at least one non-empty str. Write e.g. edit.node("add_1").'


def test_activations_change_inputs_and_outputs_of_every_rule_and_no_fixed_one():
    target = edit.activations(bits=4, signed=True, symmetric=True)(ORT)
    for rule, before in zip(target.rules, ORT.rules, strict=True):
        assert rule.input == (before.input if before.input == RUN_TIME else Scheme(Int(4)))  # what a kernel computes stays
    assert target.rules[0].output == Scheme(Int(4))
    fixed = next(rule for rule in ORT.rules if isinstance(rule.output, FixedQParams))
    assert fixed.output in [rule.output for rule in target.rules]
    assert target.rules[0].weight == ORT.rules[0].weight
    assert edit.activations(symmetric=False)(target).rules[0].input == Scheme(Int(4), zero_point=ZeroPoint())


UNSIGNED = Scheme(Int(8, signed=False), zero_point=ZeroPoint())


@pytest.mark.parametrize(
    ("scheme", "asked", "made"),
    [
        (UNSIGNED, {}, Scheme(Int(8))),
        (UNSIGNED, {"bits": 4}, Scheme(Int(4))),
        (UNSIGNED, {"signed": False}, Scheme(Int(8, signed=False))),  # the user's word
        (UNSIGNED, {"signed": True}, Scheme(Int(8))),
        (evolve(UNSIGNED, format=Int(8, signed=False, low=1)), {}, Scheme(Int(8, low=-127))),
        (evolve(UNSIGNED, format=Int(8, signed=False, high=127)), {}, Scheme(Int(8, low=-64, high=63))),
        (Scheme(Int(8, low=-127), zero_point=ZeroPoint()), {}, Scheme(Int(8, low=-127))),
        (Scheme(Int(8, signed=False)), {}, Scheme(Int(8, signed=False))),  # what is never negative had no zero point
        (Scheme(E4M3FN), {}, Scheme(E4M3FN)),
    ],
)
@pytest.mark.parametrize("role", ["weight", "input", "output"])
def test_symmetric_codes_are_signed_unless_the_edit_says_otherwise(scheme, asked, made, role):
    change = edit.activations if role != "weight" else edit.weights
    both = {k: v for k, v in asked.items() if k != "bits" or role != "weight"}
    base = evolve(ORT, rules=Rule(Op("conv"), **{role: Cases(((NonNegative(), scheme),), default=scheme)}))
    if both == asked:
        value = getattr(change(symmetric=True, **asked)(base).rules[0], role)
        assert value == Cases(((NonNegative(), made),), default=made)
        plain = evolve(ORT, rules=Rule(Op("conv"), **{role: scheme}))
        assert getattr(change(symmetric=True, **asked)(plain).rules[0], role) == made


NNIE = "target 'nnie': found {0} in Log(), wanted {1}, whose schemes have that. Drop {2}, or give rules another scheme: {3}."
IN, AT = "edit.inputs(selector, Scheme(...)) or edit.outputs(selector, Scheme(...))", "edit.add(selector, weight=Scheme(...))"


@pytest.mark.parametrize(
    ("change", "where", "words"),
    [
        (edit.activations(bits=4), "edit.activations(bits=4)", ("activations", "Int", "bits", IN)),
        (edit.activations(signed=True), "edit.activations(signed=True)", ("activations", "Int", "signed", IN)),
        (edit.activations(symmetric=False), "edit.activations(symmetric=False)", ("activations", "Int", "symmetric", IN)),
        (
            edit.weights(granularity=PerChannel()),
            "edit.weights(granularity=PerChannel())",
            ("weights", "Int or Float or Levels", "granularity", AT),
        ),
        (
            edit.weights(power_of_two=True),
            "edit.weights(power_of_two=True)",
            ("weights", "Int or Float or Levels", "power_of_two", AT),
        ),
        (edit.weights(rounding="floor"), "edit.weights(rounding='floor')", ("weights", "Int or Float", "rounding", AT)),
    ],
)
def test_a_property_that_no_scheme_has_is_refused(change, where, words):
    with pytest.raises(SpecError) as e:
        edit.pipe(targets.nnie, change)
    assert str(e.value) == f"{where}, {NNIE.format(*words)}"


def test_a_role_without_schemes_is_refused():
    silent = evolve(ORT, rules=Rule(Op("conv"), weight=KeepFloat(), output=Scheme()))
    with pytest.raises(SpecError) as e:
        edit.pipe(silent, edit.weights(symmetric=False))
    assert str(e.value) == (
        "edit.weights(symmetric=False), target 'onnxruntime': found no scheme of weights, wanted Int, whose schemes have that. "
        f"Drop symmetric, or give rules another scheme: {AT}."
    )
    assert edit.weights(estimator=MinMax())(silent).weight.estimator == MinMax()


def test_properties_reach_the_schemes_that_have_them():
    mixed = evolve(ORT, rules=(Rule(Op("conv"), input=Scheme(E4M3FN)), Rule(Op("add"), input=Scheme(Int(8)))))
    made = edit.activations(bits=4, rounding="floor", power_of_two=True)(mixed).rules
    assert made[0].input == Scheme(E4M3FN, Scale(power_of_two=True), rounding="floor")
    assert made[1].input == Scheme(Int(4), Scale(power_of_two=True), rounding="floor")
    assert edit.activations(symmetric=True)(targets.nnie) == targets.nnie  # it has no zero points already


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
        Rule(Op("add"), input=KeepFloat(), weight=KeepFloat(), bias=KeepFloat(), output=KeepFloat()),
        Rule(Op("add"), input=Scheme()),
    )
    widths = edit.pipe(ORT, edit.weights(bits=4), edit.override(edit.name("head"), weights={"bits": 8}))
    assert [o.bits for o in widths.overrides] == [4, 8]


def test_override_makes_one_override_for_each_role():
    made = edit.override(edit.name("a"), weights={"bits": 8}, activations={"estimator": Ema()})(ORT).overrides
    assert made == (Override(edit.name("a"), "weight", bits=8), Override(edit.name("a"), "activation", estimator=Ema()))


def test_add_inputs_outputs_fuse_deploy():
    scheme = Scheme(Int(4))
    rule = edit.add(edit.op("lstm"), weight=scheme, bias=DerivedQParams(), edges=None, input=scheme)(ORT).rules[0]
    assert rule == Rule(Op("lstm"), input=scheme, weight=scheme, bias=DerivedQParams())
    assert edit.outputs(edit.op("gelu"), scheme)(ORT).rules == (Rule(Op("gelu"), output=scheme), *ORT.rules)
    mine, fusion = OpKind("mine", "pkg.mine"), Fusion(Op("conv"), FusionStep(Op("mine")))
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


def test_a_zero_point_takes_the_divisor_of_symmetric_scales_with_it() -> None:
    """MQBench's w_qscheme.symmetry=False on its academic back-end, whose symmetric scales are of half the range."""
    found = edit.weights(symmetric=False)(targets.academic(4, 8)).rules[-1].weight
    assert found == Scheme(Int(4), Scale(PerChannel()), ZeroPoint())


SUM = Kernel(Op("add"), SumFma())


def test_cpu_replaces_what_the_processor_computes_otherwise():
    there = Build("arm64", ((Kernel(Op("conv"), FloatMultiplier()), Kernel(Op("conv"), FloatMultiplier("half_up"))),))
    chip = evolve(targets.qdq, runtime=evolve(targets.qdq.runtime, cpu="wasm-simd", builds=(Build("wasm-simd"), there)))
    own = Kernel(Op("linear"), FloatMultiplier("floor"))
    chip = evolve(chip, kernels=(Kernel(Op("conv"), FloatMultiplier()), own))
    moved = edit.cpu("arm64")(chip)
    assert moved.kernels == (Kernel(Op("conv"), FloatMultiplier("half_up")), own)
    assert specs.diff(chip, moved) == (
        "kernels[conv].arithmetic.rounding: 'half_even' -> 'half_up'\nruntime.cpu: wasm-simd -> arm64"
    )
    assert edit.cpu(cpus.wasm_simd)(moved) == chip == edit.cpu("wasm-simd")(chip)
    assert edit.cpu("arm64")(moved) == moved


@pytest.mark.parametrize(
    ("target", "processor", "message"),
    [
        (
            targets.tensorrt,
            "arm64",
            "edit.cpu('arm64'), target 'tensorrt': found the runtime tensorrt with no build but its own, wanted a build for "
            "this processor. Describe its arithmetic: Runtime(builds=(Build(cpu, pairs), ...)).",
        ),
        (
            evolve(targets.qdq, runtime=evolve(targets.qdq.runtime, cpu="arm64", builds=Build("arm64"))),
            "wasm-simd",
            "edit.cpu('wasm-simd'), target 'qdq': found the runtime onnx with arm64, wanted a build for this processor. Choose "
            "one of these.",
        ),
        (
            targets.qdq,
            "x86",
            "cpus.named: found 'x86', wanted one of x86-64-vnni, x86-64-avxvnni, x86-64-avx2, x86-64-sse4, arm64, "
            "arm64-dotprod, arm64-i8mm, wasm-simd. Choose one of them.",
        ),
        (targets.qdq, 3, "edit.cpu: found 3, wanted one of specs.cpus, or its name. Write edit.cpu('arm64-dotprod')."),
    ],
)
def test_cpu_refuses_what_the_runtime_has_no_build_for(target, processor, message):
    with pytest.raises(SpecError) as e:
        edit.cpu(processor)(target)
    assert str(e.value) == message


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: cpus.Cpu("arm64", ("i8mm",)),
            "Cpu.features: found ('i8mm',), wanted the first of 'dotprod', 'i8mm'. Name each feature after those that come "
            "with it.",
        ),
        (
            lambda: cpus.Cpu("Hexagon", ("hvx",)),
            "Cpu.features: found ('hvx',), wanted no features. Name each feature after those that come with it.",
        ),
        (
            lambda: Build("arm64", ((FloatMultiplier(), "other"),)),
            "Build.replaces: found (FloatMultiplier(), 'other'), wanted a pair of kernels. Give (Kernel(...), Kernel(...)).",
        ),
        (
            lambda: Build("arm64", ((SUM, Kernel(Op("add"), SumFma("floor"))), (SUM, SUM))),
            f"Build.replaces: found ({SUM}, {SUM}), wanted each kernel once. Drop the repeated one.",
        ),
        (
            lambda: Runtime("a", cpu="arm64", builds=Build("wasm-simd")),
            "Runtime.builds: found ('wasm-simd',), wanted each processor once, arm64 among them. Add or drop a Build.",
        ),
    ],
)
def test_processors_and_builds_refuse(make, message):
    with pytest.raises(SpecError) as e:
        make()
    assert str(e.value) == message
