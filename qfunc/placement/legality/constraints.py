"""Check every site and op of a plan against the legality of its target."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from itertools import chain
from typing import Any

from attrs import evolve
from torch import fx

from qfunc.graph.data_movement import keeps_codes
from qfunc.graph.selectors import attribute_names, attributes, constant_shape, matches
from qfunc.ops.indexing import element
from qfunc.ops.node import kind_of
from qfunc.ops.sizes import is_number
from qfunc.placement.fusion import FusedGroup
from qfunc.placement.legality.feasibility import infeasibility
from qfunc.placement.legality.sizes import wrong_sizes
from qfunc.placement.legality.statistics import normalises_by_batch
from qfunc.placement.legality.stored_schemes import refusal
from qfunc.placement.legality.violation import WITHOUT_FILE, Violation, raise_violations, without_repetitions
from qfunc.placement.place import PlacedSite, Plan
from qfunc.placement.without_effect.unmatched_selectors import atoms
from qfunc.specs import (
    Format,
    Int,
    Op,
    PerTensor,
    PerToken,
    Refuse,
    Require,
    Scheme,
    Selector,
    Target,
)
from qfunc.specs.file_format import format_of
from qfunc.specs.scheme import Granularity

_BY_BATCH = "a BatchNorm that normalises by the statistics of the batch"
_STATISTICS = "running statistics, because a file computes each example by itself"
_OTHER_NORM = "Train with track_running_stats=True, or put nn.GroupNorm or nn.InstanceNorm in its place."
_RESULTS = operator.getitem, element
"""The functions that take one of an op's several results."""
_KNOWN = "an op that has an ONNX form"
_DESCRIBE = "Replace it by other ops, or describe it by an OpKind with `onnx` or `behaves_like` in the target's ops."
_ODD = "an odd size: ONNX centres the window on the channel, which an even one of PyTorch is not"
_ODD_SIZE = "Use an odd size."
_FIXED = "a divisor that is the same for all sizes of a batch"
_CORRECTION = "Use correction=0, or reduce over other axes."


def require_legal(plan: Plan, target: Target) -> None:
    """Raise if the target's `legality` or its lowering refuses a part of a plan, or if a part is not feasible.

    Raises:
        SpecError: something is refused; the message names the first ops and tensors, the vendor's rule and the remedy.
    """
    raise_violations(violations(plan, target), target)


def violations(plan: Plan, target: Target) -> tuple[Violation, ...]:
    """Return the violations of a plan in the order of the graph, and each tensor once for each reason.

    >>> from qfunc.frontend.capture import capture
    >>> from qfunc.placement.place import plan
    >>> from qfunc.targets import tensorrt
    >>> from torch import nn
    >>> violations(plan(capture()(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())), tensorrt), tensorrt)
    ()
    """
    of_constants = wrong_sizes(plan.context, plan.groups, plan.rules, target, {})
    return without_repetitions(chain(_each_violation(plan, target), of_constants))


def _each_violation(plan: Plan, target: Target) -> Iterator[Violation]:
    check = _Check(plan, target)
    for group in plan.groups.groups:
        for node in group.nodes:
            yield from check.op(group, node)
            for slot, producer in plan.context.slots(node):
                if producer not in group.nodes and (placed := check.read_by(node, producer)):
                    yield from check.tensor(group, (node,), slot, placed)
        for placed in check.outputs.get(group.output, ()):
            yield from check.tensor(group, group.nodes, "output", placed)


