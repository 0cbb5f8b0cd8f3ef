"""Laws of targets as values: each is a function of the target that raises AssertionError."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import attrs

from qfunc import targets
from qfunc.graph.selectors import kinds_of
from qfunc.ops.opset import MODULE_KINDS, OPS
from qfunc.specs import (
    FLOAT32,
    Cases,
    DerivedQParams,
    FixedQParams,
    Format,
    GraphInput,
    Int,
    Op,
    Refuse,
    Scale,
    Scheme,
    Selector,
    Target,
    Unknown,
    from_json,
    to_json,
)
from qfunc.specs._values import classes_and_functions, constructor_arguments
from qfunc.specs.legality import never_an_op
from qfunc.testing.laws.data_movement import commuting_ops_commute

_KINDS = frozenset((*(op.kind for op in OPS), *MODULE_KINDS.values()))
_SLOTS = ("input", "weight", "bias", "output")


def round_trips(target: Target) -> None:
    """Check that JSON, pickle and deepcopy preserve the target and its hash, and that its repr is code."""
    text = to_json(target)
    again = from_json(text, tuple(classes_and_functions(target)))
    assert again == target, "from_json(to_json(target)) is another target"
    assert to_json(again) == text, "to_json is not stable"
    assert hash(again) == hash(target), "equal targets have different hashes"
    assert pickle.loads(pickle.dumps(target)) == target, "pickle gives another target"
    assert copy.deepcopy(target) == target, "deepcopy gives another target"
    assert " at 0x" not in target.code(), "its code shows an address, not the code that builds it"
    assert attrs.evolve(target, name=f"{target.name}'") != target, "targets of different names are equal"


def sources_have_text(target: Target) -> None:
    """Check that every source has words."""
    blank = [s for s in target.source if not any(c.isalpha() for c in s)]
    assert not blank, f"source {blank[0]!r} has no words"


def kinds_exist(target: Target) -> None:
    """Check that every kind of op named in the target is in the vocabulary or the target's `ops`, or (de)quantizes."""
    known = _KINDS | {"quantize", "dequantize"} | {op.kind for op in target.ops}
    named = [(k, repr(v)) for v in _parts(target) if isinstance(v, Op) for k in v.kinds if isinstance(k, str)]
    named += [(op.behaves_like, repr(op)) for op in target.ops if op.behaves_like]
    for kind, where in named:
        assert kind in known, f"{where} names {kind!r}, which is not a kind of op"


def selectors_can_match(target: Target) -> None:
    """Check that no rule, fusion, tie, limit or kernel has a contradictory selector."""
    chosen: list[tuple[Any, Selector]] = [
        *((r, r.select) for r in target.rules),
        *((f, f.root if f.when is None else f.root & f.when) for f in target.fusions),
        *((f, s.op) for f in target.fusions for s in f.then),
        *((t, t.select) for t in target.ties),
        *((target, select) for select in (target.fused_readers, target.commuting) if select is not None),
        *((limit, limit.select) for limit in target.limits),
        *((k, k.unit) for k in target.kernels),
    ]
    for owner, selector in chosen:
        of_inputs = any(isinstance(v, GraphInput) for v in _parts(selector))  # rules may select them
        assert of_inputs or not never_an_op(selector), f"no op is {selector!r}, which {owner!r} selects"


def formats_fit_kernels(target: Target) -> None:
    """Check that some kernel of an op, if it has kernels, accepts every format that a rule puts on the op.

    Only rules and kernels that select only by kind of op are compared.
    """
    for rule in target.rules:
        for kind in _kinds(rule.select):
            kernels = [k for k in target.kernels if kind in _kinds(k.unit) and not isinstance(k.arithmetic, Unknown)]
            for slot in ("input", "weight", "output"):
                for fmt in _formats(getattr(rule, slot)):
                    accepted = [dict(k.formats).get(slot) for k in kernels]
                    fits = any(a is None or _fits(fmt, a, slot) for a in accepted)
                    found = f"a rule puts {fmt} on the {slot} of {kind}, and no kernel of {kind} accepts it"
                    assert not kernels or fits, found


def derived_biases_have_sources(target: Target) -> None:
    """Check that some rule covers each slot from which another rule derives a scale."""
    for rule in target.rules:
        for slot in _SLOTS:
            value = getattr(rule, slot)
            for kind in _kinds(rule.select) if isinstance(value, DerivedQParams) else ():
                for source in value.of:
                    covered = any(
                        getattr(r, source) is not None and kind in (_kinds(r.select) or (kind,)) for r in target.rules
                    )
                    found = f"the {slot} of {kind} is derived from its {source}, which no rule covers"
                    assert covered, found


def refused_ops_have_no_rule(target: Target) -> None:
    """Check that no rule quantizes a kind of op that `legality` refuses entirely."""
    for refuse in target.legality:
        for kind in _kinds(refuse.select) if isinstance(refuse, Refuse) else ():
            rules = [r for r in target.rules if kind in _kinds(r.select) and any(_formats(getattr(r, s)) for s in _SLOTS)]
            assert not rules, f"legality refuses {kind}, and {rules[0]!r} quantizes it"


def nearest_can_be_emulated(target: Target) -> None:
    """Check that the `nearest` of an unknown arithmetic names a target of qfunc with known arithmetic."""
    for kernel in target.kernels:
        nearest = kernel.arithmetic.nearest if isinstance(kernel.arithmetic, Unknown) else None
        if nearest:
            found = getattr(targets, nearest, None)
            assert isinstance(found, Target), f"{nearest!r} is not a target of qfunc"
            unknown = any(isinstance(k.arithmetic, Unknown) for k in found.kernels)
            assert not unknown, f"the arithmetic of {nearest!r} is unknown too"


TARGET_LAWS: tuple[Callable[[Target], None], ...] = (
    round_trips,
    sources_have_text,
    kinds_exist,
    selectors_can_match,
    formats_fit_kernels,
    derived_biases_have_sources,
    refused_ops_have_no_rule,
    nearest_can_be_emulated,
    commuting_ops_commute,
)
"""The laws in the order in which check_target checks them."""


def _kinds(selector: Selector) -> tuple[str, ...]:
    return kinds_of(selector) if isinstance(selector, Op) else ()


def _parts(value: Any) -> Iterator[Any]:
    # All parts of a value, itself included.
    yield value
    fields = constructor_arguments(value)
    if isinstance(value, tuple):
        for part in value:
            yield from _parts(part)
    elif fields is not None:
        for part in fields.values():
            yield from _parts(part)


def _formats(value: Any) -> list[Format]:
    match value:
        case Scheme(scale=Scale(dynamic=True)):
            return [FLOAT32]  # the kernel that reads the tensor quantizes it
        case Scheme(format=fmt):
            return [fmt]
        case FixedQParams(scheme=scheme):
            return [scheme.format]
        case Cases(cases=cases, default=default):
            return [f for v in (*(c[1] for c in cases), default) for f in _formats(v)]
    return []


def _fits(fmt: Format, accepted: tuple[Format, ...], slot: str) -> bool:
    if slot == "weight" and isinstance(fmt, Int):
        return any(
            isinstance(a, Int) and a.signed == fmt.signed and a.qmin <= fmt.qmin and fmt.qmax <= a.qmax for a in accepted
        )
    return fmt in accepted
