"""The record of a captured model: facts that its graph does not have, as a frozen value that copies and pickles keep.

`Context` reads it together with the graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any

from attrs import evolve, field, frozen
from torch import Tensor, fx

from qfunc.ops.definition import Trait
from qfunc.ops.node import channel_axis, is_constant, kind_of, op_of, slots, traits, traits_of_ops
from qfunc.ops.opset import traits_of
from qfunc.ops.sizes import is_number
from qfunc.specs import Target
from qfunc.specs.op_kind import OpKind


@frozen
class NodeInfo:
    """The origin of a node: its path in the user's model, the classes around it, its source line.

    `is_integer` is True if its tensor has an integer or boolean type.
    """

    path: str
    modules: tuple[str, ...] = ()
    source: str = ""
    is_integer: bool = False


@frozen
class TensorInfo:
    """Shape and dtype of an input of the model in the first batch of calibration.

    If axes but the batch varied from batch to batch, `other` has the first other size of each, and else the sizes of `shape`.
    """

    shape: tuple[int, ...]
    dtype: str
    other: tuple[int, ...] = ()


@frozen(eq=False)
class CorrectedBias:
    """A bias that a correction has changed: its path in the model, its value before the first correction, and that after."""

    path: str
    original: Tensor
    corrected: Tensor

    @property
    def key(self) -> str:
        """The name of the original value in a file."""
        return f"{self.path}:original"

    def original_of(self, bias: Tensor) -> Tensor:
        """Return the original value of the bias as it is now; a change since the correction, as by training, stays."""
        unchanged = bool((bias == self.corrected.to(bias)).all())
        difference = bias.detach() - self.corrected.to(bias)
        return self.original.to(bias) if unchanged else self.original.to(bias) + difference


@frozen
class Argument:
    """An argument of the captured forward: whether it is `fixed`, to which value, and whether it is an input of the graph."""

    name: str
    fixed: bool = False
    value: Any = field(default=None, eq=False)
    is_input: bool = True


@frozen
class Record:
    """The facts of the nodes by name; after `quantize` the target; after `calibrate` the inputs.

    `stage` is "captured", "quantized" or "calibrated".  `rank_two` names linear layers with a folded
    BatchNorm1d, which is correct for values of rank 2 only; calibration checks the rank.
    `unfolded` has (op, step, reason) for each op that almost folded, `unmatched` (op, rewrite, reason) for each op that
    a rewrite almost matched.  `within` is the path of the model in its outer module, or ""; the paths in `facts` are
    relative to the model, and users see paths relative to the outer module.
    `around` names the classes of the modules around the model.  If the model is one module of torch.nn, `bare` is the
    path of its last op in the model; in the outer module, that op has the path of the module.
    `axes` names the axes of each input that torch.export left dynamic, None for the others.  `evaluated` describes the
    part that was exported in evaluation mode and cannot train, or is "".  `arguments` are those of the forward, () for an
    ExportedProgram.  `batch` is the size of the first input's first axis if torch.export fixed it.  `sizes` has the name
    and the sizes of each input of the user's ExportedProgram, or of an export that resizes to numbers; None for sizes that
    vary.  `folded` is the number of BatchNorms that `quantize` folded for good.  `corrected` has the biases that a correction
    has changed, so that another one starts from their original values.
    """

    facts: dict[str, NodeInfo] = field(hash=False)
    target: Target | None = None
    inputs: tuple[TensorInfo, ...] = ()
    stage: str = "captured"
    rank_two: tuple[str, ...] = ()
    unfolded: tuple[tuple[str, str, str], ...] = ()
    unmatched: tuple[tuple[str, str, str], ...] = ()
    within: str = ""
    around: tuple[str, ...] = ()
    bare: str = ""
    axes: tuple[tuple[str | None, ...], ...] = ()
    evaluated: str = ""
    arguments: tuple[Argument, ...] = ()
    batch: int | None = None
    sizes: tuple[tuple[str, tuple[int | None, ...]], ...] = ()
    folded: int = 0
    corrected: tuple[CorrectedBias, ...] = field(default=(), eq=False, repr=False)

    def path(self, path: str) -> str:
        """Return a path in the outer module for a path in the model."""
        if not self.within or (self.bare and path == self.bare):
            return self.within or path
        return f"{self.within}.{path}"

    def inner_path(self, path: str) -> str:
        """Return a path in the model for a path in the outer module, or for two paths joined by "@".

        >>> Record({}, within="head").inner_path("head.conv.weight@head.conv")
        'conv.weight@conv'
        >>> Record({}, within="head", bare="linear").inner_path("head.weight@head")
        'weight@linear'
        """
        if not self.within:
            return path
        parts = path.split("@")
        return "@".join(self.bare if self.bare and p == self.within else p.removeprefix(f"{self.within}.") for p in parts)


def attach(model: fx.GraphModule, record: Record) -> fx.GraphModule:
    """Set the record of a new model, in place, and return the model."""
    model.meta["qfunc"] = record  # survives copy.deepcopy
    model.qfunc_record = record  # type: ignore[assignment]  # survives torch.save
    return model


def within_module(model: fx.GraphModule, classes: tuple[str, ...]) -> fx.GraphModule:
    """Record in each op of a new model that modules of these classes are around it, outermost first; return the model."""
    record = record_of(model)
    assert record is not None
    ops = {n.name for n in model.graph.nodes if n.op.startswith("call")}
    facts = {k: evolve(v, modules=(*classes, *v.modules)) if k in ops else v for k, v in record.facts.items()}
    return attach(model, evolve(record, facts=facts))


def record_of(model: object) -> Record | None:
    """Return the record of a captured model, or None."""
    found = getattr(model, "meta", {}).get("qfunc") if isinstance(getattr(model, "meta", None), dict) else None
    return found or getattr(model, "qfunc_record", None)


def path_of(model: fx.GraphModule, node: fx.Node) -> str:
    """Return the user's path of a node, such as "layer1.0.conv1"."""
    record = record_of(model)
    fact = record.facts.get(node.name) if record else None
    path = fact.path if fact else str(node.target) if node.op == "get_attr" else node.name
    return record.path(path) if record else path


