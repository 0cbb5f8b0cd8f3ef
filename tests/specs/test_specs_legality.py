"""Legality rules: what they say is possible, is about ops, and asks for something."""

import json

import pytest
from attrs import evolve

from qfunc import targets
from qfunc.errors import SpecError
from qfunc.ops.opset import MODULE_KINDS, OPS
from qfunc.specs import (
    AllOf,
    AnyInput,
    AnyOf,
    Attr,
    Constant,
    Everything,
    From,
    GraphInput,
    Int,
    Log,
    Name,
    NonNegative,
    Op,
    PerTensor,
    Refuse,
    Require,
    Target,
    diff,
    from_json,
    to_json,
)  # fmt: skip
from qfunc.specs.legality import never_an_op
from qfunc.graph.selectors import kinds_of

CONV, LINEAR = Op("conv"), Op("linear")
WORDS = {"because": "guide, 2"}
EVERY = [getattr(targets, name) for name in targets.__all__ if isinstance(getattr(targets, name), Target)]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Require(CONV, "weight", **WORDS),
            "Require.formats, zero_point, power_of_two, shared: found None, wanted at least one of them. "
            "Give a requirement of the chip.",
        ),
        (
            lambda: Require(CONV, "weight", formats=Log(), zero_point=True, **WORDS),
            "Require.zero_point: found True, wanted None or False, for only Int has one. Drop it.",
        ),
        (
            lambda: Require(CONV, "weight", narrower=False, zero_point=False, **WORDS),
            "Require.narrower: found False, wanted formats beside it. Give the formats that the chip accepts.",
        ),
        (
            lambda: Require(CONV & LINEAR, "weight", zero_point=False, **WORDS),
            "Require.select: found AllOf((Op('conv'), Op('linear'))), wanted a selector that some op can match. "
            "Select ops, e.g. by edit.op.",
        ),
        (
            lambda: Refuse(Constant(), because="guide, 2", do="Drop it."),
            "Refuse.select: found Constant(), wanted a selector that some op can match. Select ops, e.g. by edit.op.",
        ),
        (
            lambda: Refuse(CONV, because="", do="Drop it."),
            "Refuse.because: found '', wanted a non-empty str. Give a text.",
        ),
        (lambda: Refuse(CONV, because="guide, 2", do=""), "Refuse.do: found '', wanted a non-empty str. Give a text."),
        (
            lambda: Require("conv", "weight", zero_point=False, **WORDS),
            "Require.select: found 'conv', wanted a selector. "
            "Use edit.name, edit.op, edit.module or edit.where, or combine them with &, | and ~.",
        ),
        (
            lambda: Require(CONV, ("weight", "weight"), zero_point=False, **WORDS),
            "Require.slots: found ('weight', 'weight'), wanted different slots among 'input', 'weight', 'bias', 'output'. "
            "Name each slot once.",
        ),
        (
            lambda: Require(CONV, "weight", shared="per_tensor", **WORDS),
            "Require.shared: found 'per_tensor', wanted a tuple of PerTensor or PerChannel or PerBlock or PerToken. "
            "Replace this one.",
        ),
        (
            lambda: Target(**{**{f: getattr(EVERY[0], f) for f in ("name", "rules", "source", "weight", "activation")},
                              "legality": CONV}),
            "Target.legality: found Op('conv'), wanted a tuple of Require or Refuse or RequireSizes or "
            "RequireUnit. Replace this one.",
        ),
    ],
)  # fmt: skip
def test_a_rule_that_says_nothing_or_can_never_match_is_refused(make, message):
    with pytest.raises(SpecError) as e:
        make()
    assert str(e.value) == message


@pytest.mark.parametrize(
    "selector",
    [
        CONV & LINEAR, CONV & ~CONV, ~CONV & CONV, Op(("conv", "linear")) & ~Op(("linear", "add", "conv")),
        ~Op(("conv", "add")) & CONV, ~Everything(), ~(CONV | ~CONV), ~AllOf((Everything(), ~CONV | CONV)),
        Attr("groups", 1) & Attr("groups", 2), Constant(), GraphInput(), From(GraphInput()), GraphInput() | Constant(),
        CONV & Constant(), CONV & Name("a.*") & ~Name("a.*"), ~~(CONV & LINEAR), AnyOf((CONV & LINEAR, Constant())),
    ],
    ids=repr,
)  # fmt: skip
def test_these_match_no_op(selector):
    assert never_an_op(selector)


@pytest.mark.parametrize(
    "selector",
    [
        CONV, CONV | LINEAR, CONV & Op(("conv", "linear")), Everything(), ~CONV, CONV & ~LINEAR, Name("a.*") & ~Name("b.*"),
        Attr("groups", 1) & Attr("depthwise", False), Attr("groups", 1) & Attr("groups", True), ~Constant(), NonNegative(),
        AnyInput(GraphInput()), CONV | Constant(), Op(("conv", "linear")) & ~LINEAR, From(CONV), ~~CONV, ~(CONV & LINEAR),
    ],
    ids=repr,
)  # fmt: skip
def test_these_can_match(selector):
    assert not never_an_op(selector)


def test_words_and_single_values_stand_for_tuples():
    rule = Require(CONV, "weight", formats=Int(8), shared=PerTensor(), **WORDS)
    assert (rule.slots, rule.formats, rule.shared) == (("weight",), (Int(8),), (PerTensor(),))


def test_legality_belongs_to_the_hardware_half_and_diff_shows_it():
    rule = Refuse(CONV, because="guide, 2", do="Drop it.")
    base = evolve(EVERY[0], legality=())
    changed = evolve(base, legality=rule)
    assert base.hardware() != changed.hardware()
    assert changed.with_algorithm_of(base) == changed
    assert diff(base, changed) == f"legality: () -> {(rule,)!r}" or "legality: only in the second: Refuse" in diff(
        base, changed
    )
    assert from_json(to_json(changed)) == changed


def test_a_target_saved_before_legality_has_none():
    text = json.loads(to_json(EVERY[0]))
    del text["spec"]["legality"]
    assert from_json(json.dumps(text)).legality == ()


@pytest.mark.parametrize("target", EVERY, ids=lambda t: t.name)
def test_targets_speak_of_ops_that_exist(target):
    """A misspelt kind would match nothing and refuse nothing."""
    known = {op.kind for op in OPS} | set(MODULE_KINDS.values()) | {op.kind for op in target.ops}
    assert {kind for rule in target.legality for kind in kinds(rule.select)} <= known


def kinds(selector):
    """Every op kind that a selector names."""
    if isinstance(selector, Op):
        return set(kinds_of(selector))
    inner = getattr(selector, "of", getattr(selector, "producer", ()))
    return {kind for one in (inner if isinstance(inner, tuple) else (inner,)) for kind in kinds(one)}
