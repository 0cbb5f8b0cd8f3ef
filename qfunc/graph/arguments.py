"""Arguments that capture fixed: record their values, and drop them from calls that still pass them."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from attrs import evolve
from torch import Tensor, fx, nn

from qfunc.errors import CaptureError, a_or_an
from qfunc.graph.record import Argument, Record, attach, record_of
from qfunc.ops.indexing import element
from qfunc.ops.sizes import short_name

_PLAIN = (type(None), bool, int, float, str)


_FIXED = (type(None), bool, str)  # by their default


def store_fixed_arguments(
    model: fx.GraphModule, of: nn.Module, concrete: Mapping[str, Any], example_inputs: Any, batch: int | None = None
) -> fx.GraphModule:
    """Record on a new model which arguments of the original forward are fixed, and to which values; return the model."""
    record = record_of(model)
    assert record is not None
    examples = example_inputs if isinstance(example_inputs, tuple | None) else (example_inputs,)
    remaining = list(examples or ())
    arguments = []
    for p in inspect.signature(of.forward).parameters.values():
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            break
        if p.name in concrete:
            arguments.append(Argument(p.name, True, concrete[p.name], is_input=False))
        elif examples is None:
            default = p.default is None or isinstance(p.default, bool | str)
            arguments.append(Argument(p.name, True, p.default, is_input=False) if default else Argument(p.name))
        elif remaining:
            value = remaining.pop(0)
            arguments.append(Argument(p.name, True, value) if isinstance(value, _PLAIN) else Argument(p.name))
        else:
            arguments.append(Argument(p.name, True, p.default, is_input=False))
    return attach(model, evolve(record, arguments=tuple(arguments), batch=batch))


def free_arguments(
    model: fx.GraphModule, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return a call's arguments without the fixed ones, in the form that the graph accepts.

    Raises:
        CaptureError: a fixed argument has another value.

    >>> from qfunc.frontend.capture import capture
    >>> free_arguments(capture(concrete_args={"gain": 2.0})(_Gain()), (1, 2.0), {})
    ((1,), {})
    """
    record = record_of(model)
    arguments = record.arguments if record is not None else ()
    require_batch(record, args or [kwargs[a.name] for a in arguments if a.name in kwargs])
    graph_arguments = [a for a in arguments if a.is_input]
    # For f(x, flag=True, y=0) with flag fixed: in f(x, True) True is the flag; in f(x, tensor) the tensor is y.
    places = zip(arguments, args, strict=False)
    has_fixed_value = any(not a.is_input and isinstance(v, _FIXED) and type(v) is type(a.value) for a, v in places)
    matches_graph = (
        not has_fixed_value and len(args) <= len(graph_arguments) and kwargs.keys() <= {a.name for a in graph_arguments}
    )
    if matches_graph and not any(a.fixed for a in graph_arguments):
        return args, kwargs  # the call already has the form that the graph accepts
    names = graph_arguments if matches_graph else arguments
    if len(args) > len(names) or not kwargs.keys() <= {a.name for a in names}:
        return args, kwargs  # Python raises a TypeError
    for a, value in (*zip(names, args, strict=False), *((a, kwargs[a.name]) for a in names if a.name in kwargs)):
        if a.fixed and not _same(a.value, value):
            raise _mismatch_error(a, value, record)
    graph_names = {a.name for a in graph_arguments}
    placed = tuple(v for a, v in zip(names, args, strict=False) if a.is_input)
    named = {k: v for k, v in kwargs.items() if k in graph_names}
    return placed, {a.name: a.value for a in graph_arguments[len(placed) :] if a.fixed} | named


def fixed_arguments(model: fx.GraphModule) -> dict[str, Any]:
    """Return the graph's inputs that example_inputs fixed, by name, with their values: None, bools, numbers, strings.

    >>> from qfunc.frontend.capture import capture
    >>> fixed_arguments(capture((Tensor([1.0]), 2.0))(_Gain()))
    {'gain': 2.0}
    """
    record = record_of(model)
    return {a.name: a.value for a in (record.arguments if record is not None else ()) if a.fixed and a.is_input}


