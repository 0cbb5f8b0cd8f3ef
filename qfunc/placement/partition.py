"""The units that a runtime executes as one op each, integer or float, from graph, target and qparams alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import field, frozen
from torch import fx

from qfunc.graph.data_movement import only_moves_codes
from qfunc.graph.selectors import Context, matches
from qfunc.graph.view import QuantizedModel
from qfunc.numerics.affine import implies_clamp
from qfunc.numerics.qparams import Affine
from qfunc.ops.definition import Trait
from qfunc.ops.node import is_constant, kind_of, op_of
from qfunc.placement.derived_scales import derived_qparams
from qfunc.placement.encoding import Encoding, require_integers, takes_float_bias
from qfunc.placement.fusion import FusedGroup, clamp_bounds, match_fusions, with_roots
from qfunc.specs import (
    FLOAT32,
    ClampImplied,
    Copy,
    FloatRequantize,
    Format,
    Int,
    Kernel,
    NoZeroPoint,
    SameQParams,
    Target,
    Unknown,
)
from qfunc.specs.placement import Condition

__all__ = ["summary"]


INNER_PREFIX = "inner"
"""The name of a unit's codes inside an op that is written as several."""


@frozen(eq=False)
class Unit:
    """One unit: its nodes in the float network, the kernel that runs it, and the reason if that is none on integers.

    `integer`: the kernel reads or writes codes; another computes in float32, bit for bit as the runtime.
    """

    group: FusedGroup
    path: str
    tensor: str
    kind: str
    kernel: Kernel | None
    reason: str = ""
    codes: bool = True
    integer: bool = field(init=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "integer", self.kernel is not None and self.codes)