class _Check:
    def __init__(self, plan: Plan, target: Target) -> None:
        self.context, self.rules, self.target = plan.context, plan.rules, target
        written = tuple(evolve(op, kind=op.behaves_like or op.kind) for op in target.ops)
        self.written = evolve(plan.context, ops=written)
        self.writes_graph = target.lowering is not None and not format_of(target.lowering).parameters
        self.overridden = any(o.bits for o in target.overrides)
        self.refused: dict[tuple[Scheme, bool], str] = {}
        self.read = {(p.tensor, reader): p for p in plan.placed for reader in p.readers}
        self.sizes: set[fx.Node] = set()  # sizes, and arithmetic on sizes, which the hardware never runs
        for node in plan.context.model.graph.nodes:
            kind, inputs = kind_of(node), node.all_input_nodes
            if kind == "size" or is_number(node) or (kind == "unknown" and inputs and self.sizes.issuperset(inputs)):
                self.sizes.add(node)
        self.outputs: dict[fx.Node, list[PlacedSite]] = {}
        for placed in plan.placed:
            if placed.site.slot == "output":
                self.outputs.setdefault(placed.tensor, []).append(placed)

    def read_by(self, reader: fx.Node, tensor: fx.Node) -> PlacedSite | None:
        """Return the site whose value a reader gets as a tensor, directly or after ops that only move codes."""
        while (tensor, reader) not in self.read:
            inputs = [n for s, n in self.context.slots(tensor) if s == "input"]
            if not keeps_codes(tensor, self.context, self.target) or len(inputs) != 1:
                return None
            reader, tensor = tensor, inputs[0]
        return self.read[tensor, reader]

    def op(self, group: FusedGroup, node: fx.Node) -> Iterator[Violation]:
        if node in self.sizes or isinstance(node.target, type):  # the class of the model's outputs
            return
        refused = [*self._refused(group, node)]
        yield from refused
        if self.writes_graph and not refused and (violation := self._without_form(node)):
            yield violation

    def _refused(self, group: FusedGroup, node: fx.Node) -> Iterator[Violation]:
        lowering = self.target.lowering
        if self.writes_graph and normalises_by_batch(self.context.model, node):
            yield Violation(self._path(node), "", "", _BY_BATCH, _STATISTICS, _OTHER_NORM + WITHOUT_FILE)
            return
        # An op with float input and float output runs elsewhere, on purpose.
        if self.rules.keep_float(group, "input") and self.rules.keep_float(group, "output"):
            return
        limits = format_of(lowering).legality
        for rules, wanted, more in (
            (self.target.legality, "an op that it runs", ""),
            (limits, f"an op that {lowering!r} writes", WITHOUT_FILE),
        ):
            refused = [r for r in rules if isinstance(r, Refuse) and self._refuses(r.select, node)]
            for rule in refused:
                found = self._describe(node, rule.select)
                yield Violation(self._path(node), "", "", found, f"{wanted}: {rule.because}", rule.do + more)
            if refused:
                return

    def _without_form(self, node: fx.Node) -> Violation | None:
        # Ops that no graph format holds: functions that qfunc does not know, and deviations divided by the size of a batch.
        kind = self.context.kind(node)
        if kind == "unknown" and node.op in ("call_function", "call_method") and node.target not in _RESULTS:
            return Violation(self._path(node), "", "", self._describe(node, Op("unknown")), _KNOWN, _DESCRIBE + WITHOUT_FILE)
        given = attributes(node, self.context)
        if given.get("mixes") and given.get("correction"):
            found = f"{kind!r} over the examples with correction={given['correction']!r}"
            return Violation(self._path(node), "", "", found, _FIXED, _CORRECTION + WITHOUT_FILE)
        if kind == "local_response_norm" and given["size"] % 2 == 0:
            found = f"the kind {kind!r} with size={given['size']}"
            return Violation(self._path(node), "", "", found, _ODD, _ODD_SIZE + WITHOUT_FILE)
        return None

    def _refuses(self, select: Selector, node: fx.Node) -> bool:
        # A user's op is written as the kind that it behaves like; its own kind counts if the rule names it.
        op = self.context.user_op(node)
        if op is None or op.behaves_like is None or op.kind in _kinds_of(select):
            return matches(select, node, self.context)
        return matches(select, node, self.written)

    def _describe(self, node: fx.Node, select: Selector) -> str:
        # Describe an op by its kind, and by the attributes that the rule tests.
        kind, values = self.context.kind(node), attributes(node, self.context)
        if kind == "unknown":
            return f"{getattr(node.target, '__name__', node.target)}, an op of unknown kind"
        shown = [f"{name}={values[name]!r}" for name in dict.fromkeys(attribute_names(select)) if name in values]
        return f"the kind {kind!r}" + (f" with {', '.join(shown)}" if shown else "")

    def tensor(self, group: FusedGroup, nodes: tuple[fx.Node, ...], slot: str, placed: PlacedSite) -> Iterator[Violation]:
        """Yield the violations of a site as one slot of an op, or of a fused group."""
        if self.rules.keep_float(group, slot):
            return
        site = placed.site
        parts = [*self._by_rules(nodes, slot, placed)] or [*infeasibility(site, placed.tensor, self.target)]
        for found, wanted, do in parts or self._by_lowering(placed, self._path(nodes[0])):
            yield Violation(self._path(nodes[0]), slot, site.name, found, wanted, do)

    def _by_rules(self, nodes: tuple[fx.Node, ...], slot: str, placed: PlacedSite) -> Iterator[tuple[str, str, str]]:
        for rule in self.target.legality:
            if not isinstance(rule, Require) or slot not in rule.slots:
                continue
            if any(matches(rule.select, n, self.context) for n in nodes):
                for found, wanted, edit in _violated(rule, placed, self.context.channel_axis(nodes[0]), self.overridden):
                    yield found, f"{wanted}: {rule.because}", _remedy(edit, slot, placed.site.value)

    def _by_lowering(self, placed: PlacedSite, reader: str) -> Iterator[tuple[str, str, str]]:
        site, lowering = placed.site, self.target.lowering
        key = site.scheme, site.constant
        if key not in self.refused:
            self.refused[key] = refusal(lowering, *key)
        if wanted := self.refused[key]:
            found = f"{site.scheme.format!r} for {self.target.lowering!r}"
            yield found, wanted, "Set it with edit.deploy(...), or edit the scheme."
        elif format_of(lowering).parameters and site.constant and not self._all_in_codes(placed):
            do = f"Keep the layer in float: edit.skip(edit.name({reader!r}))."
            yield "a weight that other ops read in float", "one that only linear layers read", do

    def _all_in_codes(self, placed: PlacedSite) -> bool:
        return all((placed.tensor, user) in self.read for user in placed.tensor.users)

    def _path(self, node: fx.Node) -> str:
        return self.context.fact(node).path


