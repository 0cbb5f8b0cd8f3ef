"""The module that capture returns: a GraphModule with lossless copies, pickles and state_dicts."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from attrs import frozen
from torch import fx, nn

from qfunc._collection import paused_collection
from qfunc.errors import CaptureError
from qfunc.graph.arguments import free_arguments
from qfunc.graph.input_limits.ids import id_tables, require_ids
from qfunc.graph.input_limits.positions import require_positions, written_positions
from qfunc.graph.input_limits.sizes import require_sizes_of_call
from qfunc.graph.module_shells import ORIGIN, Origin, add_user_members, origin_of, pack_shells, pack_state
from qfunc.graph.record import record_of
from qfunc.graph.state_dict import mismatches
from qfunc.quantizers.fake_quantize import FakeQuantize


class CapturedModule(fx.GraphModule):
    """A `fx.GraphModule` with copies and pickles that keep node names, every tensor and the record.

    A plain GraphModule is traced again when it is unpickled, which renames its nodes.

    >>> import pickle
    >>> from qfunc.frontend.capture import capture
    >>> model = capture()(nn.Linear(2, 3))
    >>> [n.name for n in pickle.loads(pickle.dumps(model)).graph.nodes] == [n.name for n in model.graph.nodes]
    True
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # GraphModule gives each module a class of its own. torch.compile compiles at most eight graphs of one code object.
        call = CapturedModule.__call__
        own = FunctionType(call.__code__.replace(), call.__globals__, call.__name__, call.__defaults__, call.__closure__)
        cls.__call__ = own  # type: ignore[method-assign]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the forward; arguments that capture fixed may be passed, too."""
        args, kwargs = free_arguments(self, args, kwargs)
        if torch.compiler.is_compiling():  # torch.compile specializes on sizes itself
            return super().__call__(*args, **kwargs)
        require_sizes_of_call(self, args, kwargs)
        try:
            return super().__call__(*args, **kwargs)
        except (IndexError, RuntimeError):  # of torch.scatter
            named = [kwargs.get(str(n.target)) for n in self.graph.nodes if n.op == "placeholder"][len(args) :]
            require_ids(id_tables(self), [*args, *named], "call of a captured model")
            require_positions(written_positions(self), [*args, *named], "call of a captured model")
            raise

    def train(self, mode: bool = True) -> CapturedModule:
        """Set training or evaluation mode.

        Raises:
            CaptureError: training mode for a program that was exported in evaluation mode.
        """
        if mode:
            require_both_modes(self, "train")
        super().train(mode)
        return self

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: Any,
        unexpected_keys: Any,
        error_msgs: Any,
    ) -> None:
        # Warn instead of raising: torch passes strict=True here, whatever the caller chose.
        for text in mismatches(self, state_dict, prefix, local_metadata):
            warnings.warn(f"load_state_dict: {text}", UserWarning, stacklevel=2)
        rest = strict, missing_keys, unexpected_keys, error_msgs
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)

    @paused_collection()
    def __deepcopy__(self, memo: dict[int, Any]) -> CapturedModule:
        record = record_of(self)
        # Frozen values: specs of inputs and outputs, which torch cannot copy without a warning, the target and the sites.
        frozen_values = [vars(self).get("_in_spec"), vars(self).get("_out_spec"), None if record is None else record.target]
        for module in self.modules():
            if isinstance(module, FakeQuantize):
                frozen_values += module.site, module.scheme
        memo.update((id(value), value) for value in frozen_values if value is not None)
        copied = memo[id(self)] = _empty(_origin(self))  # first, because the user's attributes may refer to it
        vars(copied).update(copy.deepcopy(_state(self), memo))
        copied.graph = copy_module(self.graph)
        return copied

    def __reduce__(self) -> tuple[Any, ...]:
        parts = pack_shells(_origin(self)), [_pack_node(n) for n in self.graph.nodes], self.graph._codegen
        return _unpickle, parts, pack_state(_state(self))


def require_both_modes(model: fx.GraphModule, where: str) -> None:
    """Refuse a captured program with the norms and dropouts of evaluation.

    Raises:
        CaptureError: the program was exported in evaluation mode or decomposed.
    """
    record = record_of(model)
    if record is not None and record.evaluated:
        do = (
            "Quantize the nn.Module itself, with example_inputs=(...,) to capture it by torch.export; "
            "or export it in training mode: torch.export.export(model.train(), inputs)."
        )
        raise CaptureError(where=where, found=record.evaluated, wanted="a model that supports both modes", do=do)


_GRAPH_ATTRIBUTES = ("_graph", "_code", "_lineno_map", "_prologue_start")


def _state(model: fx.GraphModule) -> dict[str, Any]:
    return {k: v for k, v in vars(model).items() if k not in _GRAPH_ATTRIBUTES}


