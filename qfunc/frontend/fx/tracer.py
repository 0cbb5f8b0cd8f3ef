"""The symbolic tracer: leaf modules, proxies and the errors of a failed trace."""

from __future__ import annotations

import dis
import operator
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn

from qfunc.errors import CaptureError
from qfunc.frontend.fx.mappings import is_user_mapping, rebuild_mapping
from qfunc.frontend.fx.module_forwards import forward_of
from qfunc.frontend.refusals.assigned_buffers import assignment_error
from qfunc.frontend.source_location import is_user_file, packs_sequences, source_line, user_line, user_stack
from qfunc.ops.opset import MODULE_KINDS
from qfunc.ops.sizes import is_number

_USE_EXPORT = "Give example_inputs=(...,), so that the model is captured by torch.export."
_OF_SIZES = (torch.zeros, torch.ones)
"""Functions that reject the proxy of a size among separate sizes before torch.fx can record the call."""


class Proxy(fx.Proxy):
    """A proxy that records `x += y` and `x[i] = y` as in-place ops, and refuses `x.data = y`."""

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, fx.Proxy):
            raise assignment_error(source_line(value.node) or f"op {value.node.name!r}", name)
        super().__setattr__(name, value)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.tracer.create_proxy("call_function", operator.setitem, (self, index, value), {})


def _in_place(name: str) -> Callable[[fx.Proxy, Any], fx.Proxy]:
    function = getattr(operator, name)

    def method(self: fx.Proxy, other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", function, (self, other), {})

    return method


for _name in ("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor", "imatmul"):
    setattr(Proxy, f"__{_name}__", _in_place(_name))


class Tracer(fx.Tracer):
    """Trace through torch.nn, except the leaves of the op vocabulary and of the given classes."""

    def __init__(self, leaves: frozenset[type[nn.Module]]) -> None:
        super().__init__(autowrap_functions=_OF_SIZES)
        self._autowrap_search.append(torch)  # torch.fx searches the globals of the forward and these modules
        self.proxy_buffer_attributes = True
        self.leaves = leaves
        self.thread = threading.get_ident()
        self.paths: dict[int, tuple[str, Tensor]] | None = None

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        """Create a node that records the user's line."""
        node = super().create_node(*args, **kwargs)
        node.stack_trace = node.stack_trace or user_stack()
        return node

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Trace a module's call; tracing patches nn.Module for all threads, so calls of other threads just run."""
        if threading.get_ident() != self.thread:
            return forward(*args, **kwargs)
        traceable = (None if type(m) in self.leaves else forward_of(m)) or forward
        # A module that the forward creates has no path: a slice of an nn.Sequential, nn.ReLU()(x).
        has_no_path = not self.is_leaf_module(m, "") and m not in (self.submodule_paths or ())
        return traceable(*args, **kwargs) if has_no_path else super().call_module(m, traceable, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        """Return a module's attribute, as a proxy; other threads get the tensor itself."""
        if threading.get_ident() != self.thread:
            return attr_val
        if self.paths is None:  # torch searches all tensors of the model for each that the forward reads
            named = (*self.root.named_parameters(), *self.root.named_buffers())
            self.paths = {id(tensor): (path, tensor) for path, tensor in reversed(named)}
        path, _ = self.paths.get(id(attr_val), ("", None))
        if not path:
            return super().getattr(attr, attr_val, parameter_proxy_cache)
        if path not in parameter_proxy_cache:
            parameter_proxy_cache[path] = super().create_proxy("get_attr", path, (), {})
        return parameter_proxy_cache[path]

    def create_arg(self, a: Any) -> Any:
        """Return a value that the graph can store; mappings keep their classes."""
        derived = isinstance(a, dict) and type(a) is not dict
        return rebuild_mapping(self, a) if derived and is_user_mapping(a) else super().create_arg(a)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        """Return the proxy of a node."""
        return Proxy(node, self)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Return True if a module stays one node."""
        kind = type(m)
        if kind in self.leaves:
            return True
        if not kind.__module__.startswith(("torch.nn", "qfunc.")):
            return False
        return kind.__name__ in MODULE_KINDS

    def to_bool(self, obj: fx.Proxy) -> bool:
        """Return True inside an assert, which does not affect the result; refuse control flow.

        Raises:
            CaptureError: the branch depends on a tensor's values.
        """
        if _in_assert(sys._getframe()):
            return True
        if not _depends_on_sizes(obj.node):
            raise CaptureError(
                where=source_line(obj.node) or f"node {obj.node.name!r}",
                found=f"control flow on the values of a tensor ({obj.node.format_node()})",
                wanted="a forward whose path does not depend on data",
                do="Use torch.where, or keep the module that branches as one op, without example_inputs: leaves=MyModule.",
            )
        return super().to_bool(obj)


def _in_assert(frame: types.FrameType | None) -> bool:
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return False
    offset = frame.f_lasti
    following = [i.opname for i in dis.get_instructions(frame.f_code) if i.offset >= offset and i.opname != "CACHE"]
    return "LOAD_ASSERTION_ERROR" in following[:4]


_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "and_", "or_", "not_", "contains", "mod")


def _depends_on_sizes(node: fx.Node) -> bool:
    compared = getattr(node.target, "__name__", "") in _COMPARISONS and all(map(_depends_on_sizes, node.all_input_nodes))
    return node.op == "placeholder" or is_number(node) or compared or getattr(node.target, "__name__", "") == "getattr"


def packed_sequence_error(where: str) -> CaptureError:
    """Return the error for packed sequences, with torch.fx and with torch.export."""
    found, wanted = "a packed sequence, whose length depends on values", "a padded tensor"
    do = "Give the layer the padded tensor, and pick each sequence's last output by its length."
    return CaptureError(where=where, found=found, wanted=wanted, do=do)


def decoder_call(model: nn.Module) -> str:
    """Return the call that captures a language model of `transformers`, as a sentence; "" for another model."""
    if not callable(getattr(model, "prepare_inputs_for_generation", None)):
        return ""
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return "Write qfunc.encoder_decoder(length, features)(model), and quantize its encoder and its decoder.program."
    return "Write decoder = qfunc.decoder(length)(model), and quantize decoder.program."


def tracing_error(error: Exception, model: nn.Module) -> CaptureError:
    """Return the error for a failed trace, with the file and line of the user's model and torch.export as the alternative."""
    if packs_sequences(error.__traceback__):
        return packed_sequence_error(user_line(error.__traceback__) or type(model).__name__)
    first = str(error).strip().partition("\n")[0].partition(". ")[0]
    return CaptureError(
        where=user_line(error.__traceback__) or type(model).__name__,
        found=f"{type(error).__name__}: {first}",
        wanted="a forward that can be traced symbolically",
        do=decoder_call(model) or _USE_EXPORT,
    )
