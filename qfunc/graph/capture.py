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
from qfunc.graph.sources import source_line
from qfunc.graph.spelling import DROPOUTS, short_name
from qfunc.graph.tracer import Tracer, tracing_error

_LOCK = threading.RLock()  # tracing patches torch's globals


def capture(
    example_inputs: tuple[Any, ...] | None = None, *, leaves: tuple[str, ...] = ()
) -> Callable[[nn.Module | torch.export.ExportedProgram], fx.GraphModule]:
    """A transform that turns a model into a functional `fx.GraphModule` of canonical ops.

    Without `example_inputs` the model is traced symbolically (fx); with them, or given an
    `ExportedProgram`, it goes through `torch.export`, which also takes transformers, recurrent layers and
    control flow on shapes.  The result owns copies of the tensors, computes what the model computes and
    names its nodes by the model's module paths; the model itself is not changed.  On the fx road arguments
    whose default is None, a bool or a string keep it.

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
        with _LOCK:
            owned = _owned(model)
            if example_inputs is not None:
                return open_program(program_of(owned, example_inputs), modes_of=model)
            return functional(owned, *_traced(owned, leaves, model))

    return transform


def _unwrapped(model: Any) -> nn.Module:
    if not isinstance(model, nn.Module):
        do = "Pass the module itself."
        raise CaptureError(where="capture", found=type(model).__name__, wanted="an nn.Module or an ExportedProgram", do=do)
    inner = getattr(model, "_orig_mod", None)  # torch.compile's wrapper
    if isinstance(inner, nn.Module):
        return _unwrapped(inner)
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        return _unwrapped(model.module)
    if isinstance(model, torch.jit.ScriptModule):
        do = "Pass the eager module from which it was scripted."
        raise CaptureError(where="capture", found="a TorchScript module", wanted="an eager nn.Module", do=do)
    return model


def _owned(model: nn.Module) -> nn.Module:
    # Tracing runs the model's forward, which may write attributes: it runs on a copy.
    try:
        return copy.deepcopy(model)
    except Exception as e:
        raise CaptureError(
            where=f"copy.deepcopy of {type(model).__name__}",
            found=f"{type(e).__name__}: {e}",
            wanted="a model that can be copied",
            do="Keep no computed tensors as attributes; weight_norm and spectral_norm: remove_parametrizations first.",
        ) from e


def _traced(owned: nn.Module, leaves: tuple[str, ...], model: nn.Module) -> tuple[fx.Graph, set[str]]:
    # Both modes are traced: what differs depends on `self.training`, and only dropout may.
    trained = _trace(copy.deepcopy(owned).train(), leaves)
    evaluated = _trace(owned.eval(), leaves)
    for traced, original in zip(owned.modules(), model.modules(), strict=False):
        traced.training = original.training
    return evaluated, _dropouts(evaluated, trained)


def _trace(model: nn.Module, leaves: tuple[str, ...]) -> fx.Graph:
    try:
        return Tracer(leaves).trace(model)
    except CaptureError:
        raise
    except Exception as e:
        raise tracing_error(e, model) from e


def _dropouts(evaluated: fx.Graph, trained: fx.Graph) -> set[str]:
    # The dropout calls that training switches; any other difference is refused.
    a, b = list(evaluated.nodes), list(trained.nodes)
    found = set()
    for x, y in zip(a, b, strict=False):
        if (x.op, x.target, str(x.args), str(x.kwargs)) == (y.op, y.target, str(y.args), str(y.kwargs)):
            continue
        if x.target == y.target and short_name(x) in DROPOUTS:
            found.add(x.name)
            continue
        raise CaptureError(
            where=source_line(x) or f"node {x.name!r}",
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
    return found
