"""The rules of a target: which of them select a fused group, their value for one tensor, and its overrides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from attrs import evolve
from torch import fx

from qfunc.errors import SpecError
from qfunc.graph.selectors import Context, attribute_names, attributes, matches, names_one_op
from qfunc.placement.fusion import FusedGroup
from qfunc.specs import AllOf, Cases, FixedQParams, Int, KeepFloat, Op, PerChannel, PerTensor, Scheme, Slower, Target
from qfunc.specs.edit._rewrites import narrowed
from qfunc.specs.text.datasheet import selected


class GroupRules:
    """The rules of a target that select each fused group of a graph, matched once.

    A rule that names an op, a class or a predicate selects a group if it matches any of its nodes; one of op kinds, if it
    matches the root.  Rules `beside_integers` select no group whose root is in `islands` or `slower`, and no rule selects a
    product in `slower`.
    """

    def __init__(
        self,
        context: Context,
        target: Target,
        islands: frozenset[fx.Node] = frozenset(),
        slower: Mapping[fx.Node, Slower] = MappingProxyType({}),
    ) -> None:
        self.context, self.rules, self.islands, self.slower = context, target.rules, islands, slower
        self._of_one_op = [names_one_op(rule.select) for rule in target.rules]
        self._applies: dict[tuple[fx.Node, int], bool] = {}
        self._keeps_float: dict[tuple[fx.Node, str], bool] = {}

    def first(self, group: FusedGroup, slot: str, edge: fx.Node | None = None) -> int | None:
        """Return the index of the first rule with a value for a slot that selects a group.

        Args:
            group: The group.
            slot: The slot.
            edge: The tensor that the slot reads, which a rule of certain edges must match.
        """
        for index, rule in enumerate(self.rules):
            if getattr(rule, slot) is None or not self.applies(index, group):
                continue
            if rule.edges is None or edge is None or matches(rule.edges, edge, self.context):
                return index
        return None

    def value(self, group: FusedGroup, slot: str, tensor: fx.Node, edge: fx.Node | None = None) -> tuple[Any, int]:
        """Return the value of the first rule for a tensor in a slot of a group, and the index of the rule.

        Without such a rule, the value is None and the index -1.
        """
        index = self.first(group, slot, edge)
        if index is None:
            return None, -1
        value = getattr(self.rules[index], slot)
        if isinstance(value, Cases):
            cases = (v for selector, v in value.cases if matches(selector, tensor, self.context))
            value = next(cases, value.default)
        return value, index

    def keep_float(self, group: FusedGroup, slot: str) -> bool:
        """Return True if the first rule for a whole slot of a group keeps it in float, or no rule for a group in `slower`."""
        key = group.root, slot
        if key not in self._keeps_float:
            values = ((i, getattr(r, slot)) for i, r in enumerate(self.rules) if r.edges is None)
            first = next((value for i, value in values if value is not None and self.applies(i, group)), None)
            self._keeps_float[key] = isinstance(first, KeepFloat) or (first is None and group.root in self.slower)
        return self._keeps_float[key]

    def applies(self, index: int, group: FusedGroup) -> bool:
        """Return True if the rule at an index selects a group."""
        key = group.root, index
        if key not in self._applies:
            nodes, rule = group.nodes if self._of_one_op[index] else (group.root,), self.rules[index]
            light = rule.beside_integers and (group.root in self.islands or group.root in self.slower)
            left = light or (group.root in self.slower and self._is_product(group))
            self._applies[key] = not left and any(matches(rule.select, n, self.context) for n in nodes)
        return self._applies[key]

    def _is_product(self, group: FusedGroup) -> bool:
        # An op that has no rule as one beside integers.
        light = (rule for rule in self.rules if rule.beside_integers)
        return not any(matches(rule.select, group.root, self.context) for rule in light)


def near_rule(node: fx.Node, target: Target, context: Context) -> str:
    """Return why a rule for ops of this kind does not select an op, by the attributes that it tests; "" without such a rule.

    >>> from qfunc.frontend.capture import capture
    >>> from qfunc.targets import gguf
    >>> from torch import nn
    >>> network = capture()(nn.Linear(40, 8))
    >>> node = next(n for n in network.graph.nodes if n.op == "call_function")
    >>> near_rule(node, gguf("Q8_0"), Context(network))
    'rule 0 selects linear and in_features a multiple of 32; here in_features is 40'
    """
    values = attributes(node, context)
    for index, rule in enumerate(target.rules):
        tested = [name for name in dict.fromkeys(attribute_names(rule.select)) if name in values]
        parts = rule.select.of if isinstance(rule.select, AllOf) else ()
        named = any(isinstance(part, Op) and matches(part, node, context) for part in parts)
        floats = isinstance(rule.input, KeepFloat) or isinstance(rule.output, KeepFloat)
        if named and tested and not floats and not matches(rule.select, node, context):
            here = ", ".join(f"{name} is {values[name]!r}" for name in tested)
            return f"rule {index} selects {selected(rule.select)}; here {here}"
    return ""


def algorithm(target: Target, role: str, nodes: Sequence[fx.Node], context: Context) -> tuple[Any, Any, int | None]:
    """Return the estimator and the function of a site, and the number of bits that an override sets, or None.

    Args:
        target: The target; its later overrides replace earlier ones.
        role: "activation", "weight" or "bias".
        nodes: The nodes by which an override may select the site.
        context: The graph.
    """
    default = getattr(target, role) or target.weight
    estimator, function, bits = default.estimator, default.function, None
    for change in target.overrides:
        if change.role == role and any(matches(change.select, n, context) for n in nodes):
            estimator, function = change.estimator or estimator, change.function or function
            bits = change.bits or bits
    return estimator, function, bits


def with_axis(value: Any, axis: int, rank: int) -> Any:
    """Return a weight's value with the axis of its op's output channels in place of "channel"."""
    scheme = value.scheme if isinstance(value, FixedQParams) else value
    if not isinstance(scheme.scale.shared, PerChannel) or scheme.scale.shared.axis != "channel":
        return value
    if axis < 0 and rank != 2:  # a stack of matrices has no single channel axis
        return evolve(value, scale=evolve(scheme.scale, shared=PerTensor()))
    return evolve(value, scale=evolve(scheme.scale, shared=PerChannel(axis)))


def narrow(value: Any, bits: int, where: str) -> Any:
    """Return a scheme with the smaller number of bits that an override sets.

    Raises:
        SpecError: the hardware dictates the codes or a zero point outside of them, or has fewer bits.
    """
    fmt = value.format if isinstance(value, Scheme) else None
    if not isinstance(fmt, Int):
        wanted = f"None, because the hardware's weights are {'fixed' if fmt is None else repr(fmt)}, with codes of one width"
        raise SpecError(where="Override.bits", found=repr(bits), wanted=wanted, do="Drop bits, or choose other hardware.")
    if bits > fmt.bits:
        raise SpecError(
            where="Override.bits",
            found=repr(bits),
            wanted=f"at most the {fmt.bits} bits of the hardware's {fmt}",
            do="Choose fewer bits, or other hardware.",
        )
    narrower = narrowed(fmt, bits, fmt.signed)
    zero = None if value.zero_point is None else value.zero_point.value
    if zero is not None and not narrower.qmin <= zero <= narrower.qmax:
        raise SpecError(
            where=where,
            found=f"weights of {bits} bits, without the code {zero}, which the hardware takes for 0",
            wanted=f"the codes of {fmt!r}",
            do="Leave the weights of the op at their width, or the op in float by edit.skip.",
        )
    return evolve(value, format=narrower) if bits < fmt.bits else value