@frozen
class Context:
    """A graph, the user-defined ops, and the root of each node's fused group.

    It serves one analysis of a graph, because it reads the record and the kinds of nodes only once.
    """

    model: fx.GraphModule
    ops: tuple[OpKind, ...] = ()
    roots: dict[fx.Node, fx.Node] = field(factory=dict)
    record: Record | None = field(init=False, eq=False, repr=False)
    signs: dict[fx.Node, bool] = field(factory=dict, init=False, eq=False, repr=False)
    """The nodes of which `non_negative` was computed."""
    attributes: dict[fx.Node, Mapping[str, Any]] = field(factory=dict, init=False, eq=False, repr=False)
    """The attributes of the nodes that were asked for."""
    computed: dict[str, Any] = field(factory=dict, init=False, eq=False, repr=False)
    """Facts of the whole graph by name, each of which is computed once."""
    _kinds: dict[fx.Node, str] = field(factory=dict, init=False, eq=False, repr=False)
    _traits: dict[fx.Node, Trait] = field(factory=dict, init=False, eq=False, repr=False)
    _axes: dict[fx.Node, int] = field(factory=dict, init=False, eq=False, repr=False)
    _slots: dict[fx.Node, tuple[tuple[str, fx.Node], ...]] = field(factory=dict, init=False, eq=False, repr=False)
    _layers: dict[str, set[fx.Node]] = field(factory=dict, init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "record", record_of(self.model))

    def fact(self, node: fx.Node) -> NodeInfo:
        """Return the origin of a node; the path of a constant is the path of its attribute."""
        record = self.record
        found = record.facts.get(node.name) if record else None
        found = found or NodeInfo(str(node.target) if node.op == "get_attr" else node.name)
        return evolve(found, path=self.path(found.path)) if record and record.within else found

    def path(self, path: str) -> str:
        """Return the user's path for a path in the graph's model, which may be a part of an outer module."""
        return self.record.path(path) if self.record else path

    def user_op(self, node: fx.Node) -> OpKind | None:
        """Return the record of a node's user-defined op, or None."""
        spelling = _qualified(self.model, node) if self.ops else ""
        return next((op for op in self.ops if spelling in op.spellings), None)

    def kind(self, node: fx.Node) -> str:
        """Return the kind of a node; user-defined kinds take precedence."""
        if node not in self._kinds:
            op = self.user_op(node)
            self._kinds[node] = kind_of(node) if op is None else op.kind
        return self._kinds[node]

    def traits(self, node: fx.Node) -> Trait:
        """Return the traits of a node; a user-defined op also has the traits of the kind in `behaves_like`."""
        if node not in self._traits:
            op = self.user_op(node)
            self._traits[node] = traits(node) if op is None else op.traits | traits_of(op.behaves_like or op.kind)
        return self._traits[node]

    def traits_of_ops(self) -> dict[fx.Node, Trait]:
        """Return the traits of every op of the graph."""
        return {n: self.traits(n) for n in self.model.graph.nodes} if self.ops else traits_of_ops(self.model.graph)

    def has(self, node: fx.Node, trait: Trait) -> bool:
        """Return True if a node has a trait."""
        return trait in self.traits(node)

    def slots(self, node: fx.Node) -> tuple[tuple[str, fx.Node], ...]:
        """Return the tensors that an op reads, as (slot, producer), in order."""
        if node not in self._slots:
            op = self.user_op(node)
            self._slots[node] = tuple(slots(node) if op is None or op_of(node) is not None else _slots_of(op, node))
        return self._slots[node]

    def follows_layer(self, node: fx.Node) -> bool:
        """Return True if a layer is computed before a node and the node depends on it."""
        if "before" not in self._layers:
            found = self._layers["before"] = set[fx.Node]()
            for each in self.model.graph.nodes:
                if any(n in found or self._is_layer(n) for n in each.all_input_nodes):
                    found.add(each)
        return node in self._layers["before"]

    def precedes_layer(self, node: fx.Node) -> bool:
        """Return True if a layer depends on a node."""
        if "after" not in self._layers:
            found = self._layers["after"] = set[fx.Node]()
            for each in reversed(self.model.graph.nodes):
                if any(n in found or self._is_layer(n) for n in each.users):
                    found.add(each)
        return node in self._layers["after"]

    def _is_layer(self, node: fx.Node) -> bool:
        # A matmul is not a layer: in attention it multiplies activations.
        return self.has(node, Trait.WEIGHTED) or self.has(node, Trait.RECURRENT)

    def channel_axis(self, node: fx.Node) -> int:
        """Return the axis of an op's weight that runs over output channels."""
        if node not in self._axes:
            op = self.user_op(node)
            self._axes[node] = channel_axis(node) if op is None or op_of(node) is not None else op.weight_axis
        return self._axes[node]


def _slots_of(op: OpKind, node: fx.Node) -> Iterator[tuple[str, fx.Node]]:
    for name, value in arguments(op, node):
        slot = op.slot(name) if name in op.parameters else "input"
        tensors: list[fx.Node] = []
        fx.map_arg(value, tensors.append)
        for tensor in (n for n in tensors if not is_number(n)) if slot else ():
            slot_of_operand = "weight" if is_constant(tensor) else "input"
            yield slot_of_operand if slot == "operand" else str(slot), tensor


def arguments(op: OpKind, node: fx.Node) -> list[tuple[str, Any]]:
    """Return the arguments of a user-defined op by parameter name; surplus arguments have the name ""."""
    return [*zip_longest(op.parameters[: len(node.args)], node.args, fillvalue=""), *node.kwargs.items()]


def _qualified(model: fx.GraphModule, node: fx.Node) -> str:
    target: Any = type(model.get_submodule(str(node.target))) if node.op == "call_module" else node.target
    if isinstance(target, str):
        return target
    return f"{getattr(target, '__module__', '')}.{getattr(target, '__qualname__', getattr(target, '__name__', ''))}"
