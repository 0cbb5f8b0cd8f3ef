"""Check the sizes of tensors against the legality of a target."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from torch import fx

from qfunc.graph.selectors import Context, constant_shape, matches
from qfunc.placement.fusion import FusedGroups, match_fusions, with_roots
from qfunc.placement.legality.violation import WITHOUT_FILE, Violation, raise_violations, without_repetitions
from qfunc.placement.rules import GroupRules
from qfunc.specs import RequireSizes, Span, Target
from qfunc.specs.file_format import format_of

Sizes = Mapping[str, tuple[int, ...]]
"""The sizes of tensors by the names of their nodes."""


def limits_sizes(target: Target) -> bool:
    """Return True if a target or its lowering has rules of sizes."""
    return bool(_rules(target))


def limits_sizes_of(node: fx.Node, context: Context, target: Target) -> bool:
    """Return True if a target or its lowering has a rule of the sizes of an op."""
    return any(matches(rule.select, node, context) for rule, _ in _rules(target))


def wrong_sizes(context: Context, groups: FusedGroups, rules: GroupRules, target: Target, sizes: Sizes) -> Iterator[Violation]:
    """Yield the ops with tensors of sizes that a target refuses, in the order of its rules.

    Args:
        context, groups, rules: The float graph, its groups, and the target's rules on it.
        target: The target.
        sizes: The known sizes of activations; activations without sizes are not checked.
    """
    for rule, more in _rules(target):
        for group in groups.groups:
            # An op with float input and float output runs elsewhere, on purpose.
            if rules.keep_float(group, "input") and rules.keep_float(group, "output"):
                continue
            for node in group.nodes:
                for found, wanted in refused_sizes(rule, node, context, sizes):
                    yield Violation(context.fact(node).path, "", "", found, wanted, rule.do + more)


def require_sizes(network: fx.GraphModule, target: Target, sizes: Sizes) -> None:
    """Raise if a target or its lowering refuses the sizes of a tensor of a float network.

    Raises:
        SpecError: sizes are refused; the message names the first ops, the vendor's rule and the remedy.
    """
    bare = Context(network, target.ops)
    groups = match_fusions(bare, target.fusions, target.rules)
    context = with_roots(bare, groups)
    found = wrong_sizes(context, groups, GroupRules(context, target), target, sizes)
    raise_violations(without_repetitions(found), target)


def refused_sizes(rule: RequireSizes, node: fx.Node, context: Context, sizes: Sizes) -> Iterator[tuple[str, str]]:
    """Yield (found, wanted) for each tensor of an op that a rule refuses."""
    tensors = [*context.slots(node), ("output", node)]
    for slot, tensor in tensors if matches(rule.select, node, context) else ():
        constant = constant_shape(tensor)
        shape = sizes.get(tensor.name) if constant is None else constant
        if slot not in rule.slots or shape is None:
            continue
        if wanted := _requirement(rule, shape, constant is not None):
            name = "" if tensor is node else f" {context.fact(tensor).path!r}"
            yield f"sizes {list(shape)} of its {slot}{name}", f"{wanted}: {rule.because}"


def _requirement(rule: RequireSizes, shape: tuple[int, ...], constant: bool) -> str:
    # Return the first requirement that sizes break, or "".
    if rule.rank is not None and not _inside(len(shape), rule.rank):
        return f"{rule.rank.words()} axes"
    if rule.elements is not None and not _inside(math.prod(shape if constant else shape[1:]), rule.elements):
        return f"{rule.elements.words()} elements"
    first = 0 if constant else 1
    for axis, span in rule.axes:
        place = axis if axis >= 0 else axis + len(shape)
        size = shape[place] if (0 if axis >= 0 else first) <= place < len(shape) else 1
        if not _inside(size, span):
            return f"{span.words()} along axis {axis}"
    return ""


def _inside(number: int, span: Span) -> bool:
    return span.low <= number and (span.high is None or number <= span.high) and number % span.multiple == 0


def _rules(target: Target) -> list[tuple[RequireSizes, str]]:
    of_files = format_of(target.lowering).legality
    own = [(rule, "") for rule in target.legality if isinstance(rule, RequireSizes)]
    return own + [(rule, WITHOUT_FILE) for rule in of_files if isinstance(rule, RequireSizes)]
