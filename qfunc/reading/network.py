"""The network that is read: a traced graph, the tensors that it reads, and what is known of each value's shape."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from keyword import iskeyword
from typing import Any

import torch
from attrs import evolve
from torch import Tensor, fx, nn

from qfunc.frontend.functionalize import functionalize
from qfunc.frontend.refusals.reserved_names import is_free_name
from qfunc.graph.constants import UniqueNames
from qfunc.graph.module import ensure_submodule
from qfunc.graph.record import attach, record_of
from qfunc.reading.trial_sizes import Dims, TrialSizes
from qfunc.reading.values import Constant, Number, Numbers, Value


class Network:
    """Calls of torch's functions on values; what depends on no input is computed at once."""

    def __init__(self) -> None:
        self.graph, self.owner = fx.Graph(), nn.Module()
        self.dims: dict[fx.Node, Dims] = {}
        self.dtypes: dict[fx.Node, torch.dtype] = {}
        self._trial = TrialSizes(self.dims)
        self._placeholders: list[fx.Node] = []
        self._names: dict[str | None, str] = {}
        self._axes: list[tuple[str | None, ...]] = []
        self._sizes: list[tuple[str, tuple[int | None, ...]]] = []
        self._stored: dict[int, tuple[Tensor, fx.Node]] = {}
        self._places = set[int]()
        self._paths, self._inputs, self._prefixes = UniqueNames(), UniqueNames(), set[str]()

    def input(self, name: str, dims: Dims, dtype: torch.dtype) -> fx.Node:
        """Add an input with the name, or, if that is no identifier of Python, one that resembles it."""
        word = re.sub(r"\W", "_", name) or "input"
        word = f"_{word}" if word[0].isdigit() or iskeyword(word) else word
        node = self.graph.placeholder(self._inputs.fresh(word))
        self._placeholders.append(node)
        self.note(node, dims, dtype)
        for axis, size in enumerate(dims):
            if not isinstance(size, int):
                self._names.setdefault(size, str(size) if axis else "batch")
        self._axes.append(tuple(None if isinstance(d, int) else self._names[d] for d in dims))
        self._sizes.append((str(node.target), tuple(d if isinstance(d, int) else None for d in dims)))
        return node

    @property
    def how_to_fix_sizes(self) -> str:
        """The remedy where an op depends on sizes that vary: their names."""
        names = sorted({d for dims in map(self.dims.__getitem__, self._placeholders) for d in dims if isinstance(d, str)})
        words = ", ".join(f"{name!r}: number" for name in names[:4])
        if not names:
            return "Save the file with known sizes, or read the part before: read(..., outputs=(...))."
        return f"Fix sizes that vary: read(..., sizes={{{words}}}); or read the part before it: read(..., outputs=(...))."

    def call(self, path: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return what a function returns: nodes, or constants if all tensors are known.

        Args:
            path: The name of the result.
            function: A function of torch, or of `operator` or `math` for numbers.
        """
        if not _has_nodes((args, kwargs)):
            with torch.no_grad():
                found = function(*_map(args, _tensor), **_map(kwargs, _tensor))
            return _constants(found, path)
        given, named = _map(args, self._node), _map(kwargs, self._node)
        return _called(self.graph.call_function(function, given, named), path)

    def module(self, path: str, module: nn.Module, tensors: Mapping[str, Constant], source: Value) -> fx.Node:
        """Call a module whose tensors are constants of the file; it stays a module, because it trains otherwise.

        It is at the common prefix of their names, such as "bn1" of "bn1.weight" and "bn1.running_mean", or at `path`.
        """
        owners = {c.name.rpartition(".")[0] for c in tensors.values()}
        given = {c.name.rpartition(".")[2] for c in tensors.values()}
        together = len(owners) == 1 and given == set(tensors) and next(iter(owners))
        place = self._free(str(together or path))
        holder, _, name = place.rpartition(".")
        with torch.no_grad():
            for word, constant in tensors.items():
                getattr(module, word).copy_(constant.tensor)
        ensure_submodule(self.owner, holder).add_module(name, module.eval())
        return _called(self.graph.call_module(place, (self._node(source),)), path)

    def note(self, node: fx.Node, dims: Dims | None, dtype: torch.dtype | None) -> None:
        """Note what is known of a node's result."""
        if dims is not None:
            self.dims.setdefault(node, dims)
        if dtype is not None:
            self.dtypes.setdefault(node, dtype)
            node.meta.setdefault("val", torch.empty(0, dtype=dtype, device="meta"))

    def shape(self, node: fx.Node) -> Dims | None:
        """Return the sizes of a node's result; None if its rank is not known."""
        found = self.dims.get(node)
        if found is None and (tried := self._trial.of(node)) is not None:
            self.dims[node] = found = tried
        return found

    def length(self, node: fx.Node, axis: int) -> int | None:
        """Return a size of a node's result; None if it varies."""
        dims = self.shape(node)
        if dims is None or isinstance(dims[axis], int):
            return None if dims is None else dims[axis]  # type: ignore[return-value]
        tried = self._trial.of(node)
        return None if tried is None else tried[axis]

    def size(self, value: fx.Node, axis: int) -> Number:
        """Return a size of a tensor: a number if the file fixes it, else a node."""
        dims = self.shape(value)
        known = None if dims is None else dims[axis]
        return known if isinstance(known, int) else self.graph.call_function(torch.Tensor.size, (value, axis))

    def tensor(self, value: Value, path: str) -> Constant | fx.Node:
        """Return a value as a tensor; numbers that are computed become one."""
        if not isinstance(value, Numbers):
            return value
        given: Any = value.entries[0] if value.scalar else list(value.entries)
        node = _called(self.graph.call_function(torch.tensor, (given,), {"dtype": value.dtype}), path)
        self.note(node, () if value.scalar else (len(value.entries),), value.dtype)
        return node

    def finish(self, outputs: list[Value]) -> fx.GraphModule:
        """Return the captured module; one output alone, several as a tuple."""
        nodes = tuple(self._node(value) for value in outputs)
        self.graph.output(nodes[0] if len(nodes) == 1 else nodes)
        captured = functionalize(self.owner, self.graph)
        record = record_of(captured)
        assert record is not None
        sizes = tuple(self._sizes) if any(n is not None for _, s in self._sizes for n in s) else ()
        return attach(captured, evolve(record, axes=tuple(self._axes), sizes=sizes)).eval()

    def _node(self, value: Any) -> Any:
        if isinstance(value, Numbers):
            return self.tensor(value, "numbers")
        return self._get_attr(value) if isinstance(value, Constant) else value

    def _get_attr(self, constant: Constant) -> fx.Node:
        tensor = constant.tensor
        if id(tensor) not in self._stored:
            path = self._free(constant.name)
            holder, _, name = path.rpartition(".")
            owner, own = ensure_submodule(self.owner, holder), self._own(tensor)
            if constant.trains and own.is_floating_point():
                owner.register_parameter(name, nn.Parameter(own))
            else:
                owner.register_buffer(name, own)
            node = self.graph.get_attr(path)
            self.note(node, tuple(tensor.shape), tensor.dtype)
            self._stored[id(tensor)] = tensor, node  # the tensor is kept, so that no other one gets its id
        return self._stored[id(tensor)][1]

    def _own(self, tensor: Tensor) -> Tensor:
        # A tensor that shares no memory with another one of the model, as the transpose of a weight does.
        place = tensor.untyped_storage().data_ptr()
        taken = place in self._places
        self._places.add(place)
        return tensor.clone(memory_format=torch.contiguous_format) if taken or not tensor.is_contiguous() else tensor

    def _free(self, name: str) -> str:
        # A name for a tensor or module, which is no other's name and no other's prefix.
        parts = [part for part in name.split(".") if part] or ["constant"]
        parts = [f"{p}_" if iskeyword(p) else p for p in parts]
        parts[0] = parts[0] if is_free_name(parts[0]) else f"{parts[0]}_"
        path = ".".join(parts)
        prefixes = {".".join(parts[:k]) for k in range(1, len(parts))}
        if path in self._prefixes or prefixes & self._paths:
            path, prefixes = "_".join(parts), set()
        while path in self._prefixes:
            path = f"{path}_"
        self._prefixes |= prefixes
        return self._paths.fresh(path)


def _called(node: fx.Node, path: str) -> fx.Node:
    # The last node of a path gets its name, as the last op of a module of torch.nn does.
    node.meta["nn_module_stack"] = {path: (path, "onnx.Op")}
    return node


def _has_nodes(value: Any) -> bool:
    if isinstance(value, fx.Node | Numbers):
        return True
    if isinstance(value, slice):
        return _has_nodes((value.start, value.stop, value.step))
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return any(map(_has_nodes, items))


def _map(value: Any, function: Callable[[Any], Any]) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_map(v, function) for v in value)
    if isinstance(value, dict):
        return {k: _map(v, function) for k, v in value.items()}
    return function(value)


def _tensor(value: Any) -> Any:
    return value.tensor if isinstance(value, Constant) else value


def _constants(found: Any, path: str) -> Any:
    if isinstance(found, Tensor):
        return Constant(found, path)
    if isinstance(found, list | tuple):
        return tuple(Constant(part, f"{path}.{k}") for k, part in enumerate(found))
    return found