class Partition:
    """The float network of a calibrated model, the encoding of each edge, and the units in execution order.

    Args:
        view: The model.
        target: Its target.
        found: Qparams by path in place of those that the model holds; derived ones are derived anew.

    >>> import qfunc, torch
    >>> from qfunc import targets
    >>> model = qfunc.quantize(targets.onnxruntime)(torch.nn.Linear(3, 2))
    >>> view = QuantizedModel(qfunc.calibrate([torch.ones(1, 3)])(model))
    >>> partition = Partition(view, targets.onnxruntime)
    >>> [(u.path, u.integer) for u in partition.units]
    [('linear', True)]
    """

    def __init__(self, view: QuantizedModel, target: Target, found: dict[str, Affine] | None = None) -> None:
        self.target, self.network = target, view.float_network
        bare = Context(self.network, target.ops)
        groups = match_fusions(bare, target.fusions)
        self.context = with_roots(bare, groups)
        self.slots = self.context.slots
        self.kinds = {node: self.context.kind(node) for node in self.network.graph.nodes}
        self.paths = {node: self.context.fact(node).path for node in self.network.graph.nodes}
        self._at_edge: dict[tuple[str, str], Encoding] = {}
        self._of_output: dict[str, Encoding] = {}
        self.at_path: dict[str, Encoding] = {}
        places = view.quantizers
        for seat in places:
            if seat.module.dynamic:
                require_integers(seat)
        qparams = {s.path: s.module.qparams() for s in places if found is None}
        qparams.update(found or {})
        qparams.update(derived_qparams(view, qparams))  # the scales that they derive from may have been trained
        for seat in places:
            coding = self.at_path[seat.path] = Encoding(qparams[seat.path], seat)
            if seat.module.site.slot == "output":
                self._of_output[seat.tensor] = coding
            for reader in seat.readers:
                self._at_edge[seat.tensor, reader] = coding
        self.units = tuple(self._unit(g) for g in groups.groups)

    def coding(self, producer: fx.Node, reader: fx.Node) -> Encoding | None:
        """Return the encoding of a tensor as a reader sees it: its own, or that of the tensor whose codes it carries."""
        found = self._at_edge.get((producer.name, reader.name)) or self.output_coding(producer)
        return found

    def output_coding(self, node: fx.Node) -> Encoding | None:
        """Return the encoding of a node's value that all readers share: of its own site, or of one before all of them."""
        if node.name in self._of_output:
            return self._of_output[node.name]
        if self.kinds[node] in self.target.commuting and only_moves_codes(node):
            inputs = [n for s, n in self.slots(node) if s == "input"]
            carried = self.coding(inputs[0], node) if len(inputs) == 1 else None
            # The channels of an activation may lie along another axis behind the op.
            if carried is not None and not carried.seat.module.site.by_channel:
                return carried
        if node.op == "get_attr":
            return None
        read = [self._at_edge.get((node.name, reader.name)) for reader in node.users]
        return read[0] if read and all(c is not None and c is read[0] for c in read) else None

    def computes_on(self, coding: Encoding) -> bool:
        """Return True if a runtime may compute on the codes of an activation: its kernels take no other codes in bytes."""
        fmt, wanted = coding.seat.module.site.scheme.format, [dict(k.formats) for k in self.target.kernels]
        known = not wanted or any(not w or any(fmt in formats for formats in w.values()) for w in wanted)
        return not coding.seat.module.site.by_channel and (known or not isinstance(fmt, Int) or fmt.bits > 8)

    def exact(self, unlike: Sequence[str] = ()) -> set[fx.Node]:
        """Return the nodes whose values emulation computes bit for bit if the codes before them are the runtime's.

        Args:
            unlike: Kinds of ops that the runtime computes in another way in float, for example on this CPU.
        """
        found = {n for n in self.network.graph.nodes if n.op in ("placeholder", "get_attr")}
        for unit in self.units:
            inside = unit.group.nodes
            read = [(source, n) for n in inside for source in n.all_input_nodes if source not in inside]
            known = unit.kernel is not None and (unit.integer or unit.kind not in unlike)
            if known and all(s in found or self.coding(s, n) is not None for s, n in read):
                found.add(unit.group.output)
        return found

    @property
    def float_units(self) -> tuple[Unit, ...]:
        """The units without an integer kernel, apart from arithmetic on sizes."""
        return tuple(u for u in self.units if u.reason and not self._on_sizes(u.group.root))

    def _on_sizes(self, node: fx.Node) -> bool:
        inputs = node.all_input_nodes
        return self.kinds[node] == "size" or (bool(inputs) and all(self._on_sizes(n) for n in inputs))

    def vanishes(self, unit: Unit) -> bool:
        """Return True if a runtime may leave a unit out, because it changes no code.

        These are casts, ops that only move codes (transposes that cancel, slices over everything), a Relu or Clip whose
        bounds lie at or beyond the codes' ends before or after it, arithmetic with a neutral number, with or without
        such a Relu behind it, and what is computed from constants alone.
        """
        node = unit.group.root
        if unit.kind == "cast" or (unit.kernel is not None and isinstance(unit.kernel.arithmetic, Copy)):
            return True
        if _constant(node, self.context):
            return True
        given = self.coding(node.args[0], node) if node.args and isinstance(node.args[0], fx.Node) else None
        if self.context.has(node, Trait.CLAMPS):
            after = [self.coding(node, reader) for reader in node.users]
            return any(c is not None and self._inside(node, c) for c in (given, *after[:1]))
        output = self.output_coding(unit.group.output)
        rest = unit.group.nodes[1:]
        inside = not rest or (output is not None and all(self._inside(n, output) for n in rest))
        return inside and _neutral(node, self.context)

    def _unit(self, group: FusedGroup) -> Unit:
        kernel, reason = self._kernel(group)
        if kernel is None:
            kernel = next((k for k in self.target.kernels if _in_float(k) and self._whole(group, k)), None)
        codes = kernel is None or (not _in_float(kernel) and any(coding is not None for _, coding in self._codings(group)))
        root, output = group.root, group.output
        return Unit(group, self.paths[root], self.paths[output], self.kinds[root], kernel, reason, codes)

    def _kernel(self, group: FusedGroup) -> tuple[Kernel | None, str]:
        codings = self._codings(group)
        missing = [slot for slot, coding in codings if coding is None and slot != "bias"]
        bare = f"its {missing[0]} carries no qparams" if missing else ""
        if missing and not any(_takes_real(k, missing) for k in self.target.kernels if not _in_float(k)):
            return None, bare
        by_channel = [slot for slot, coding in codings if coding is not None and coding.seat.module.site.by_channel]
        if by_channel:
            return None, f"its {by_channel[0]} has a scale a channel, which no integer kernel takes"
        weights = [
            (self.coding(producer, node), node) for node in group.nodes for s, producer in self.slots(node) if s == "weight"
        ]
        if not all(weight is None or weight.of_outputs(self.context.channel_axis(node)) for weight, node in weights):
            return None, "its weight has a scale an input channel, which no integer kernel takes"
        float_bias = ("bias", None) in codings
        known = [(slot, c) for slot, c in codings if c is not None]
        reason = "the target has no integer kernel for it"
        for kernel in self.target.kernels:
            if _in_float(kernel) or not matches(kernel.unit, group.root, self.context):
                continue
            conditions = (*kernel.integer_if, *(group.fusion.integer_if if group.fusion and len(group.nodes) > 1 else ()))
            unmet = [c for c in conditions if not self._holds(c, group, known, missing)]
            if not _takes_real(kernel, missing):
                reason = bare
            elif unmet:
                reason = f"{type(unmet[0]).__name__} does not hold"
            elif not _takes(kernel, known):
                reason = "the kernel does not take its formats"
            elif float_bias and not takes_float_bias(kernel.arithmetic):
                reason = "its bias carries no qparams"
            elif isinstance(kernel.arithmetic, Copy) and not only_moves_codes(group.root):
                reason = "it does not only move codes"
            elif isinstance(kernel.arithmetic, Unknown):
                reason = kernel.arithmetic.reason
            elif (left := self._left(group, kernel)) is not None:
                reason = f"its integer kernel does not compute {self.kinds[left]}, which is fused with it"
            else:
                return kernel, ""
        return None, reason

    def _whole(self, group: FusedGroup, kernel: Kernel) -> bool:
        return matches(kernel.unit, group.root, self.context) and self._left(group, kernel) is None

    def _left(self, group: FusedGroup, kernel: Kernel) -> fx.Node | None:
        # Kernels compute their root; of what is fused with it they know bounds on the codes, and one sum in real units.
        sums = int(isinstance(kernel.arithmetic, FloatRequantize))
        for node in group.nodes[1:]:
            kind = self.kinds[node]
            if kind == "add" and sums:
                sums = 0
            elif not self.context.has(node, Trait.CLAMPS):
                return node
        return None

    def _codings(self, group: FusedGroup) -> list[tuple[str, Encoding | None]]:
        found: list[tuple[str, Encoding | None]] = []
        for node in group.nodes:
            for slot, producer in self.slots(node):
                if producer not in group.nodes and not (slot == "bias" and not is_constant(producer)):
                    found.append((slot, self.coding(producer, node)))
            found += [("input", None)] * self._bare_numbers(node)
        return [*found, ("output", self.output_coding(group.output))]

    def _bare_numbers(self, node: fx.Node) -> int:
        # x + 1: a number among the operands has no qparams.
        if not self.context.has(node, Trait.ARITHMETIC):
            return 0
        return sum(isinstance(a, int | float) for a in node.args)

    def _holds(self, condition: Condition, group: FusedGroup, codings: list[tuple[str, Encoding]], missing: list[str]) -> bool:
        if missing:  # a real output is clamped by itself, not by its codes
            return isinstance(condition, ClampImplied) and missing == ["output"]
        if isinstance(condition, NoZeroPoint):
            inputs = [c for slot, c in codings if slot in ("input", "weight")]
            return condition.operand < len(inputs) and not bool(inputs[condition.operand].qparams.zero_point.any())
        if isinstance(condition, SameQParams):
            chosen = [c for slot, c in codings if slot in condition.slots]
            return all(chosen[0].same(c) for c in chosen[1:])
        output = next(c for slot, c in codings if slot == "output")
        return all(self._inside(node, output) for node in group.nodes[1:])

    def _inside(self, node: fx.Node, output: Encoding) -> bool:
        # The activation's bounds, as codes, lie at or beyond the ends of the range, so that clamping replaces it.
        bounds = clamp_bounds(self.context, node)
        ends = output.format.qmin, output.format.qmax
        return bounds is None or implies_clamp(*bounds, output.qparams.scale, output.qparams.zero_point, ends)


