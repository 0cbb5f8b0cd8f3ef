"""Evaluate selectors on a captured graph."""

from __future__ import annotations

from fnmatch import fnmatchcase
from itertools import zip_longest
from types import SimpleNamespace
from typing import Any

from attrs import evolve, field, frozen
from torch import fx

from qfunc.errors import SpecError
from qfunc.graph.record import NodeInfo, Record, record_of
from qfunc.ops.definition import Trait
from qfunc.ops.node import attribute, channel_axis, has, is_constant, kind_of, op_of, slots
from qfunc.ops.opset import traits_of
from qfunc.specs import selectors as s
from qfunc.specs.op_kind import OpKind


@frozen
class Context:
    """A graph, the user-defined ops, and the root of each node's fused group.

    It serves one analysis of a graph, because it reads the record and the kinds of nodes only once.
    """

    model: fx.GraphModule
    ops: tuple[OpKind, ...] = ()
    roots: dict[fx.Node, fx.Node] = field(factory=dict)
    record: Record | None = field(init=False, eq=False, repr=False)
    _kinds: dict[fx.Node, str] = field(factory=dict, init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "record", record_of(self.model))

    def fact(self, node: fx.Node) -> NodeInfo:
        """Return the origin of a node; the path of a constant is that of its attribute."""
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

    def has(self, node: fx.Node, trait: Trait) -> bool:
        """Return True if a node has a trait; a user-defined op also has those of the kind in `behaves_like`."""
        op = self.user_op(node)
        return has(node, trait) if op is None else trait in op.traits | traits_of(op.behaves_like or op.kind)

    def slots(self, node: fx.Node) -> list[tuple[str, fx.Node]]:
        """Return the tensors that an op reads, as (slot, producer), in order."""
        op = self.user_op(node)
        if op is None or op_of(node) is not None:
            return slots(node)
        found: list[tuple[str, fx.Node]] = []
        for name, value in arguments(op, node):
            slot = op.slot(name) if name in op.parameters else "input"
            tensors: list[fx.Node] = []
            fx.map_arg(value, tensors.append)
            for tensor in tensors if slot else ():
                slot_of_operand = "weight" if is_constant(tensor) else "input"
                found.append((slot_of_operand if slot == "operand" else str(slot), tensor))
        return found

    def channel_axis(self, node: fx.Node) -> int:
        """Return the axis of an op's weight that runs over output channels."""
        op = self.user_op(node)
        return channel_axis(node) if op is None or op_of(node) is not None else op.weight_axis


def arguments(op: OpKind, node: fx.Node) -> list[tuple[str, Any]]:
    """Return the arguments of a user-defined op by parameter name; surplus arguments have the name ""."""
    return [*zip_longest(op.parameters[: len(node.args)], node.args, fillvalue=""), *node.kwargs.items()]


def _qualified(model: fx.GraphModule, node: fx.Node) -> str:
    target: Any = type(model.get_submodule(str(node.target))) if node.op == "call_module" else node.target
    if isinstance(target, str):
        return target
    return f"{getattr(target, '__module__', '')}.{getattr(target, '__qualname__', getattr(target, '__name__', ''))}"


def matches(selector: s.Selector, node: fx.Node, context: Context) -> bool:
    """Return True if a selector matches an op, or the tensor that the node produces.

    >>> from qfunc.frontend.capture import capture
    >>> from torch import nn
    >>> model = capture()(nn.Sequential(nn.Conv2d(3, 3, 3, groups=3), nn.ReLU()))
    >>> selector = s.Op("conv") & s.Attr("depthwise", True)
    >>> [n.name for n in model.graph.nodes if matches(selector, n, Context(model))]
    ['_0']
    """
    match selector:
        case s.Everything():
            return True
        case s.Op(kinds):
            return context.kind(node) in kinds
        case s.Name(glob):
            path = context.fact(node).path
            return fnmatchcase(path, glob)
        case s.ModuleType(name):
            return any(m == name or m.rpartition(".")[2] == name for m in context.fact(node).modules)
        case s.Attr(name, equals):
            return bool(attributes(node, context).get(name, _MISSING) == equals)
        case s.From(producer):
            return matches(producer, context.roots.get(node, node), context)
        case s.AnyInput(producer):
            return any(matches(producer, context.roots.get(n, n), context) for n in node.all_input_nodes)
        case s.First():
            return not any(_is_layer(n, context) for n in _reach(node, "all_input_nodes"))
        case s.Last():
            return not any(_is_layer(n, context) for n in _reach(node, "users"))
        case s.NonNegative():
            return non_negative(node, context)
        case s.GraphInput():
            return node.op == "placeholder"
        case s.GraphOutput():
            return any(u.op == "output" for u in node.users)
        case s.Constant():
            return is_constant(node)
        case s.Where(predicate):
            fact = context.fact(node)
            view = SimpleNamespace(
                kind=context.kind(node), path=fact.path, attributes=attributes(node, context), module_types=fact.modules
            )
            return bool(predicate(view))
        case s.AllOf(of):
            return all(matches(one, node, context) for one in of)
        case s.AnyOf(of):
            return any(matches(one, node, context) for one in of)
        case s.Not(of):
            return not matches(of, node, context)
    raise SpecError(where="selector", found=repr(selector), wanted="a selector of qfunc.specs", do="Compose one of these.")


