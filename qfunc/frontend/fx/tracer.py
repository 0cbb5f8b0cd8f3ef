"""The symbolic tracer: which modules stay leaves, what a proxy records, how a failure reads."""

from __future__ import annotations

import dis
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

from torch import fx, nn

from qfunc.errors import CaptureError
from qfunc.frontend.fx.mappings import is_user_mapping, rebuild_mapping
from qfunc.frontend.fx.module_forwards import forward_of
from qfunc.frontend.fx.proxy import Proxy
from qfunc.frontend.source_location import is_user_file, packs_sequences, source_line, user_line
from qfunc.ops.canonicalize import is_number
from qfunc.ops.opset import MODULE_KINDS

_EXPORT = "Give example_inputs=(...,), so that the model is captured by torch.export."


class Tracer(fx.Tracer):
    """Traces through torch.nn but for the leaves of the op vocabulary and those of the given classes."""

    def __init__(self, leaves: frozenset[type[nn.Module]]) -> None:
        super().__init__()
        self.record_stack_traces = True
        self.proxy_buffer_attributes = True
        self.leaves = leaves
        self.thread = threading.get_ident()

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A module's call; tracing patches nn.Module for all threads, and those of others compute as ever."""
        if threading.get_ident() != self.thread:
            return forward(*args, **kwargs)
        own = (None if type(m) in self.leaves else forward_of(m)) or forward
        # What the forward makes itself has no path: a slice of an nn.Sequential, nn.ReLU()(x).
        new = not self.is_leaf_module(m, "") and m not in (self.submodule_paths or ())
        return own(*args, **kwargs) if new else super().call_module(m, own, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        """A module's attribute; other threads get the tensor itself."""
        if threading.get_ident() != self.thread:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)

    def create_arg(self, a: Any) -> Any:
        """A value that the graph can hold; mappings keep their classes."""
        derived = isinstance(a, dict) and type(a) is not dict
        return rebuild_mapping(self, a) if derived and is_user_mapping(a) else super().create_arg(a)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        """The proxy of a node."""
        return Proxy(node, self)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whether a module stays one node.

        Raises:
            CaptureError: it would hide weights.
        """
        kind = type(m)
        if kind in self.leaves:
            return True
        if not kind.__module__.startswith(("torch.nn", "qfunc.")):
            return False
        return kind.__name__ in MODULE_KINDS

    def to_bool(self, obj: fx.Proxy) -> bool:
        """True inside an assert, which has no part in the result; control flow is refused.

        Raises:
            CaptureError: the branch depends on a tensor's values.
        """
        if _in_assert(sys._getframe()):
            return True
        if not _of_sizes(obj.node):
            raise CaptureError(
                where=source_line(obj.node) or f"node {obj.node.name!r}",
                found=f"control flow on the values of a tensor ({obj.node.format_node()})",
                wanted="a forward whose path does not depend on data",
                do="Use torch.where, or keep the module that decides as one op, without example_inputs: leaves=MyModule.",
            )
        return super().to_bool(obj)


def _in_assert(frame: types.FrameType | None) -> bool:
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return False
    at = frame.f_lasti
    following = [i.opname for i in dis.get_instructions(frame.f_code) if i.offset >= at and i.opname != "CACHE"]
    return "LOAD_ASSERTION_ERROR" in following[:4]


_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "and_", "or_", "not_", "contains", "mod")


def _of_sizes(node: fx.Node) -> bool:
    compared = getattr(node.target, "__name__", "") in _COMPARISONS and all(map(_of_sizes, node.all_input_nodes))
    return node.op == "placeholder" or is_number(node) or compared or getattr(node.target, "__name__", "") == "getattr"


def packed_sequence_error(where: str) -> CaptureError:
    """The refusal of packed sequences, on both roads."""
    found, wanted = "a packed sequence, whose length depends on values", "a padded tensor"
    do = "Give the layer the padded tensor, and pick each sequence's last output by its length."
    return CaptureError(where=where, found=found, wanted=wanted, do=do)


def tracing_error(error: Exception, model: nn.Module) -> CaptureError:
    """What a failure of the tracer means for the user's model: file, line and the other road."""
    if packs_sequences(error.__traceback__):
        return packed_sequence_error(user_line(error.__traceback__) or type(model).__name__)
    first = str(error).strip().partition("\n")[0].partition(". ")[0]
    return CaptureError(
        where=user_line(error.__traceback__) or type(model).__name__,
        found=f"{type(error).__name__}: {first}",
        wanted="a forward that can be traced symbolically",
        do=_EXPORT,
    )
