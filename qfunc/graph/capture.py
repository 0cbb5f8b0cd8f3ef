"""Capture: any accepted model becomes one functional graph of canonical ops."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn

from qfunc.errors import CaptureError
from qfunc.graph.exported import open_program, program_of
from qfunc.graph.functional import functional
from qfunc.graph.record import record_of
from qfunc.graph.spelling import short_name
from qfunc.graph.vocabulary import MODULE_KINDS

_LOCK = threading.RLock()  # tracing patches torch's globals
_RECURRENT = ("LSTM", "GRU", "RNN", "LSTMCell", "GRUCell", "RNNCell", "MultiheadAttention", "Transformer",
              "TransformerEncoderLayer", "TransformerDecoderLayer")  # fmt: skip
_DEVICE_WRAPPERS = ("DataParallel", "DistributedDataParallel")


def capture(
    example_inputs: tuple[Any, ...] | None = None, *, leaves: tuple[str, ...] = ()
) -> Callable[[nn.Module | torch.export.ExportedProgram], fx.GraphModule]:
    """A transform that turns a model into a functional `fx.GraphModule` of canonical ops.

    Without `example_inputs` the model is traced symbolically (fx); with them, or given an
    `ExportedProgram`, it goes through `torch.export`, which also takes transformers, recurrent layers and
    control flow on shapes.  The result owns copies of the tensors, computes what the model computes and
    names its nodes by the model's module paths; the model itself is not changed.

    Args:
        example_inputs: The positional inputs of one call, any batch size; None for the fx road.
        leaves: Qualified class names of modules that stay one node.
    Raises:
        CaptureError: control flow on values, writing through a view, a leaf that hides weights; the
            message gives the file and line of the model's code and the road that would work.

    >>> graph = capture()(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True))).graph
    >>> [n.name for n in graph.nodes]
    ['input_1', '_0_weight', '_0_bias', '_0', '_1', 'output']
    """

    def transform(model: nn.Module | torch.export.ExportedProgram) -> fx.GraphModule:
        if isinstance(model, torch.export.ExportedProgram):
            return open_program(model)
        if isinstance(model, fx.GraphModule) and record_of(model) is not None:
            return copy.deepcopy(model)
        model = _unwrapped(model)
        if example_inputs is not None:
            return open_program(program_of(model, example_inputs)).train(model.training)
        with _LOCK:
            return functional(model, _traced(model, leaves))

    return transform


def _unwrapped(model: Any) -> nn.Module:
    if not isinstance(model, nn.Module):
        do = "Pass the module itself."
        raise CaptureError(where="capture", found=type(model).__name__, wanted="an nn.Module or an ExportedProgram", do=do)
    inner = getattr(model, "_orig_mod", None)  # torch.compile's wrapper
    if isinstance(inner, nn.Module):
        return _unwrapped(inner)
    if type(model).__name__ in _DEVICE_WRAPPERS:
        return _unwrapped(model.module)
    if isinstance(model, torch.jit.ScriptModule):
        do = "Pass the eager module from which it was scripted."
        raise CaptureError(where="capture", found="a TorchScript module", wanted="an eager nn.Module", do=do)
    return model


class _Proxy(fx.Proxy):
    """A proxy that records `x += y` as the in-place op it is, and refuses data-dependent control flow by line."""


def _in_place(name: str) -> Callable[[fx.Proxy, Any], fx.Proxy]:
    import operator

    function = getattr(operator, name)

    def method(self: fx.Proxy, other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", function, (self, other), {})

    return method


for _name in ("iadd", "isub", "imul", "itruediv"):
    setattr(_Proxy, f"__{_name}__", _in_place(_name))


class _Tracer(fx.Tracer):
    record_stack_traces = True

    def __init__(self, leaves: tuple[str, ...]) -> None:
        super().__init__()
        self.record_stack_traces = True
        self.leaves = leaves

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def is_leaf_module(self, module: nn.Module, path: str) -> bool:
        kind = type(module)
        if f"{kind.__module__}.{kind.__qualname__}" in self.leaves:
            return True
        if not kind.__module__.startswith("torch.nn"):
            return False
        if kind.__name__ in _RECURRENT:
            raise CaptureError(
                where=f"module {path!r}",
                found=f"nn.{kind.__name__}, whose weights stay hidden when traced symbolically",
                wanted="ops with visible weights",
                do="Give example_inputs, so that the model is captured by torch.export.",
            )
        return kind.__name__ in MODULE_KINDS


def _traced(model: nn.Module, leaves: tuple[str, ...]) -> fx.Graph:
    # Both modes are traced: what differs depends on `self.training`, and only dropout may.
    modes = [(m, m.training) for m in model.modules()]
    try:
        for m, _ in modes:
            m.training = False
        evaluated = _trace(model, leaves)
        for m, _ in modes:
            m.training = True
        trained = _trace(model, leaves)
    finally:
        for m, mode in modes:
            m.training = mode
    _same_but_dropout(evaluated, trained)
    return evaluated


def _trace(model: nn.Module, leaves: tuple[str, ...]) -> fx.Graph:
    tracer = _Tracer(leaves)
    try:
        return tracer.trace(model)
    except CaptureError:
        raise
    except Exception as e:
        raise CaptureError(
            where=user_line(e.__traceback__) or type(model).__name__,
            found=f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}",
            wanted="a forward whose control flow does not depend on tensors",
            do="Give example_inputs=(...,), so that the model is captured by torch.export.",
        ) from e


def user_line(traceback: Any) -> str:
    """The last line of the traceback that is neither torch's nor ours, as file:line, or ""."""
    found = ""
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        if "/torch/" not in file and "/qfunc/" not in file and not file.startswith("<eval_with_key>"):
            found = f"{file}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return found


def _same_but_dropout(evaluated: fx.Graph, trained: fx.Graph) -> None:
    a, b = list(evaluated.nodes), list(trained.nodes)
    for x, y in zip(a, b, strict=False):
        same = (x.op, x.target, str(x.args), str(x.kwargs)) == (y.op, y.target, str(y.args), str(y.kwargs))
        if not same and not (x.target == y.target and short_name(x) in ("dropout", "dropout2d", "feature_dropout")):
            raise CaptureError(
                where=f"node {x.name!r}",
                found=f"{x.format_node()} in eval mode but {y.format_node()} in train mode",
                wanted="a graph that differs by dropout alone",
                do="Move what depends on self.training out of the model, or replace it by nn.Dropout.",
            )
    if len(a) != len(b):
        raise CaptureError(
            where="capture",
            found=f"{len(a)} nodes in eval mode but {len(b)} in train mode",
            wanted="one graph for both",
            do="Move what depends on self.training out of the model.",
        )