def _kinds_of(select: Selector) -> set[str]:
    return {kind for leaf in atoms(select) if isinstance(leaf, Op) for kind in leaf.kinds if isinstance(kind, str)}


def _violated(rule: Require, placed: PlacedSite, axis: int, overridden: bool) -> Iterator[tuple[str, str, str]]:
    # Yield (found, wanted, the keyword of edit.weights or edit.activations that resolves it).
    site, scheme = placed.site, placed.site.scheme
    fmt, zero_point, shared = scheme.format, scheme.zero_point, scheme.scale.shared
    if rule.formats and not any(_fits(wanted, fmt, site.constant and rule.narrower) for wanted in rule.formats):
        yield repr(fmt), _either(rule.formats), _keyword(rule.formats[0], fmt, site.slot == "weight" and not overridden)
    always_zero = zero_point is None or zero_point.value == 0 or getattr(site.value, "zero_point", None) == 0
    if rule.zero_point is False and not always_zero:
        yield "a zero point", "none", "symmetric=True"
    if rule.zero_point and isinstance(fmt, Int) and zero_point is None:
        yield "no zero point", "one", "symmetric=False"
    if rule.power_of_two and not scheme.scale.power_of_two:
        yield "scales of any size", "powers of two", "power_of_two=True"
    rank = len(constant_shape(placed.tensor) or ())
    if rule.shared and not any(_same(wanted, shared, axis, rank) for wanted in rule.shared):
        yield f"scales {shared!r}", _either(rule.shared), f"granularity={rule.shared[0]!r}"


def _either(values: tuple[Any, ...]) -> str:
    return " or ".join(map(repr, values))


def _fits(wanted: Format, fmt: Format, narrower: bool) -> bool:
    # Constants are quantized offline, so a narrower range is fine unless the rule forbids it; the chip clamps activations.
    if not narrower or not isinstance(wanted, Int) or not isinstance(fmt, Int):
        return wanted == fmt
    return wanted.signed == fmt.signed and wanted.qmin <= fmt.qmin and fmt.qmax <= wanted.qmax


def _same(wanted: Granularity, shared: Granularity, axis: int, rank: int) -> bool:
    if type(wanted) is not type(shared) or isinstance(wanted, PerTensor | PerToken):
        return wanted == shared
    assert not isinstance(shared, PerTensor | PerToken)
    axes = [axis if g.axis == "channel" else int(g.axis) for g in (wanted, shared)]
    same_size = getattr(wanted, "size", 0) == getattr(shared, "size", 0)
    return same_size and len({a % rank if rank else a for a in axes}) == 1


def _keyword(wanted: Format, fmt: Format, fixed_width: bool) -> str:
    # Empty if no keyword of edit gives the format: `edit.weights(bits=)` can only undo an earlier narrowing.
    if not isinstance(wanted, Int) or not isinstance(fmt, Int) or (fixed_width and wanted.bits != fmt.bits):
        return ""
    changed = [f"{n}={getattr(wanted, n)}" for n in ("bits", "signed") if getattr(wanted, n) != getattr(fmt, n)]
    return ", ".join(changed)


def _remedy(keyword: str, slot: str, value: Any) -> str:
    role = {"weight": "weights", "input": "activations", "output": "activations"}.get(slot)
    if role is None or not keyword or not isinstance(value, Scheme):
        return "Edit the rule that quantizes it, or leave the op in float by edit.skip."
    return f"Use edit.{role}({keyword}), or leave the op in float by edit.skip."