def copy_module(graph: fx.Graph) -> fx.Graph:
    """Copy a graph with its node names; the copy shares the immutable specs of inputs and outputs."""
    copied, env = fx.Graph(), dict[fx.Node, fx.Node]()
    copied.set_codegen(graph._codegen)
    for node in graph.nodes:
        env[node] = copied.node_copy(node, env.__getitem__)
    return copied


def _origin(model: fx.GraphModule) -> Origin | None:
    return origin_of(model) if ORIGIN in vars(model) else None


def _empty(origin: Origin | None) -> CapturedModule:
    module = CapturedModule(nn.Module(), fx.Graph())
    if origin is not None:
        vars(module)[ORIGIN] = origin
        add_user_members(module)
    return module


def with_tensors(owner: nn.Module, graph: fx.Graph) -> CapturedModule:
    """Return a captured module over a graph, with every parameter and buffer of `owner`, whether the graph reads it or not.

    Its state_dict has the same keys, and shared tensors stay shared.  Each submodule takes its mode from `owner`.
    """
    module = CapturedModule(owner, graph)
    for path, source in owner.named_modules(remove_duplicate=False):
        if not any(True for _ in source.buffers()) and not any(True for _ in source.parameters()):
            continue
        holder = ensure_submodule(module, path)
        for name, parameter in list(source._parameters.items()):
            if parameter is not None:
                vars(holder).pop(name, None)
                holder.register_parameter(name, parameter)
        for name, buffer in list(source._buffers.items()):
            if buffer is not None:
                holder._buffers.pop(name, None)
                holder.register_buffer(name, buffer, persistent=name not in source._non_persistent_buffers_set)
    for path, holder in module.named_modules():
        for name in set(holder._buffers) - set(_buffer_names(owner, path)):
            holder._non_persistent_buffers_set.add(name)  # a plain tensor attribute is not in the user's state_dict
        original = _get(owner, path)
        holder.training = owner.training if original is None else original.training
    return module


def _buffer_names(owner: nn.Module, path: str) -> Iterator[str]:
    original = _get(owner, path)
    return iter(()) if original is None else iter(original._buffers)


def _get(owner: nn.Module, path: str) -> nn.Module | None:
    try:
        return owner.get_submodule(path)
    except AttributeError:
        return None


def ensure_submodule(root: nn.Module, path: str) -> nn.Module:
    """Return the submodule at a path, and create empty modules where the path has none."""
    for part in path.split(".") if path else ():
        if not isinstance(getattr(root, part, None), nn.Module):
            root.add_module(part, nn.Module())
        root = getattr(root, part)
    return root


@frozen
class _Ref:
    name: str


@frozen
class _Aten:
    name: str


@frozen
class _Functional:
    name: str


def _pack_node(node: fx.Node) -> tuple[Any, ...]:
    reference: Any = lambda n: _Ref(n.name)  # noqa: E731
    args, kwargs = fx.map_arg(node.args, reference), fx.map_arg(node.kwargs, reference)
    return node.op, node.name, _address(node.target), args, kwargs, node.type


def _address(target: Any) -> Any:
    if isinstance(target, torch._ops.OpOverload):
        return _Aten(str(target))
    name = str(getattr(target, "__name__", ""))
    if getattr(F, name, None) is target:  # some functions of F are closures, which pickle refuses
        return _Functional(name)
    return target


def _callable(address: Any) -> Any:
    if isinstance(address, _Functional):
        return getattr(F, address.name)
    if isinstance(address, _Aten):
        value: Any = torch.ops
        for part in address.name.split("."):
            value = getattr(value, part)
        return value
    return address


def _unpickle(origin: Origin | None, nodes: list[tuple[Any, ...]], codegen: Any) -> CapturedModule:
    module, graph = _empty(origin), fx.Graph()
    graph.set_codegen(codegen)
    env: dict[str, fx.Node] = {}
    for op, name, target, args, kwargs, kind in nodes:
        mapped, named = _resolve(args, env), _resolve(kwargs, env)
        env[name] = graph.create_node(op, _callable(target), mapped, named, name, kind)
    module.graph = graph
    return module


def _resolve(value: Any, env: dict[str, fx.Node]) -> Any:
    if isinstance(value, _Ref):
        return env[value.name]
    if isinstance(value, slice):
        return slice(*(_resolve(v, env) for v in (value.start, value.stop, value.step)))
    if isinstance(value, dict):
        return {k: _resolve(v, env) for k, v in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_resolve(v, env) for v in value))
    if isinstance(value, list | tuple):
        items = [_resolve(v, env) for v in value]
        return tuple(items) if isinstance(value, tuple) else items
    return value


def in_evaluation_mode(module: nn.Module) -> nn.Module:
    """Return a shallow copy in evaluation mode, which shares the tensors; the mode of `module` does not change."""
    copied = copy.copy(module)
    copied._modules = {k: in_evaluation_mode(m) for k, m in module._modules.items() if m is not None}
    copied.training = False
    return copied