def _constant(node: fx.Node, context: Context) -> bool:
    if kind_of(node) == "size" or context.has(node, Trait.CREATES):  # of their input they read where it stands, and its size
        return True
    return node.op == "get_attr" or (bool(node.all_input_nodes) and all(_constant(n, context) for n in node.all_input_nodes))


def _neutral(node: fx.Node, context: Context) -> bool:
    # x + 0, 0 + x, x - 0, x * 1, 1 * x, x / 1
    op = op_of(node) or context.own(node)
    if op is None or op.neutral is None:
        return False
    given = node.args if context.has(node, Trait.COMMUTATIVE) else node.args[1:]
    return any(isinstance(a, int | float) and a == op.neutral for a in given)


def _takes(kernel: Kernel, codings: list[tuple[str, Encoding]]) -> bool:
    wanted: dict[str, tuple[Format, ...]] = dict(kernel.formats)
    return all(slot not in wanted or _fits(c.format, wanted[slot], slot == "weight") for slot, c in codings)


def _in_float(kernel: Kernel) -> bool:
    # Of codes it reads what they stand for.
    return bool(kernel.formats) and all(formats == (FLOAT32,) for _, formats in kernel.formats)


def _takes_real(kernel: Kernel, missing: list[str]) -> bool:
    wanted = dict(kernel.formats)
    return all(FLOAT32 in wanted.get(slot, ()) for slot in missing)


def _fits(fmt: Int, wanted: tuple[Format, ...], offline: bool) -> bool:
    # Weights are written offline, so narrower codes fit; the hardware clamps activations to its own.
    if offline:
        return any(isinstance(w, Int) and w.signed == fmt.signed and w.qmin <= fmt.qmin and fmt.qmax <= w.qmax for w in wanted)
    return fmt in wanted


def summary(units: tuple[Unit, ...]) -> list[dict[str, Any]]:
    """Return the units as plain data, for reports."""
    return [{"path": u.path, "tensor": u.tensor, "kind": u.kind, "integer": u.integer, "reason": u.reason} for u in units]
