"""Laws that every spec obeys, on generated specs."""

import pickle

import attrs
import pytest
from hypothesis import HealthCheck, given, settings

import qfunc.specs
from qfunc import targets
from qfunc.numerics import libraries
from qfunc.specs import Int, Scheme, Target, diff, edit, from_json, to_json
from qfunc.targets import arithmetics
from tests.specs import strategies as made

relaxed = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


@relaxed
@given(made.specs)
def test_json_is_lossless(spec):
    back = from_json(to_json(spec))
    assert (back, repr(back), hash(back)) == (spec, repr(spec), hash(spec))
    assert to_json(back) == to_json(spec)


@relaxed
@given(made.specs)
def test_pickle_is_lossless(spec):
    back = pickle.loads(pickle.dumps(spec))
    assert (back, hash(back)) == (spec, hash(spec))


@relaxed
@given(made.specs)
def test_no_field_can_be_assigned(spec):
    for name in (f.name for f in attrs.fields(type(spec))):
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            setattr(spec, name, None)


@relaxed
@given(made.schemes() | made.selectors | made.kernels | made.rules | made.fusions)
def test_the_repr_builds_the_value(spec):
    assert eval(repr(spec), vars(qfunc.specs) | vars(arithmetics) | vars(libraries), {"inf": float("inf")}) == spec


@relaxed
@given(made.specs, made.specs)
def test_diff_is_empty_if_and_only_if_equal(a, b):
    assert diff(a, a) == diff(a, from_json(to_json(a))) == ""
    assert (diff(a, b) == "") == (a == b)


@relaxed
@given(made.targets, made.targets)
def test_diff_of_targets_is_empty_if_and_only_if_equal(a, b):
    mixed = attrs.evolve(a, rules=b.rules, kernels=(*a.kernels, *b.kernels), runtime=b.runtime)
    assert (diff(a, mixed) == "") == (a == mixed)


@relaxed
@given(made.targets)
def test_diff_sees_order_and_repetition(target):
    for name in ("rules", "fusions", "kernels", "overrides"):
        old = getattr(target, name)
        for new in (old[::-1], old + old):
            changed = attrs.evolve(target, **{name: new})
            assert (diff(target, changed) == "") == (diff(changed, target) == "") == (old == new)


@relaxed
@given(made.targets, made.selectors, made.schemes())
def test_edits_never_change_their_input_and_compose(target, selector, scheme):
    before, rules = to_json(target), target.rules
    edits = (
        edit.skip(selector),
        edit.inputs(selector, scheme),
        edit.weights(bits=4),
        edit.override(selector, weights={"bits": 8}),
    )
    edited = edit.pipe(target, *edits)
    assert to_json(target) == before
    assert target.rules is rules
    assert edited == edit.pipe(edit.pipe(target, *edits[:2]), *edits[2:])
    assert edited.rules[0].input == scheme  # the later edit stands in front
    assert edited.overrides[-1].bits == 8
    assert edit.pipe(target) is target


@relaxed
@given(made.selectors, made.selectors, made.selectors)
def test_the_algebra_flattens_and_negates(a, b, c):
    assert a & (b & c) == (a & b) & c
    assert a | (b | c) == (a | b) | c
    assert ~~a == a
    assert hash(a & b) == hash(a & b)
    for combined in (a & b & c).of:
        assert type(combined) is not qfunc.specs.AllOf


@relaxed
@given(made.ints())
def test_bounds_that_say_nothing_are_dropped(fmt):
    assert Int(fmt.bits, fmt.signed, fmt.qmin, fmt.qmax) == fmt
    assert hash(Int(fmt.bits, fmt.signed, fmt.qmin, fmt.qmax)) == hash(fmt)


def test_the_full_range_is_the_default():
    assert Int(8, low=-128, high=127) == Int(8)
    assert repr(Int(8, low=-128)) == "Int(8)"


@relaxed
@given(made.targets, made.targets)
def test_the_hardware_half_keeps_its_algorithms_apart(a, b):
    mixed = a.with_algorithm_of(b)
    assert mixed.hardware() == a.hardware()
    assert b.with_algorithm_of(a).with_algorithm_of(b) == b
    assert a.with_algorithm_of(mixed) == mixed  # of one hardware: the other itself
    assert (mixed.weight, mixed.activation, mixed.bias) == (b.weight, b.activation, b.bias)


def test_a_real_target_survives_everything():
    target = targets.onnxruntime
    assert isinstance(target, Target)
    assert from_json(to_json(target)) == pickle.loads(pickle.dumps(target)) == target
    assert len({target, from_json(to_json(target))}) == 1
    assert max(map(len, target.code().splitlines())) <= 160


def test_diff_reads_like_a_datasheet():
    target = targets.onnxruntime
    other = edit.pipe(target, edit.activations(bits=4), edit.skip(edit.op("softmax")))
    lines = diff(target, attrs.evolve(other, name="mine", rules=other.rules[:2])).splitlines()
    assert lines[:3] == [
        "name: 'onnxruntime' -> 'mine'",
        "rules[conv, linear, matmul].input.format.bits: 8 -> 4",
        "rules[conv, linear, matmul].output.format.bits: 8 -> 4",
    ]
    assert "rules[softmax].input: Scheme(Int(8, signed=False), zero_point=ZeroPoint()) -> KeepFloat()" in lines
    assert lines[-1] == "rules: the same entries in another order"
    assert diff(Scheme(), None) == "value: Scheme(Int(8)) -> None"
