"""Placement: the groups and the quantized tensors of a float graph on a target, as one frozen plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import evolve, field, frozen
from torch import fx

from qfunc import functions
from qfunc.errors import SpecError
from qfunc.graph.data_movement import TRANSPARENT, keeps_codes, moved_input, movement_chain, only_moves_codes, reads_values
from qfunc.graph.dtypes import node_types
from qfunc.graph.selectors import Context, constant_shape, matches
from qfunc.ops.node import is_constant
from qfunc.placement.fusion import FusedGroup, FusedGroups, match_fusions, with_roots
from qfunc.placement.islands import rules_of, with_islands
from qfunc.placement.legality.conflicts import conflict_error, format_of
from qfunc.placement.rules import GroupRules, algorithm, narrow, with_axis
from qfunc.placement.site_table import PlacedSite, SiteTable
from qfunc.placement.ties import with_shared_algorithms
from qfunc.placement.without_effect.unmatched_selectors import require_matches
from qfunc.quantizers.site import Site, user_paths
from qfunc.specs import DerivedQParams, FixedQParams, Scheme, Target


@frozen
class Plan:
    """The groups of a graph, the tensors that are quantized, and the rules that select each group."""

    groups: FusedGroups
    placed: tuple[PlacedSite, ...]
    context: Context = field(eq=False)
    rules: GroupRules = field(eq=False)


def plan(model: fx.GraphModule, target: Target) -> Plan:
    """Return the groups and sites of a float graph on a target.

    First match the fusions, then place the outputs of groups, then their inputs, weights and biases.  A tensor that has
    a site, directly or through ops that only move codes, gets no second one.

    Raises:
        SpecError: a user's selector matches nothing, or two rules require different formats for one tensor.
    """
    (only,) = plans([model], target)
    require_matches(target, [only.context])
    return only


def plans(models: Sequence[fx.GraphModule], target: Target) -> list[Plan]:
    """Return the plans of several float graphs of one model; a selector need not match in each of them."""
    return [_plan(Context(model, target.ops), target) for model in models]


def _plan(bare: Context, target: Target) -> Plan:
    groups = match_fusions(bare, target.fusions, target.rules)
    context = with_roots(bare, groups)
    rules = with_islands(rules_of(groups.groups, context, target), groups.groups, context, target)
    return Plan(groups, _Placement(context, target, groups, rules).sites(), context, rules)


class _Placement:
    def __init__(self, context: Context, target: Target, groups: FusedGroups, rules: GroupRules) -> None:
        self.context, self.target, self.groups, self.rules = context, target, groups, rules
        self.table = SiteTable(user_paths(context.model), context.record)
        self.of_tensor = self.table.of_output
        self.group_of = {n: g for g in groups.groups for n in g.nodes}
        self.slots = context.slots
        self.types = node_types(context.model, context)
        self.paths: dict[fx.Node, str] = {}
        self.readers: dict[fx.Node, dict[fx.Node, set[str]]] = {}  # tensor -> its readers, each with its slots
        for node in context.model.graph.nodes:
            for slot, producer in self.slots(node):
                self.readers.setdefault(producer, {}).setdefault(node, set()).add(slot)
        self.wanted: dict[tuple[fx.Node, fx.Node], list[Any]] = {}

    def sites(self) -> tuple[PlacedSite, ...]:
        for node in self.context.model.graph.nodes:
            if node.op == "placeholder" and self._read_as_input(node):
                self._output(FusedGroup((node,)))
        for group in self.groups.groups:
            self._output(group)
        for group in self.groups.groups:
            for node in group.nodes:
                self._inputs(group, node)
        self._ties()
        order = {n: i for i, n in enumerate(self.context.model.graph.nodes)}
        placed = sorted(self.table, key=lambda p: order[p.tensor])
        return tuple(
            evolve(p, site=site) for p, site in zip(placed, with_shared_algorithms([p.site for p in placed]), strict=True)
        )

    def _read_as_input(self, node: fx.Node) -> bool:
        # Token ids and masks are not activations: a graph input is one only if an op reads it as such.
        return not _is_number(node) and any("input" in read for read in self.readers.get(node, {}).values())

    def _output(self, group: FusedGroup) -> None:
        value, rule = self.rules.value(group, "output", group.output)
        if isinstance(value, Scheme | FixedQParams) and group.output.users and not self._is_index(group.output):
            placed = self._place(group.output, group, "output", value, rule, tuple(group.output.users))
            self.of_tensor[group.output] = placed

    def _inputs(self, group: FusedGroup, node: fx.Node) -> None:
        # Ops on masks and positions alone have no activations among their inputs.
        for slot, producer in self.slots(node) if node not in self.types.positions else ():
            if producer in group.nodes or _is_number(producer) or producer in self.types.integers:
                continue
            source = self.source(producer)
            value, rule = self.rules.value(group, slot, producer, source if slot == "input" else None)
            if slot == "bias":
                self._bias(group, node, producer, value, rule)
            elif isinstance(value, Scheme | FixedQParams):
                self._edge(group, node, slot, producer, source, value, rule)

    def _is_index(self, node: fx.Node) -> bool:
        return node in self.types.positions or node in self.types.integers

    def _edge(
        self, group: FusedGroup, node: fx.Node, slot: str, producer: fx.Node, source: fx.Node, value: Any, rule: int
    ) -> None:
        existing = self.of_tensor.get(source)
        if existing is not None:
            is_fixed = isinstance(existing.site.value, FixedQParams)  # fixed qparams fit every reader
            if format_of(value) != existing.site.scheme.format and not is_fixed:
                raise self._conflict(group, source, existing.site, value, rule)
            return
        if slot == "weight":
            if not is_constant(producer):
                return
            value = with_axis(value, self.context.channel_axis(node), len(constant_shape(producer) or ()))
        elif source.op != "get_attr" and self._readers_agree(source, producer, value):
            # Ops that only move codes come after the quantizer, as in the runtime.
            path = [n for n in movement_chain(source, producer) if moved_input(n) is source]
            producer, node = (source, path[0]) if path else (producer, node)
        while slot == "input" and self._may_precede(source, producer, value):
            producer, node = moved_input(producer), producer  # evaluation has only the tensor before it
        self._place(producer, group, slot, value, rule, (node,))

    def _conflict(self, group: FusedGroup, source: fx.Node, site: Site, value: Any, rule: int) -> SpecError:
        edges = [(g, s, n) for g in self.groups.groups for r in g.nodes for s, n in self.slots(r) if n not in g.nodes]
        wanted = ((g, self.rules.value(g, s, n, source)[0]) for g, s, n in edges if s == "input" and self.source(n) is source)
        readers = {self._path(g.root): v for g, v in wanted if isinstance(v, Scheme | FixedQParams)}
        where = f"target {self.target.name!r}, tensor {self._path(source)!r}"
        return conflict_error(where, (site.op, site.rule, site.value), (self._path(group.root), rule, value), readers)

    def _may_precede(self, source: fx.Node, producer: fx.Node, value: Any) -> bool:
        # Return True if the site may be before an op without effect in evaluation: all its readers require this value.
        transparent = producer is not source and self.context.kind(producer) in TRANSPARENT
        return transparent and all(v == value for v in self._wanted(source, producer))

    def _readers_agree(self, source: fx.Node, producer: fx.Node, value: Any) -> bool:
        # Return True if the readers of a tensor without a site, through ops that only move codes, all require this value.
        chain = movement_chain(source, producer)
        alone = all(len(self._tensor_readers(n)) == 1 for n in chain[1:])
        return alone and all(v == value for v in self._wanted(source, producer))

    def _wanted(self, source: fx.Node, producer: fx.Node) -> list[Any]:
        # The different values that the readers of a tensor require.
        key = source, producer
        if key not in self.wanted:
            found = self.wanted[key] = list[Any]()
            for reader in (r for r in self.readers.get(producer, ()) if reads_values(r, producer)):
                group = self.group_of.get(reader)
                value = None if group is None else self.rules.value(group, "input", producer, source)[0]
                if value not in found:
                    found.append(value)
        return self.wanted[key]

    def _tensor_readers(self, node: fx.Node) -> list[fx.Node]:
        return [u for u in node.users if reads_values(u, node)]

    def _bias(self, group: FusedGroup, node: fx.Node, producer: fx.Node, value: Any, rule: int) -> None:
        if not isinstance(value, DerivedQParams | Scheme) or not is_constant(producer):
            return
        if isinstance(value, DerivedQParams) and not self._quantized_product(node):
            return
        self._place(producer, group, "bias", value, rule, (node,))

    def _quantized_product(self, node: fx.Node) -> bool:
        # A derived bias needs the static scales of the input and of the weight.  With one scale per input channel, the
        # products of a sum have no common scale.
        tensors = {slot: n for slot, n in self.slots(node) if slot in ("input", "weight")}
        weight = self.table.read_by(tensors.get("weight"), node)
        given = self.of_input(tensors["input"], node)
        if weight is None or given is None or given.site.dynamic or given.site.by_channel:
            return False
        return weight.site.of_outputs(self.context.channel_axis(node), len(constant_shape(weight.tensor) or ()))

    def _place(
        self, tensor: fx.Node, group: FusedGroup, slot: str, value: Any, rule: int, readers: tuple[fx.Node, ...]
    ) -> PlacedSite:
        # A bias belongs to one op even if its tensor is shared; other sites are shared by (tensor, scheme).
        key = (tensor, (value, readers) if slot == "bias" else value)
        if self.table.get(key) is not None:
            return self.table.add_readers(key, readers)
        return self.table.add(key, PlacedSite(self._site(tensor, group, slot, value, rule), tensor, readers))

    def _site(self, tensor: fx.Node, group: FusedGroup, slot: str, value: Any, rule: int) -> Site:
        constant = tensor.op == "get_attr"
        role = slot if slot in ("weight", "bias") else "activation"
        estimator, function, bits = algorithm(self.target, role, (*group.nodes, tensor), self.context)
        value = value if bits is None else narrow(value, bits, f"target {self.target.name!r}, op {self._path(group.root)!r}")
        if isinstance(value, FixedQParams | DerivedQParams):  # the hardware dictates these scales: nothing trains them
            function = functions.Fixed()
        path = self._path(tensor) if tensor.op != "get_attr" else self.context.path(str(tensor.target))
        op = self._path(group.root)
        name = self.table.free_name(path, op, constant)
        return Site(name, op, slot, value, rule, estimator, function, constant)

    def _path(self, node: fx.Node) -> str:
        if node not in self.paths:
            self.paths[node] = self.context.fact(node).path
        return self.paths[node]

    def source(self, tensor: fx.Node) -> fx.Node:
        """Return the tensor with the codes of this one, before every op that only moves them."""
        while keeps_codes(tensor, self.context, self.target) and tensor not in self.of_tensor:
            inputs = [n for s, n in self.slots(tensor) if s == "input"]
            if len(inputs) != 1 or not only_moves_codes(tensor):
                break
            tensor = inputs[0]
        return tensor

    def _ties(self) -> None:
        for tie in self.target.ties:
            for group in self.groups.groups:
                if not matches(tie.select, group.root, self.context) or self.rules.keep_float(group, "input"):
                    continue  # an op in float joins values, not codes
                members = [
                    self.of_input(n, group.root) for s, n in self.slots(group.root) if s == "input" and "input" in tie.slots
                ]
                if "output" in tie.slots:
                    members.append(self.of_tensor.get(group.output))
                # No kernel runs on codes with a scale per channel, and joined tensors may have different numbers of channels.
                alike = [m for m in members if m is not None and not m.site.by_channel]
                if tie.leader == "max_scale":
                    self._require_common_zero(alike, group.root)
                self.table.tie(alike, group.root.name, tie.leader)

    def _require_common_zero(self, members: list[PlacedSite], op: fx.Node) -> None:
        # The largest scale represents the ranges of all only if no zero point is computed from one of them.
        for site in (m.site for m in members):
            zero = site.scheme.zero_point
            if zero is not None and zero.value is None and isinstance(site.value, Scheme):
                raise SpecError(
                    where=f"target {self.target.name!r}, op {self.context.fact(op).path!r}",
                    found=f"tensors tied by the largest scale, of which {site.name!r} has a zero point of its own",
                    wanted="symmetric schemes, or one fixed zero point",
                    do='Write Tie(..., leader="union").',
                )

    def of_input(self, tensor: fx.Node, reader: fx.Node) -> PlacedSite | None:
        """Return the site with whose codes a reader gets a tensor."""
        source, edges = self.source(tensor), [(tensor, reader)]
        for node in movement_chain(source, tensor):
            edges.append((moved_input(node), node))
        direct = (self.table.read_by(t, r) for t, r in edges)
        return next((p for p in direct if p is not None), None) or self.of_tensor.get(source)


def _is_number(node: fx.Node) -> bool:
    # def forward(self, x, gain=1.0): an argument with a number as default is not a tensor.
    return node.op == "placeholder" and any(isinstance(default, int | float) for default in node.args)


__all__ = ["PlacedSite", "Plan", "plan", "plans"]
