"""Evaluate selectors on a captured graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from types import SimpleNamespace
from typing import Any

from torch import fx

from qfunc.errors import SpecError
from qfunc.graph.examples import axes_of_examples, created_nodes, mixes_examples, selects_examples
from qfunc.graph.record import Context, arguments
from qfunc.ops.definition import Trait
from qfunc.ops.node import attribute, is_constant, kind_of, op_of
from qfunc.ops.opset import kinds_with, traits_of
from qfunc.ops.sizes import is_number
from qfunc.specs import OpKind
from qfunc.specs import selectors as s

__all__ = [
    "Context",
    "arguments",
    "attribute_names",
    "attributes",
    "constant_shape",
    "is_created",
    "kinds_of",
    "matches",
    "names_one_op",
    "non_negative",
]


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
            return context.kind(node) in kinds or any(isinstance(k, Trait) and context.has(node, k) for k in kinds)
        case s.Name(glob):
            path = context.fact(node).path
            return fnmatchcase(path, glob)
        case s.NodeName(glob):
            return fnmatchcase(node.name, glob)
        case s.ModuleType(name):
            return any(m == name or m.rpartition(".")[2] == name for m in context.fact(node).modules)
        case s.Attr(name, equals):
            return bool(attributes(node, context).get(name, _MISSING) == equals)
        case s.Multiple(name, of):
            value = attributes(node, context).get(name)
            return type(value) is int and value % of == 0
        case s.AtMost(name, bound):
            value = attributes(node, context).get(name)
            return type(value) is int and value <= bound
        case s.From(producer):
            return matches(producer, context.roots.get(node, node), context)
        case s.AnyInput(producer):
            return any(matches(producer, context.roots.get(n, n), context) for n in node.all_input_nodes)
        case s.ReadBy(reader):
            return any(matches(reader, n, context) for n in _readers(node, context))
        case s.First():
            return not context.follows_layer(node)
        case s.Last():
            return not context.precedes_layer(node)
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


def kinds_of(select: s.Op, ops: Iterable[OpKind] = ()) -> tuple[str, ...]:
    """Return the kinds that a selector names, and the kinds of canonical ops and of `ops` with a trait that it names.

    >>> kinds_of(s.Op((Trait.CLAMPS, "tanh")))
    ('relu', 'clip', 'tanh')
    """
    found: list[str] = []
    for kind in select.kinds:
        if isinstance(kind, str):
            found.append(kind)
        else:
            own = (op.kind for op in ops if kind in op.traits | traits_of(op.behaves_like or op.kind))
            found += [*kinds_with(kind), *own]
    return tuple(dict.fromkeys(found))


_MISSING = object()


def attributes(node: fx.Node, context: Context | None = None) -> Mapping[str, Any]:
    """Return the non-tensor arguments of an op by canonical name, and derived attributes.

    Convs also have "kernel", "depthwise", "in_channels", "out_channels", and "multiplier", the output channels of a group.
    Convs and pools have "spatial", the number of axes that the window slides along: 2 for conv2d and max_pool2d.  For matmul,
    "constant" is the name of the constant operand, or None, and "matrices" is True if its second operand is a batch of constant
    matrices.  A linear layer with a weight [out, in] has "in_features" and "out_features".  A mul is a "square" if both
    operands are the same tensor.  "number" is True for x + y, x - y, x * y, x / y and x ** y if an operand is a number.  An op
    is "created" if no value of an input of the model changes it.  An op "mixes" if one example of its result depends on other
    examples of the batch, and a slice "selects" if it takes some of them.  "batch_axis" is the axis of the examples in its
    result, where the graph decides it.
    A user's op has those that its OpKind names.
    """
    if context is None:
        return _attributes(node, None)
    if node not in context.attributes:
        context.attributes[node] = _attributes(node, context)
    return context.attributes[node]


def _attributes(node: fx.Node, context: Context | None) -> dict[str, Any]:
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
        plain["in_channels"] = shape[1] * plain["groups"] if op.kind == "conv" else shape[0]
        plain["multiplier"] = out // plain["groups"]
    if op.kind == "linear" and shape and not op.weight_axis:
        plain["out_features"], plain["in_features"] = shape
    if Trait.RECURRENT in op.traits:
        held = constant_shape(attribute(node, "weight_hh"))
        plain |= {} if held is None else {"hidden_size": held[1]}
    if op.kind == "matmul":
        operands = zip(op.parameters, node.args, strict=True)
        shapes = {n: found for n, v in operands if isinstance(v, fx.Node) and (found := constant_shape(v)) is not None}
        plain["constant"] = next(iter(shapes), None)
        plain["matrices"] = len(shapes.get("other", ())) > 2
    if op.kind == "mul":
        plain["square"] = node.args[0] is node.args[1]
    if Trait.ARITHMETIC in op.traits or op.kind == "pow":
        plain["number"] = any(map(is_number, node.args))
    if context is not None:
        axes = _computed(context, axes_of_examples, context.model)
        holds = is_created(node, context), mixes_examples(node, axes), selects_examples(node, axes)
        plain |= {name: True for name, true in zip(("created", "mixes", "selects"), holds, strict=True) if true}
        if node in axes:
            plain["batch_axis"] = axes[node]
    return plain


def is_created(node: fx.Node, context: Context) -> bool:
    """Return True if no value of an input of the model changes a tensor."""
    return node in _computed(context, created_nodes, node.graph)


def _computed(context: Context, function: Callable[[Any], Any], argument: Any) -> Any:
    # A fact of the whole graph, which the context keeps.
    if function.__name__ not in context.computed:
        context.computed[function.__name__] = function(argument)
    return context.computed[function.__name__]


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


def _readers(node: fx.Node, context: Context) -> Iterator[fx.Node]:
    # The ops behind the group of an op, and behind the clamps after it.
    pending, seen = [node], set[fx.Node]()
    while pending:
        for reader in pending.pop().users:
            if reader not in seen:
                seen.add(reader)
                inside = context.roots.get(reader) is node or context.has(reader, Trait.CLAMPS)
                if inside:
                    pending.append(reader)
                else:
                    yield reader


def non_negative(node: fx.Node, context: Context) -> bool:
    """Return True if the graph proves that a tensor has no negative value.

    Each node is examined once in a context, without recursion, because networks may be deep.
    """
    known, pending = context.signs, [node]
    while pending:
        current = pending[-1]
        conditions = [] if current in known else _conditions(current, context)
        unknown = [n for n in conditions if isinstance(n, fx.Node) and n not in known]
        failed = any(known.get(n) is False if isinstance(n, fx.Node) else not n for n in conditions)
        if unknown and not failed:
            pending.append(unknown[0])
            continue
        known.setdefault(current, not failed)
        pending.pop()
    return known[node]


def _conditions(node: fx.Node, context: Context) -> list[Any]:
    # Return what must hold so that a tensor is not negative: booleans, and tensors that must not be negative.
    if context.has(node, Trait.NON_NEGATIVE):
        return []
    match kind_of(node):
        case "clip":
            return [(attribute(node, "min") or -1) >= 0 or attribute(node, "min") == 0]
        case "pad" if attribute(node, "mode") == "constant":
            return [(attribute(node, "value") or 0) >= 0, attribute(node, "input")]
        case "pad":
            return [attribute(node, "input")]
        case "resize":  # bicubic weights are negative beyond the neighbours
            return [attribute(node, "mode") != "bicubic", attribute(node, "input")]
    if not context.has(node, Trait.KEEPS_SIGN):
        return [False]
    op = op_of(node)
    if op is None:
        user_op = context.user_op(node)
        given: list[Any] = [n for slot, n in context.slots(node) if slot == "input"]
        given += [] if user_op is None else [v for n, v in arguments(user_op, node) if user_op.slot(n) in ("input", "operand")]
    else:
        read = [v for n, v in zip(op.parameters, node.args, strict=True) if op.slots.get(n) in ("input", "operand")]
        given = [entry for v in read for entry in (v if isinstance(v, list | tuple) else (v,))]
    tensors = [v for v in given if isinstance(v, fx.Node)]
    return [bool(tensors), *(v >= 0 for v in given if isinstance(v, int | float)), *tensors]


def names_one_op(selector: Any) -> bool:
    """Return True if a selector refers to one model (a name, a class, a predicate) rather than to op kinds."""
    match selector:
        case s.Name() | s.NodeName() | s.ModuleType() | s.Where():
            return True
        case s.AllOf(of) | s.AnyOf(of):
            return any(names_one_op(one) for one in of)
        case s.Not(of):
            return names_one_op(of)
    return False


def names_kind(selector: Any, kind: str) -> bool:
    """Return True if a selector names a kind.

    >>> from qfunc.specs import Attr, Op
    >>> names_kind(Op(("sdpa", "matmul")) & Attr("is_causal", True), "sdpa")
    True
    """
    match selector:
        case s.Op(kinds):
            return kind in kinds
        case s.AllOf(of) | s.AnyOf(of):
            return any(names_kind(one, kind) for one in of)
        case s.Not(of) | s.From(of) | s.AnyInput(of) | s.ReadBy(of):
            return names_kind(of, kind)
    return False


def attribute_names(selector: s.Selector) -> Iterator[str]:
    """Yield the names of the attributes of the op itself that a selector tests.

    >>> list(attribute_names(s.Op("conv") & ~s.Attr("groups", 1)))
    ['groups']
    """
    match selector:
        case s.Attr(name) | s.Multiple(name) | s.AtMost(name):
            yield name
        case s.AllOf(of) | s.AnyOf(of):
            for one in of:
                yield from attribute_names(one)
        case s.Not(of):
            yield from attribute_names(of)
