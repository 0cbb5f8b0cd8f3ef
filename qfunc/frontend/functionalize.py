"""Convert a traced graph to the functional form: canonical ops, no in-place writes, the user's names."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from attrs import evolve
from torch import fx, nn

from qfunc.frontend.aliasing import VIEWS, Storage, aliasing_error
from qfunc.frontend.computed_numbers import count_axes_from_the_end, require_known_numbers, slice_narrowed
from qfunc.frontend.multi_output import is_only_result, is_result, output_count, reads_tuple, select_output
from qfunc.frontend.python_sum import is_sum_start
from qfunc.frontend.slice_writes import filled_slice, slice_indices, view_index, write_positions, write_slice
from qfunc.frontend.source_location import has_module_name, module_stacks, source_line
from qfunc.frontend.tensor_creation import (
    created_like,
    dtype_like,
    meshgrid,
    meshgrid_arguments,
    on_input_device,
    tensor_of_numbers,
)
from qfunc.graph.constants import UniqueNames
from qfunc.graph.module import CapturedModule, ensure_submodule, with_tensors
from qfunc.graph.record import NodeInfo, Record, attach
from qfunc.ops.attention import repeat_heads
from qfunc.ops.binding import dtype_of
from qfunc.ops.canonicalize import DROPOUTS, argument, canonical, is_in_place
from qfunc.ops.creation import casts_nothing, only_moves
from qfunc.ops.decompositions import attend
from qfunc.ops.sizes import IN_PLACE_FUNCTIONS, short_name

_USE_PURE_OPS = "Build the tensor with torch.cat, torch.where or F.pad, or use index_put, scatter or masked_fill."
_SAME_VALUE = ("contiguous", "clone", "positive", "alias", "lift_fresh", "lift_fresh_copy")


def functionalize(owned: nn.Module, traced: fx.Graph, dropouts: set[str] | None = None) -> CapturedModule:
    """Return the functional form of a traced graph over `owned`, a module that the result may keep.

    Args:
        owned: The module with the tensors and leaves that the graph names.
        traced: The graph from a tracer.
        dropouts: Names of the dropout calls that are active in training only; None if all are.
    Raises:
        CaptureError: an in-place write has no pure form.

    >>> from torch import nn
    >>> [str(n.target) for n in functionalize(nn.Module(), fx.symbolic_trace(lambda x: x.sigmoid_()).graph).graph.nodes][0]
    'x'
    """
    count_axes_from_the_end(traced)
    slice_narrowed(traced)
    build = _Builder(owned, traced, dropouts)
    for node in traced.nodes:
        build.require(node)
    build.graph.eliminate_dead_code(is_impure_node=lambda n: n.op in ("placeholder", "output"))
    result = with_tensors(owned, build.graph)
    attach(result, Record({n.name: build.facts[n.name] for n in result.graph.nodes if n.name in build.facts}))
    return result


class _Builder:
    """Copy a graph node by node; `env` maps each traced node to its *current* value."""

    def __init__(self, owner: nn.Module, traced: fx.Graph, dropouts: set[str] | None) -> None:
        self.owner, self.graph, self.dropouts = owner, fx.Graph(), dropouts
        self.graph.set_codegen(traced._codegen)
        self.env: dict[fx.Node, Any] = {}  # a tuple for torch.meshgrid
        self.storage = Storage(traced)
        self.facts: dict[str, NodeInfo] = {}
        self.paths = UniqueNames()
        self.stacks = module_stacks(traced)
        self.last = {stack[-1][0]: n for n, stack in self.stacks.items() if n.op.startswith("call") and stack}

    def require(self, node: fx.Node) -> None:
        """Emit one traced node after its inputs, unless it was emitted before."""
        if node not in self.env:
            for source in node.all_input_nodes:
                self.require(source)
            self.step(node)

    def step(self, node: fx.Node) -> None:
        """Emit one traced node."""
        if node.op == "output":
            self.graph.output(fx.map_arg(node.args[0], self.env.__getitem__))
            return
        if node.op == "placeholder" and str(node.target).startswith("*") and not node.users:
            return  # **kwargs that the forward does not use
        self.env[node] = self._value(node)
        if node.op in ("placeholder", "get_attr"):
            return
        source = argument(node, 0, "input", "self")
        if not isinstance(source, fx.Node):
            return
        name = short_name(node.op, node.target) or ""
        if node.op == "call_module":
            module = self.owner.get_submodule(str(node.target))
            written, name = getattr(module, "inplace", False) is True, "dropout" if type(module) in DROPOUTS.values() else ""
        else:
            written = is_in_place(node)
        if written:
            self._write_through(node, source)
        elif name in ("positive", "alias", "lift_fresh"):
            self.storage.identical(node, source)
        elif node.target is operator.getitem and is_result(node, source):
            self.env[node] = self.env[self.storage.result(node, source, node.args[1])]
        elif name in VIEWS or (name == "getattr" and node.args[1] in VIEWS):
            self.storage.view(node, source, view_index(node, source, source in self.storage.part))

    def _write_through(self, node: fx.Node, target: fx.Node) -> None:
        # Update the values of the tensors that the written view is a part of.
        value = self.env[node]
        current = {target: value}
        for whole, index in self.storage.wholes(target):
            value = current[whole] = write_slice(self._emitter(node, self._path(node)), self.env[whole], index, value)
        for tensor, names in self.storage.write(node, target, tuple(current)).items():
            self.env.update(dict.fromkeys(names, current[tensor]))

    def _value(self, node: fx.Node) -> Any:
        if node.op in ("placeholder", "get_attr", "call_module"):
            return self._emit(node, node.op, node.target, node.args, node.kwargs)
        name = short_name(node.op, node.target)
        if name in _SAME_VALUE:
            return self.env[argument(node, 0, "input", "self")]
        if node.kwargs.get("out") is not None:
            raise aliasing_error(node, "out=, a write into another tensor", "a pure operation", "Use the returned value.")
        if (name or "").removesuffix("_") in DROPOUTS and (value := self._dropout(node)) is not None:
            return value
        if name == "scaled_dot_product_attention" and node.name in (self.dropouts or ()):
            return self._attention(node)
        if (first_term := is_sum_start(node, self.owner)) is not None:
            return self.env[first_term]
        if casts_nothing(node, name or "") or only_moves(node, name or ""):
            return self.env[node.args[0]]  # type: ignore[index]
        if name == "meshgrid" and (given := meshgrid_arguments(node)) is not None:
            emit = self._emitter(node, self._path(node))
            return meshgrid(emit, [self.env[n] for n in given[0]], given[1])
        if node.target is torch.tensor:
            path = self._path(node)
            made = tensor_of_numbers(node, self._emitter(node, path), partial(self._constant, node, path), self.env)
            if made is not None:
                return made
        if name == "getitem" and isinstance(results := self.env.get(node.args[0]), tuple):  # type: ignore[arg-type]
            return results[node.args[1]]  # type: ignore[index]
        if node.target is operator.getitem and is_only_result(node):
            return self.env[node.args[0]]  # type: ignore[index]
        call = on_input_device(select_output(canonical(node)), node.graph)
        if any(n.op in ("call_function", "call_method") for n in node.all_input_nodes):
            require_known_numbers(node, call)
        if call is not None:
            fx.map_arg(call[1], self.require)
            if (like := dtype_like(call)) is not None:
                return created_like(call, like, self._emitter(node, self._path(node)), self.env)
            value = self._emit(node, "call_function", call[0], call[1], {})
            if not reads_tuple(node):
                return value
            return tuple(
                self._create(node, "call_function", operator.getitem, (value, i), {}, self._unique(f"{value.name}.{i}"))
                for i in range(output_count(node, call))
            )
        if name == "detach_":
            return self._emit(node, "call_function", torch.detach, node.args, {})
        if is_in_place(node):
            return self._write(node, str(name))
        return self._emit(node, node.op, node.target, node.args, node.kwargs)

    def _write(self, node: fx.Node, name: str) -> fx.Node:
        # Return the value after a write for which the op vocabulary has no op of that name.
        target: Any = node.args[0]
        current, given = self.env[target], [fx.map_arg(v, self.env.__getitem__) for v in node.args[1:]]
        value: fx.Node | None = None
        if name in ("copy_", "fill_", "zero_"):
            value = filled_slice(self._emitter(node, self._path(node)), current, given[0] if given else 0)
        elif name in ("setitem", "__setitem__") and slice_indices(node.args[1]) is not None:
            # x[i] += 1 writes into the slice first, and then writes the slice into x.
            is_written = isinstance(node.args[2], fx.Node) and self.storage.is_part(node.args[2], target, node.args[1])
            value = current if is_written else write_slice(self._emitter(node, self._path(node)), current, *given)
        elif name in ("setitem", "__setitem__"):
            value = write_positions(self._emitter(node, self._path(node)), current, *given)
        if value is not None:
            return value
        found, do = f"{name}, an in-place write that has no pure form in the op vocabulary", _USE_PURE_OPS
        if "setitem" in name:
            found = "x[...] = value, an in-place write into a part of a tensor"
        elif hasattr(torch.Tensor, name.strip("_")):
            do = f"Write x = x.{name.strip('_')}(...)."
        raise aliasing_error(node, found, "a pure operation", do)

    def _emitter(self, node: fx.Node, path: str) -> Callable[..., fx.Node]:
        def emit(function: Any, *arguments: Any) -> fx.Node:
            return self._create(node, "call_function", function, arguments, {}, self._unique(f"{path}.{function.__name__}"))

        return emit

    def _constant(self, node: fx.Node, path: str, value: torch.Tensor) -> fx.Node:
        taken = {name for name, _ in self.owner.named_buffers()} | set(dir(self.owner))
        name = UniqueNames(taken).fresh(path.replace(".", "_"))
        self.owner.register_buffer(name, value)
        new = self._create(node, "get_attr", name, (), {}, path)
        self.facts[new.name] = evolve(self.facts[new.name], is_integer=not value.is_floating_point())
        return new

    def _dropout(self, node: fx.Node) -> fx.Node | None:
        # Return None for a dropout that is active in both modes, its input if in neither, a leaf module if in training only.
        training = argument(node, 2, "training", "train")
        if training is not False:
            return None
        source = argument(node, 0, "input", "self")
        if self.dropouts is not None and node.name not in self.dropouts:
            return self.env[source]  # type: ignore[no-any-return]
        given = argument(node, 1, "p")
        module = DROPOUTS[str(short_name(node.op, node.target)).removesuffix("_")](0.5 if given is None else float(given))
        return self._module(node, self._path(node), module, self.env[source])

    def _attention(self, node: fx.Node) -> fx.Node:
        # The dropout is active in training only and follows the softmax, so the softmax must be a separate op.
        call = canonical(node)
        assert call is not None
        query, key, value, mask, p, causal, factor, grouped = fx.map_arg(call[1], self.env.__getitem__)
        path = self._path(node)
        emit = self._emitter(node, path)

        def dropout(weights: fx.Node) -> fx.Node:
            return self._module(node, self._unique(f"{path.rpartition('.')[0]}.dropout".strip(".")), nn.Dropout(p), weights)

        if grouped:
            key, value = (emit(repeat_heads, t, query) for t in (key, value))
        product: fx.Node = attend(emit, query, key, value, (mask,), causal, factor, dropout)[0]
        fact = self.facts.pop(product.name)
        product.name = re.sub(r"\W", "_", path)  # the last product gets the name of the attention op
        self.facts[product.name] = evolve(fact, path=path)
        return product

    def _module(self, node: fx.Node, path: str, module: nn.Module, source: fx.Node) -> fx.Node:
        holder, _, name = path.rpartition(".")
        while hasattr(ensure_submodule(self.owner, holder), name):  # an attribute of the user's module
            path = self._unique(path)
            name = path.rpartition(".")[2]
        ensure_submodule(self.owner, holder).add_module(name, module.train(ensure_submodule(self.owner, holder).training))
        return self._create(node, "call_module", path, (source,), {}, path)

    def _emit(self, node: fx.Node, op: str, target: Any, args: Any, kwargs: Any) -> fx.Node:
        path = self._path(node)
        mapped, named = (args, kwargs) if op == "placeholder" else fx.map_arg((args, kwargs), self.env.__getitem__)
        return self._create(node, op, target, mapped, named, path)

    def _create(self, node: fx.Node, op: str, target: Any, args: Any, kwargs: Any, path: str) -> fx.Node:
        new = self.graph.create_node(op, target, args, kwargs, re.sub(r"\W", "_", path), node.type)
        dtype = dtype_of(node)
        is_integer = dtype is not None and not dtype.is_floating_point and not dtype.is_complex
        modules = tuple(kind for _, _, kind in self._stack(node))
        self.facts[new.name] = NodeInfo(path, modules, source_line(node), is_integer)
        return new

    def _path(self, node: fx.Node) -> str:
        if node.op == "call_module":
            return self._unique(str(node.target))
        if node.op in ("placeholder", "get_attr"):
            return str(node.target)
        key, inner, kind = (self._stack(node) or [("", "", "")])[-1]
        if inner and has_module_name(kind) and self.last[key] is node:
            return self._unique(inner)
        word = short_name(node.op, node.target) or str(getattr(node.target, "__name__", node.target))
        word = word.removeprefix("i" if word in IN_PLACE_FUNCTIONS else "sym_")
        return self._unique(".".join(filter(None, (inner, word.strip("_")))))

    def _stack(self, node: fx.Node) -> list[tuple[str, str, str]]:
        # Return the modules around a traced node; a node that was added after tracing has none.
        return self.stacks.get(node, [])

    def _unique(self, path: str) -> str:
        return self.paths.fresh(path)