def with_fixed_arguments(model: fx.GraphModule, tensors: Iterable[Any]) -> list[Any]:
    """Return the tensors of a call with the values that example_inputs fixed, in the order of the graph's inputs."""
    fixed, values = fixed_arguments(model), list(tensors)
    for position, node in enumerate(n for n in model.graph.nodes if n.op == "placeholder"):
        if node.target in fixed:
            values.insert(position, fixed[str(node.target)])
    return values


def require_batch(record: Record | None, inputs: Any) -> None:
    """Refuse inputs with another batch size than the one that torch.export fixed.

    Raises:
        CaptureError: the sizes differ; the message gives both.
    """
    if record is None or record.batch is None:
        return
    first = next((t for t in flatten(inputs) if isinstance(t, Tensor)), None)
    if first is not None and first.ndim and first.shape[0] != record.batch:
        raise CaptureError(
            where=_call_of(record),
            found=f"a first input of shape {list(first.shape)}",
            wanted=f"{record.batch} on its first axis, to which torch.export fixed it: the forward depends on that size",
            do="Give example_inputs of that size, or quantize the submodules that accept any batch size: quantize(target, "
            "submodules=...).",
        )


def _call_of(record: Record) -> str:
    return f"call of submodule {record.within!r}" if record.within else "call of a captured model"


def _same(fixed: Any, value: Any) -> bool:
    return fixed is value or (type(fixed) is type(value) and isinstance(value, (*_PLAIN, tuple)) and fixed == value)


def _mismatch_error(argument: Argument, value: Any, record: Record | None) -> CaptureError:
    name, fixed = argument.name, _short(argument.value)
    do = f"Capture or quantize the model with concrete_args={{{name!r}: {_short(value)}}}."
    if isinstance(value, Tensor) or argument.is_input:
        do = f"Capture or quantize the model with example_inputs=(...,) that have {_short(value)} for {name}."
    found, wanted = f"{name}={_short(value)}", f"{name}={fixed}, to which capture fixed it"
    assert record is not None
    return CaptureError(where=_call_of(record), found=found, wanted=wanted, do=do)


def _short(value: Any) -> str:
    return repr(value) if isinstance(value, _PLAIN) else a_or_an(type(value))


class _Gain(nn.Module):
    def forward(self, x: Tensor, gain: float = 1.0) -> Tensor:
        return x * gain


def flatten(value: Any) -> list[Any]:
    """Return the leaves of nested tuples, lists, dicts and dataclasses, in order; None is a leaf.

    >>> flatten({"a": 1, "b": (2, [3])})
    [1, 2, 3]
    """
    if isinstance(value, Mapping):
        return [leaf for v in value.values() for leaf in flatten(v)]
    if isinstance(value, tuple | list):
        return [leaf for v in value for leaf in flatten(v)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [leaf for f in dataclasses.fields(value) for leaf in flatten(getattr(value, f.name))]
    return [value]


def unflatten(output: fx.Node) -> list[fx.Node]:
    """Return the nodes of the tensors that a graph returns, in order, also those inside user-defined output classes.

    >>> g = fx.symbolic_trace(lambda x: (x, {"y": [x.relu(), None]})).graph
    >>> [n.name for n in unflatten(list(g.nodes)[-1])]
    ['x', 'relu']
    """
    nodes: list[fx.Node] = []
    for leaf in flatten(output.args[0] if output.op == "output" else (output.args, output.kwargs)):
        if isinstance(leaf, fx.Node):
            nodes += unflatten(leaf) if isinstance(leaf.target, type) else [leaf]
    return nodes


def dict_key(node: fx.Node) -> str | None:
    """Return a string key that the model reads from an input, or None; such an input is a dict."""
    keys = (user.args[1] for user in node.users if _reads(user, node) or user.target is element)
    return next((k for k in keys if isinstance(k, str)), None)


def _reads(user: fx.Node, node: fx.Node) -> bool:
    return short_name(user.op, user.target) == "getitem" and user.args[0] is node and isinstance(user.args[1], str | int)
