"""The units of a calibrated model that a runtime executes as one op each, on integers or in float."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence, Set
from functools import cached_property
from typing import Any

import torch
from attrs import evolve
from torch import fx

from qfunc._collection import paused_collection
from qfunc.arithmetic import UnitSpec
from qfunc.graph.data_movement import commutes, only_moves_codes, reads_values
from qfunc.graph.dtypes import node_types
from qfunc.graph.interpreter import run_with_sizes
from qfunc.graph.selectors import Context
from qfunc.graph.sites import QuantizerNode
from qfunc.graph.tensor_names import tensor_names
from qfunc.graph.view import QuantizedModel
from qfunc.numerics.qparams import Affine
from qfunc.ops.creation import cast_like
from qfunc.ops.definition import Trait
from qfunc.ops.indexing import element
from qfunc.ops.node import is_constant
from qfunc.ops.sizes import is_number
from qfunc.placement.encoding import Encoding, encoding_of, require_integers
from qfunc.placement.fusion import FusedGroup, match_fusions, with_roots
from qfunc.placement.islands import rules_of
from qfunc.placement.kernels import Operand, float_kernel, integer_kernel
from qfunc.placement.legality.host import measures_sizes, on_host
from qfunc.placement.legality.stored_schemes import holds_own_codes
from qfunc.placement.mixtures import Mixture, stacked_mixtures
from qfunc.placement.ties import derived_qparams
from qfunc.placement.unit_spec import Described, Tensors, describe, describe_mixture
from qfunc.placement.units import Unit
from qfunc.specs import Float, Host, Int, Kernel, Op, PerBlock, Scheme, Target
from qfunc.specs.file_format import format_of
from qfunc.specs.protocols import (
    AppendingArithmetic,
    BuildingLowering,
    MixtureArithmetic,
    RunTimeArithmetic,
)

_CONSTANT = "a constant, computed in float"


class Partition:
    """The float network of a calibrated model, the encoding of each edge, and the units in execution order.

    Args:
        view: The model.
        target: Its target.
        qparams: Qparams by path, in place of the model's; the qparams of derived sites are computed from them.

    >>> import qfunc, torch
    >>> from qfunc import targets
    >>> model = qfunc.quantize(targets.onnxruntime)(torch.nn.Linear(3, 2))
    >>> view = QuantizedModel(qfunc.calibrate([torch.ones(1, 3)])(model))
    >>> partition = Partition(view, targets.onnxruntime)
    >>> [(u.path, u.integer) for u in partition.units]
    [('linear', True)]
    """

    @paused_collection()
    def __init__(self, view: QuantizedModel, target: Target, qparams: dict[str, Affine] | None = None) -> None:
        self.target, self.network = target, view.float_network
        bare = Context(self.network, target.ops)
        groups = match_fusions(bare, target.fusions, target.rules)
        self.context = with_roots(bare, groups)
        self.slots, self._rules = self.context.slots, rules_of(groups.groups, self.context, target)
        self.kinds = {node: self.context.kind(node) for node in self.network.graph.nodes}
        self.paths = {node: self.context.fact(node).path for node in self.network.graph.nodes}
        self.names = tensor_names(self.paths)
        self._at_edge: dict[tuple[str, str], Encoding] = {}
        self._of_output: dict[str, Encoding] = {}
        self.at_path: dict[str, Encoding] = {}
        self._run_time = {(q.tensor, reader): q for q in view.quantizers if q.module.dynamic for reader in q.readers}
        static = [quantizer for quantizer in view.quantizers if not quantizer.module.dynamic]
        if qparams is None:
            qparams = {quantizer.path: quantizer.module.qparams() for quantizer in static}
        else:
            qparams = {**qparams, **derived_qparams(view, qparams)}
        for quantizer in static:
            encoding = self.at_path[quantizer.path] = encoding_of(quantizer, qparams[quantizer.path])
            if quantizer.module.site.slot == "output":
                self._of_output[quantizer.tensor] = encoding
            for reader in quantizer.readers:
                self._at_edge[quantizer.tensor, reader] = encoding
        self._shared: dict[str, Encoding | None] = {}
        for node in self.network.graph.nodes:  # in order, because an op that only moves codes has those of its input
            self._shared[node.name] = self._shared_encoding(node)
        self._hosted = {} if target.host is None else self._on_host(target.host, view, groups.groups)
        units = tuple(self._unit(g) for g in groups.groups)
        self._dynamic = {u.group.root.name for u in units if self._run_time and _is_of_run_time(u)}
        lowering = target.lowering
        experts: Any = format_of(lowering).experts
        self.mixtures: dict[fx.Node, Mixture] = {} if experts is None else self._mixtures(experts, units)
        self.units = units if experts is None else tuple(self._with_mixtures(units, Kernel(Op("linear"), experts)))
        self._coded = {u.group.root.name for u in self.units if u.integer} - self._dynamic
        for (_, reader), quantizer in self._run_time.items():
            scheme = quantizer.module.site.scheme
            if reader not in self._dynamic and not holds_own_codes(lowering, scheme, constant=False):
                require_integers(quantizer)

    def encoding(self, producer: fx.Node, reader: fx.Node) -> Encoding | None:
        """Return the encoding with which a reader gets a tensor: its own, or the encoding of the tensor with its codes."""
        return self._at_edge.get((producer.name, reader.name)) or self.output_encoding(producer)

    def run_time(self, producer: fx.Node, reader: fx.Node) -> QuantizerNode | None:
        """Return the quantizer of a tensor whose qparams are computed at run time for a reader, or None."""
        return self._run_time.get((producer.name, reader.name))

    def in_blocks(self, encoding: Encoding) -> bool:
        """Return True for integers or floats in blocks that are the weight of products of real inputs."""
        quantizer = encoding.quantizer
        site = quantizer.module.site
        kernels = bool(quantizer.readers) and self._dynamic.issuperset(quantizer.readers)
        coded = isinstance(site.scheme.format, Int) or (isinstance(site.scheme.format, Float) and kernels)
        blocks = coded and isinstance(site.scheme.scale.shared, PerBlock)
        return blocks and site.slot == "weight" and bool(quantizer.readers) and self._coded.isdisjoint(quantizer.readers)

    def output_encoding(self, node: fx.Node) -> Encoding | None:
        """Return the encoding of a node's value that all readers share: its own site's, or that of a site before them."""
        return self._shared[node.name]

    def _shared_encoding(self, node: fx.Node) -> Encoding | None:
        if node.name in self._of_output:
            return self._of_output[node.name]
        if commutes(node, self.context, self.target) and only_moves_codes(node):
            inputs = [n for s, n in self.slots(node) if s == "input"]
            carried = self.encoding(inputs[0], node) if len(inputs) == 1 else None
            # The op may move the channels of the activation to another axis.
            if carried is not None and not carried.quantizer.module.site.by_channel:
                return carried
        if node.op == "get_attr":
            return None
        readers = [reader for reader in node.users if reads_values(reader, node)]
        read = [self._at_edge.get((node.name, reader.name)) for reader in readers]
        return read[0] if read and all(c is not None and c is read[0] for c in read) else None

    def computes_on(self, encoding: Encoding) -> bool:
        """Return True if a runtime may compute on the codes of an activation.

        It does not compute on codes of at most 8 bits in a format that none of its kernels takes.
        """
        fmt, by_kernel = encoding.quantizer.module.site.scheme.format, [dict(k.formats) for k in self.target.kernels]
        known = not by_kernel or any(not by_slot or any(fmt in f for f in by_slot.values()) for by_slot in by_kernel)
        return not encoding.quantizer.module.site.by_channel and (known or not isinstance(fmt, Int) or fmt.bits > 8)

    def exact_nodes(self, unlike: Sequence[str] = (), shown: Container[str] = ()) -> set[fx.Node]:
        """Return the nodes whose values emulation computes bit for bit if the codes and reals before them are the runtime's.

        Args:
            unlike: Kinds of ops that the runtime computes in another way in float, for example on this CPU.
            shown: The names of nodes whose real values the runtime shows.
        """
        if self.engine_builds:
            return set(self.network.graph.nodes)
        exact = {n for n in self.network.graph.nodes if n.op in ("placeholder", "get_attr")}
        for unit in self.units:
            inside = unit.group.nodes
            read = [(source, n) for n in inside for source in n.all_input_nodes if source not in inside]
            known = unit.kernel is not None and (unit.integer or unit.kind not in unlike)
            known = known or is_number(unit.group.root) or self._is_exact_constant(unit.group.root)
            if known and all(s in exact or s.name in shown or self.encoding(s, n) is not None for s, n in read):
                exact.add(unit.group.output)
        return exact

    @cached_property
    def engine_builds(self) -> bool:
        """True if an engine builds the network itself, and all products are those of kernels, so that emulation is exact."""
        products = (u for u in self.units if u.kind == "linear")
        return isinstance(self.target.lowering, BuildingLowering) and all(u.kernel is not None for u in products)

    @property
    def float_units(self) -> tuple[Unit, ...]:
        """The units without an integer kernel, apart from arithmetic on sizes, and the classes of the model's outputs.

        Constants that an op creates, casts or moves have no rounding, and constants of integers and booleans have no
        rounding either: they are left out, as is one of several results of a kernel on integers.  A network that an engine
        builds itself has no float units.
        """
        if self.engine_builds:
            return ()
        units = (u for u in self.units if u.reason and not isinstance(u.group.root.target, type))
        found = (u for u in units if not is_number(u.group.root) and not self._is_exact_constant(u.group.root))
        found = (u for u in found if not self._takes_integer_result(u.group.root))
        return tuple(evolve(u, reason=_CONSTANT) if u.group.root in self.constants else u for u in found)

    def _takes_integer_result(self, node: fx.Node) -> bool:
        # One of several results of a kernel on integers is what the kernel computes.
        unit = self.units_by_output.get(node.all_input_nodes[0].name) if node.target is element else None
        return unit is not None and unit.integer

    def _is_exact_constant(self, node: fx.Node) -> bool:
        if node not in self.constants:
            return False
        exact = self.kinds[node] == "cast" or any(self.context.has(node, t) for t in (Trait.CREATES, Trait.MOVES_VALUES))
        return exact or node in self._integers

    @cached_property
    def _integers(self) -> Set[fx.Node]:
        return node_types(self.network, self.context).integers

    @cached_property
    def constants(self) -> set[fx.Node]:
        """Constants, and what is computed from them; sizes and tensors that an op creates read only the size of their input."""
        found: set[fx.Node] = set()
        for node in self.network.graph.nodes:
            inputs = node.args[:1] if node.target is cast_like else node.all_input_nodes  # of y in x.to(y.dtype) only the dtype
            own = is_number(node) or self.context.has(node, Trait.CREATES) or node.op == "get_attr"
            if own or (inputs and found.issuperset(inputs)):
                found.add(node)
        return found

    @cached_property
    def units_by_output(self) -> dict[str, Unit]:
        """The units by the names of their outputs."""
        return {unit.group.output.name: unit for unit in self.units}

    @cached_property
    def units_by_root(self) -> dict[fx.Node, Unit]:
        """The units by their roots."""
        return {unit.group.root: unit for unit in self.units}

    @cached_property
    def nodes(self) -> dict[str, fx.Node]:
        """The nodes of the float network by name."""
        return {node.name: node for node in self.network.graph.nodes}

    def is_appended(self, node: fx.Node) -> bool:
        """Return True if nothing reads a value but writes into caches, whose operator quantizes it."""
        readers = [self.units_by_root.get(reader) for reader in node.users]
        kernels = [None if unit is None else unit.kernel for unit in readers]
        return bool(kernels) and all(k is not None and _quantizes_new(k.arithmetic) for k in kernels)

    def keeps_float(self, group: FusedGroup) -> bool:
        """Return True if a rule keeps an op in float, also between tensors of codes; one that only moves codes has no rule."""
        moves = commutes(group.root, self.context, self.target)
        return not moves and all(self._rules.keep_float(group, slot) for slot in ("input", "output"))

    def _unit(self, group: FusedGroup) -> Unit:
        operands = self.operands(group)
        hosted = self._hosted.get(group.root, "")
        kernels = self.target.host.kernels if hosted and self.target.host is not None else self.target.kernels
        output = self.output_encoding(group.output)
        tensors = Tensors(self.encoding, self._run_time_scheme, lambda _: (), values=False)

        def unit(kernel: Kernel) -> UnitSpec:
            return describe(group, kernel, self.context, tensors, output).unit

        kernel, reason = integer_kernel(group, operands, kernels, self.context, unit)
        if kernel is not None and self.keeps_float(group):
            kernel, reason = None, "its rule keeps it in float"
        if kernel is None:
            kernel = float_kernel(group, operands, kernels, self.context, unit)
        codes = kernel is None or (not kernel.in_float and any(o.encoding is not None for o in operands))
        root = group.root
        return Unit(group, self.paths[root], self.names[group.output], self.kinds[root], kernel, reason, codes, hosted)

    def described(self, group: FusedGroup, kernel: Kernel, output: Encoding | None, channels_last: bool = False) -> Described:
        """Return a unit as its arithmetic sees it, with qparams and constants; `output` is None for real results."""
        tensors = Tensors(self.encoding, self._run_time_scheme, self._kinds_of_readers.__getitem__)
        mixture = self.mixtures.get(group.output)
        if mixture is not None:
            return describe_mixture(mixture, self.paths[group.output], self.context, tensors, output)
        return describe(group, kernel, self.context, tensors, output, channels_last)

    def _run_time_scheme(self, producer: fx.Node, reader: fx.Node) -> Scheme | None:
        quantizer = self.run_time(producer, reader)
        return None if quantizer is None else quantizer.module.site.scheme

    @cached_property
    def _kinds_of_readers(self) -> dict[fx.Node, tuple[str, ...]]:
        readers = {node: [self.units_by_root.get(reader) for reader in node.users] for node in self.network.graph.nodes}
        return {node: tuple(u.kind for u in units if u is not None and u.integer) for node, units in readers.items()}

    def _mixtures(self, experts: MixtureArithmetic, units: Sequence[Unit]) -> dict[fx.Node, Mixture]:
        kernels = {u.group.root: u.kernel for u in units}

        def scheme(weight: fx.Node, layer: fx.Node) -> Scheme | None:
            kernel, encoding = kernels.get(layer), self.encoding(weight, layer)
            taken = kernel is not None and encoding is not None and experts.takes(kernel.arithmetic)
            return encoding.quantizer.module.site.scheme if taken and encoding is not None else None

        return stacked_mixtures(self.context, scheme)

    def _with_mixtures(self, units: Sequence[Unit], kernel: Kernel) -> Iterator[Unit]:
        inside = {n for m in self.mixtures.values() for n in m.nodes}
        for unit in units:
            mixture = self.mixtures.get(unit.group.output)
            if mixture is not None:
                path = self.paths[unit.group.output]
                yield Unit(FusedGroup(mixture.nodes), path, self.names[unit.group.output], "linear", kernel)
            elif unit.group.output not in inside:
                yield unit

    def _on_host(self, host: Host, view: QuantizedModel, groups: Sequence[FusedGroup]) -> dict[fx.Node, str]:
        sizes: dict[str, tuple[int, ...]] = {}
        if measures_sizes(host) and view.record.inputs:
            examples = tuple(torch.zeros(i.shape, dtype=getattr(torch, i.dtype.split(".")[-1])) for i in view.record.inputs)
            device = next((t.device for t in self.network.parameters()), None)
            with torch.no_grad():
                _, sizes = run_with_sizes(self.network, tuple(t.to(device) for t in examples), "partition")
        return on_host(host, groups, self.context, sizes, self._is_float, {*self.constants})

    def _is_float(self, group: FusedGroup) -> bool:
        return any(operand.encoding is None and operand.slot != "bias" for operand in self.operands(group))

    def operands(self, group: FusedGroup) -> list[Operand]:
        """Return what a group reads and returns, each with its encoding."""
        found = []
        for node in group.nodes:
            for slot, producer in self.slots(node):
                if producer not in group.nodes and not (slot == "bias" and not is_constant(producer)):
                    scheme = self._run_time_scheme(producer, node)
                    found.append(Operand(node, slot, self.encoding(producer, node), scheme))
            found += [Operand(node, "input", None)] * _number_operands(node, self.context)
        return [*found, Operand(group.output, "output", self.output_encoding(group.output))]


def _is_of_run_time(unit: Unit) -> bool:
    return unit.kernel is not None and isinstance(unit.kernel.arithmetic, RunTimeArithmetic)


def _quantizes_new(arithmetic: object) -> bool:
    return isinstance(arithmetic, AppendingArithmetic) and arithmetic.quantizes_new


def _number_operands(node: fx.Node, context: Context) -> int:
    # x + 1, x * x.size(1): a number among the operands has no qparams.
    return sum(map(is_number, node.args)) if context.has(node, Trait.ARITHMETIC) else 0