_MISSING = object()


def attributes(node: fx.Node, context: Context | None = None) -> dict[str, Any]:
    """Return the non-tensor arguments of an op by canonical name, and derived attributes.

    Convs also have "kernel", "depthwise" and "out_channels"; convs and pools have "spatial", the number of axes that
    the window slides along: 2 for conv2d and max_pool2d.  For matmul, "constant" is the name of the constant operand,
    or None.  A mul is a "square" if both operands are the same tensor.  A user's op has those that its OpKind names.
    """
    op = op_of(node)
    if op is None:
        user_op = None if context is None else context.user_op(node)
        named = [] if user_op is None else [(n, v) for n, v in arguments(user_op, node) if n and not isinstance(v, fx.Node)]
        window = {} if user_op is None or user_op.spatial is None else {"spatial": user_op.spatial}
        return {n: _plain(v) for n, v in named} | window
    plain = {n: _plain(v) for n, v in zip(op.parameters, node.args, strict=True) if not isinstance(v, fx.Node)}
    if op.kind == "avg_pool":
        plain.setdefault("divisor_override", None)
    if op.spatial is not None:
        plain["spatial"] = op.spatial
    weight = attribute(node, "weight") if "weight" in op.parameters else None
    shape = constant_shape(weight) if isinstance(weight, fx.Node) else None
    if op.spatial is not None and Trait.WEIGHTED in op.traits and shape:
        spatial = len(shape) - 2
        for name in ("stride", "padding", "dilation", "output_padding"):
            if isinstance(plain.get(name), int):
                plain[name] = (plain[name],) * spatial
        out = shape[0] if op.kind == "conv" else shape[1] * plain["groups"]
        plain |= {"kernel": tuple(shape[2:]), "depthwise": plain["groups"] > 1 and shape[1] == 1, "out_channels": out}
    if op.kind == "matmul":
        operands = zip(op.parameters, node.args, strict=True)
        plain["constant"] = next((n for n, v in operands if isinstance(v, fx.Node) and constant_shape(v) is not None), None)
    if op.kind == "mul":
        plain["square"] = node.args[0] is node.args[1]
    return plain


def _plain(value: Any) -> Any:
    return tuple(_plain(v) for v in value) if isinstance(value, list | tuple) else value


def constant_shape(node: fx.Node) -> tuple[int, ...] | None:
    """Return the shape of the parameter that a node reads, directly or through a quantizer; else None."""
    while node.op == "call_module" and kind_of(node) == "fake_quantize":
        node = node.all_input_nodes[0]
    if node.op != "get_attr" or node.graph.owning_module is None:
        return None
    owner, _, name = str(node.target).rpartition(".")
    return tuple(getattr(node.graph.owning_module.get_submodule(owner), name).shape)


def non_negative(node: fx.Node, context: Context) -> bool:
    """Return True if the graph proves that a tensor has no negative value."""
    if context.has(node, Trait.NON_NEGATIVE):
        return True
    match kind_of(node):
        case "clip":
            return (attribute(node, "min") or -1) >= 0 or attribute(node, "min") == 0
        case "pad" if attribute(node, "mode") == "constant":
            return (attribute(node, "value") or 0) >= 0 and non_negative(attribute(node, "input"), context)
        case "pad":
            return non_negative(attribute(node, "input"), context)
        case "resize":  # bicubic weights are negative beyond the neighbours
            return attribute(node, "mode") != "bicubic" and non_negative(attribute(node, "input"), context)
    if not context.has(node, Trait.KEEPS_SIGN):
        return False
    op = op_of(node)
    if op is None:
        user_op = context.user_op(node)
        operands: list[Any] = [n for slot, n in context.slots(node) if slot == "input"]
        if user_op is not None:
            operands += [v for n, v in arguments(user_op, node) if user_op.slot(n) in ("input", "operand")]
    else:
        read = [v for n, v in zip(op.parameters, node.args, strict=True) if op.slots.get(n) in ("input", "operand")]
        operands = [entry for v in read for entry in (v if isinstance(v, list | tuple) else (v,))]
    tensors = [v for v in operands if isinstance(v, fx.Node)]
    numbers = [v for v in operands if isinstance(v, int | float)]
    return all(v >= 0 for v in numbers) and bool(tensors) and all(non_negative(n, context) for n in tensors)


def _is_layer(node: fx.Node, context: Context) -> bool:
    # A matmul is not a layer: in attention it multiplies activations.
    return context.has(node, Trait.WEIGHTED) or context.has(node, Trait.RECURRENT)


def _reach(node: fx.Node, direction: str) -> set[fx.Node]:
    seen: set[fx.Node] = set()
    stack = list(getattr(node, direction))
    while stack:
        current = stack.pop()
        if current not in seen:
            seen.add(current)
            stack += getattr(current, direction)
    return seen


def names_one_op(selector: Any) -> bool:
    """Return True if a selector refers to one model (a name, a class, a predicate) rather than to op kinds."""
    match selector:
        case s.Name() | s.ModuleType() | s.Where():
            return True
        case s.AllOf(of) | s.AnyOf(of):
            return any(names_one_op(one) for one in of)
        case s.Not(of):
            return names_one_op(of)
    return False
